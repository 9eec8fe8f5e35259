/// Peak memory of a training run, predicted from shapes: what decides admission and the token budget.
#pragma once

#include <span>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"
#include "schedule/step_plan.h"

namespace cotune {

enum class RoundKind { training, evaluation };

/// Peak of rounds of one kind = what stays + the worst moment of a step:
///   activations  Σ saved_bytes of the forward list over the tokens alive, dearest jobs first; under recompute the inputs
///                of the layers from the lowest adapted one and of the head for these, and one layer's saved bytes for
///                one microbatch
///   chain_kv     chain tokens · 2·kv · (layers · e + layers from the lowest adapted one · a): K, V; dK, dV
///   workspace    microbatch tokens · e · max(3·hidden + 4·intermediate, 3·hidden + 2·q + 2·kv): the stream's gradient,
///                the normalised input, a product's input gradient, d_gate_up, swiglu and its gradient (or the gradients
///                of attention); + max(3·hidden, intermediate)·e for masked inputs of LoRA dropout; bottleneck jobs:
///                + hidden·(e + 4a); + the packed forms of all factors at one operator; beside what attention has of these also its scratch
///                (MemoryFacts::attention_scratch): threads of the rank · bytes of one for the longest row, all of it where it is a chain, too
///   logits       rows of the head's chunk, and a third more for hidden states and gradients of all, · vocabulary · e
///   without kernels of our own ATen makes copies in the accumulation dtype: workspace threefold and product_block_bytes, and the scores of
///   attention_queries of a row with the row's keys and values, 6a · (heads · queries + kv) · row; logits (e + 4a) in place of e. Beside our
///   kernels, products that fit no panels take product_block_bytes and, where those are not 0, a · (in + out) of the widest per token, and
///   such a head logits likewise. With gpu_kernels logits take e; heads within widest_flash_head have no scores; + sums of the chunks of
///   gradients' rows, and 64 MiB for diff pruning
///   on P ranks of one process P microbatches are alive, if there are so many (1f1b: P of the longest chains; gpipe: the whole
///   round), and P chains; workspace and messages (a microbatch's activation and error, sent and received twice, between two
///   ranks) are those of all; where each rank is a process, layers, weights and workspace are those of the dearest stage
///   where microbatches run side by side (clock_microbatches) each of these is that many
///   replicas take what each would alone, with copies of the adapters beside the whole ones, and copies of the largest
///   job's gradients for their exchange
///   diff pruning, while it selects: gradients + selection_bytes (at least one layer's dense gradients)
/// An evaluation (the held-out rows of all jobs, under sharing batch_all packed as under hybrid) keeps nothing: its activations are one
/// layer's saved bytes for one microbatch on each stage, its chain_kv K and V.
MemoryEstimate predict_rounds(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                              const MemoryFacts& facts, RoundKind kind);

/// The worst moment of a run of which training rounds take `training`: one of these, or of an evaluation, where that takes more; with
/// files.
MemoryEstimate at_worst_moment(const MemoryEstimate& training, const ModelConfig& config, std::span<const JobFootprint> jobs,
                               const PackingPolicy& policy, const MemoryFacts& facts);

/// The same, with predict_rounds of training.
MemoryEstimate predict_memory(const ModelConfig& config, std::span<const JobFootprint> jobs,
                              const PackingPolicy& policy, const MemoryFacts& facts);

}  // namespace cotune
