/// What the memory model is told, of a job and of the machine, and what it answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

/// Bytes that one thread of our kernels of attention works in, of a call whose longest row has so many tokens up to the end of its part there,
/// those of earlier parts included.
using AttentionScratch = int64_t (*)(const ModelConfig& config, int64_t row_tokens, Direction direction);

/// How this machine holds things.
struct MemoryFacts {
  int64_t element_size = 2;       ///< of the compute dtype
  bool packed = true;             ///< CPU kernels of our own: frozen weights once per direction
  bool gpu_kernels = false;       ///< of our own: cross-entropy in the logits' memory, sums of gradients' chunks
  int64_t widest_flash_head = 0;  ///< heads of multiples of 8 up to this are attended to without a tensor of scores
  int parts = 0;                  ///< f32 products on bf16 parts (kernels/float_parts.h): weights, and factors to expand by, in so many
  int64_t weight_bytes = 0;       ///< what stays whatever jobs come, known: weights and all else; 0: predicted weights, rotary tables included
  int64_t head_workspace_bytes = 48 << 20;  ///< cross_entropy_head's workspace_bytes
  int64_t product_block_bytes = 0;  ///< where bf16 is multiplied in f32 (ops/aten_products.h): of a weight, what is widened at a time
  int64_t attention_queries = 128;  ///< where ATen computes attention: queries of a row whose scores exist at a time
  int64_t attention_threads = 0;    ///< of this process, all ranks together, each with scratch of its own where our kernels compute attention
  AttentionScratch attention_scratch = nullptr;  ///< as kernels/attention.h says it; null: none
  int64_t selection_bytes = 64 << 20;  ///< dense gradients of one diff-pruning selection pass
  int64_t ranks = 1;              ///< that the model is divided among
  int64_t tensor_parallel = 1;    ///< of them, those that divide each layer; the others are stages of a pipeline
  bool is_sequence_parallel = false;    ///< these, too, where layers are not divided (sequence_parallel.h)
  int64_t stages() const { return ranks / tensor_parallel; }
  std::vector<StageShape> process_stages;  ///< of those ranks, where each is a process of its own: the dearest counts. Empty: all are in this one
  /// Where there are several replicas of the model: of each, in place of ranks, tensor_parallel, is_sequence_parallel and process_stages.
  struct Replica {
    int64_t ranks = 1;
    int64_t tensor_parallel = 1;
    std::vector<StageShape> process_stages;
    bool is_sequence_parallel = false;
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

}  // namespace cotune
