/// Peak memory of a training run, predicted from shapes: what decides admission and the token budget.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config/model_config.h"
#include "schedule/operators.h"
#include "schedule/step_plan.h"

namespace cotune {

/// Bytes by kind, each at its own worst moment.
struct MemoryEstimate {
  int64_t weights = 0;
  int64_t adapters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t chain_kv = 0;
  int64_t workspace = 0;
  int64_t logits = 0;
  int64_t files = 0;  ///< between rounds, in the place of what these take: a job's file as it is written or read (file_bytes)

  /// What stays, and the larger of what a round takes and files.
  int64_t total() const;
  /// The kind at which the running sum, in the order above, first exceeds the limit; "" where it never does.
  std::string overflowing_term(int64_t limit) const;
  bool operator==(const MemoryEstimate&) const = default;
};

/// A job as memory sees it.
struct JobFootprint {
  int32_t job = 0;
  std::vector<AdapterShape> adapters;
  int64_t moment_count = 2;   ///< optimizer values per parameter: AdamW 2, SGD with momentum 1, plain SGD 0
  int64_t row_count = 0;      ///< rows of one batch
  int64_t longest_row = 0;    ///< tokens
  int64_t eval_row_count = 0; ///< held-out rows, of which an evaluation takes all; 0: there is none
  int64_t longest_eval_row = 0;
  bool operator==(const JobFootprint&) const = default;
};

/// Of an embedding in slices, what one holder asks another for at a time (engine/sharded_weights.h).
inline constexpr int64_t embedding_rows_at_once = 1024;

/// How this machine holds things.
struct MemoryFacts {
  int64_t element_size = 2;       ///< of the compute dtype
  bool packed = true;             ///< CPU kernels of our own: frozen weights once per direction
  bool gpu_kernels = false;       ///< of our own: cross-entropy in the logits' memory, sums of gradients' chunks
  int64_t widest_flash_head = 0;  ///< heads of multiples of 8 up to this are attended to without a tensor of scores
  int parts = 0;                  ///< f32 products on bf16 parts (kernels/float_parts.h): weights, and factors to expand by, in so many
  int64_t weight_bytes = 0;       ///< what stays whatever jobs come, known: weights and all else; 0: predicted weights
  int64_t head_workspace_bytes = 48 << 20;  ///< cross_entropy_head's workspace_bytes
  int64_t product_block_bytes = 0;  ///< where bf16 is multiplied in f32 (ops/aten_products.h): of a weight, what is widened at a time
  int64_t attention_queries = 128;  ///< where ATen computes attention: queries of a row whose scores exist at a time
  int64_t selection_bytes = 64 << 20;  ///< dense gradients of one diff-pruning selection pass
  int64_t ranks = 1;              ///< that the model is divided among
  int64_t tensor_parallel = 1;    ///< of them, those that divide each layer; the others are stages of a pipeline
  bool divides_tokens = false;    ///< these, too, where layers are not divided (sequence_parallel.h)
  int64_t stages() const { return ranks / tensor_parallel; }
  std::vector<StageShape> process_stages;  ///< of those ranks, where each is a process of its own: the dearest counts. Empty: all are in this one
  /// Where there are several replicas of the model: of each, in place of ranks, tensor_parallel, divides_tokens and process_stages.
  struct Replica {
    int64_t ranks = 1;
    int64_t tensor_parallel = 1;
    std::vector<StageShape> process_stages;
    bool divides_tokens = false;
    bool operator==(const Replica&) const = default;
  };
  std::vector<Replica> replicas;
  bool ranks_are_processes() const { return !process_stages.empty() || (!replicas.empty() && !replicas.front().process_stages.empty()); }
  int64_t weight_copies = 1;      ///< processes with the same layers, which spread their products and embedding over them (run.parallel, `shard`)
  RankOrder rank_order = RankOrder::automatic;
  bool interleaves = false;       ///< ranks of a pipeline have several stages each
  int64_t clock_microbatches = 1; ///< that ranks which divide layers run side by side, at most (pipeline/clocks.h)
  double fragmentation = 1.05;    ///< of dynamic tensors: memory held over memory alive, for the holes that best fit leaves
  int64_t with_holes(int64_t bytes) const;
};

/// The largest microbatch, the most tokens alive at once and the longest chain that plan_step can make of batches of
/// these jobs, whatever their row lengths up to longest_row and whatever the hybrid tasks: all jobs fused is the worst.
/// Tokens are rounded up to multiples of 64 per microbatch.
struct WorstCase {
  int64_t microbatch_tokens = 0;
  int64_t alive_tokens = 0;
  int64_t chain_tokens = 0;  ///< 0: no row becomes a chain
  bool operator==(const WorstCase&) const = default;
};
/// Of one leading job (the job whose chain it is) among all of them; see plan_step.
///   atoms of a row    A = ⌈R / c⌉, c tokens an atom (atom_tokens; chunked: whole chunks), R the longest row (rounded up
///                     to whole chunks)
///   chain length      ragged, chunked: ⌈A / ⌊budget/c⌋⌉; padded: 1 + ⌈(A − 1) / ⌊budget/c⌋⌉ (riders widen the last atom)
///   alive tokens      chain length · budget, at most everything there is
WorstCase worst_case(std::span<const JobFootprint> jobs, size_t leading, const PackingPolicy& policy);

/// Trained values of one adapter: LoRA r·(in + out); bottleneck 2·width·out + width + out; diff pruning: entries.
int64_t parameter_count(const ModelConfig& config, const AdapterShape& adapter);
/// Of a job's.
int64_t parameter_count(const ModelConfig& config, std::span<const AdapterShape> adapters);

/// Bytes of the frozen model. packed: each product in panels of 32 columns, once per direction (bf16 and parts pad the
/// other side to 32, too); products whose sizes are no multiples of 32 as they are, once. Norms and biases in the
/// accumulation dtype. A tied embedding is read from the head. With process_stages: of the dearest one. With weight_copies: the slices of
/// the layers' products and of the embedding, all else, the largest form of a product twice, for those that are gathered, and what others
/// ask of the embedding at a time; at least the embedding beside its slice, from which it is cut.
int64_t predict_weight_bytes(const ModelConfig& config, const MemoryFacts& facts);

/// The packed form of a low-rank factor [rank, width] that a grouped call makes and frees, in panels of 32 columns: to
/// shrink by (always whole), to expand by.
int64_t shrink_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts);
int64_t expand_form_bytes(int64_t rank, int64_t width, const MemoryFacts& facts);

/// What a resident job holds between steps: adapters (without kernels of our own also a copy of their factors in the compute
/// dtype), gradients, optimizer.
MemoryEstimate resident_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts);

/// What a checkpoint's files take while they are written or read, at most, beside the job's tensors: a copy of the largest site's
/// parameters, more than the one tensor that is written at a time, and the places of a sparse delta's entries.
int64_t file_bytes(const ModelConfig& config, const JobFootprint& job, const MemoryFacts& facts);

enum class RoundKind { training, evaluation };

/// Peak of rounds of one kind = what stays + the worst moment of a step:
///   activations  Σ saved_bytes of the forward list over the tokens alive, dearest jobs first; under recompute the inputs
///                of the layers from the lowest adapted one and of the head for these, and one layer's saved bytes for
///                one microbatch
///   chain_kv     chain tokens · 2·kv · (layers · e + layers from the lowest adapted one · a): K, V; dK, dV
///   workspace    microbatch tokens · e · max(3·hidden + 4·intermediate, 3·hidden + 2·q + 2·kv): the stream's gradient,
///                the normalised input, a product's input gradient, d_gate_up, swiglu and its gradient (or the gradients
///                of attention); + max(3·hidden, intermediate)·e for masked inputs of LoRA dropout; bottleneck jobs:
///                + hidden·(e + 4a); + the packed forms of all factors at one operator
///   logits       rows of the head's chunk, and a third more for hidden states and gradients of all, · vocabulary · e
///   without kernels of our own ATen makes copies in the accumulation dtype: workspace threefold and product_block_bytes, and the scores of
///   attention_queries of a row with the row's keys and values, 6a · (heads · queries + kv) · row; logits (e + 4a) in place of e. Beside our kernels, products that fit no panels take
///   product_block_bytes and, where those are not 0, a · (in + out) of the widest per token, and such a head logits likewise. With
///   gpu_kernels logits take e; heads within widest_flash_head have no scores; + sums of the chunks of gradients' rows, and 64 MiB for diff pruning
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
