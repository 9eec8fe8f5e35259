/// Memory of one rank of a pipeline (MuxTune §3.3, Eq. 5; MX-12).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/cost/stage_cost.h"

namespace cotune {

/// What does not fit, and by how much.
struct Overflow {
  std::string term;   ///< StageMemory::overflowing_term; "": everything fits
  int64_t bytes = 0;  ///< of all terms above the limit
  bool operator==(const Overflow&) const = default;
};

/// Bytes of one rank.
struct StageMemory {
  int64_t weights = 0;      ///< W_s: frozen parameters of the stage in the compute dtype (or DeviceSpec::weights), sharded
  int64_t adapters = 0;     ///< R_ks: trained values, gradients and optimizer moments, f32
  int64_t activations = 0;  ///< in flight · what one microbatch keeps for its backward
  int64_t workspace = 0;    ///< buffers of the one microbatch that is being computed, logits included
  int64_t total() const { return weights + adapters + activations + workspace; }
  /// weights, adapters, workspace or activations: where the running sum in that order first exceeds the limit; "" where
  /// it never does.
  std::string overflowing_term(int64_t limit) const;
  Overflow overflow(int64_t limit) const;
  bool operator==(const StageMemory&) const = default;
};

/// Rows whose logits are there at a time, at most.
inline constexpr int64_t logit_rows = 1024;

/// max over the tensor-parallel ranks of a stage, all alike. `in_flight`: microbatches between forward and backward, at
/// most S − s under 1F1B. `moment_count` values of the optimizer per trained one. Activations are those of the operator
/// list (saved_bytes); workspace is the stream's gradient, the widest pair of buffers of a layer, and on the stage with
/// the head the logits of `logit_rows` rows; of divided tokens the gathered error and input as well. `recompute`: activations are
/// recomputed_bytes().kept, and its layer is part of the workspace.
StageMemory stage_memory(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                         int64_t moment_count, const MicrobatchCounts& counts, int64_t in_flight, int64_t element_size,
                         bool recompute = false);

/// What a row that is a chain keeps beside the activations of its chunks, of one rank: keys and values of all its tokens on every layer, and in the
/// accumulation dtype their gradients, which are there from the backward of its last chunk on.
int64_t chain_bytes(const ModelConfig& model, const StageShape& stage, int64_t tokens, int64_t element_size);

/// Of the frozen parameters of one rank: weights of StageMemory.
int64_t frozen_bytes(const ModelConfig& model, const StageShape& stage, int64_t element_size);
/// The same in the memory of a device of this machine: as DeviceSpec::weights has them, 0 where all ranks share one set.
int64_t frozen_bytes(const ModelConfig& model, const StageShape& stage, const StageMachine& machine);

/// R_ks alone: of the adapters that stand on the stage.
int64_t adapter_bytes(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                      int64_t moment_count);

/// The workspace alone, as it grows with a microbatch.
struct StageWorkspace {
  int64_t per_token = 0;
  int64_t per_logit_row = 0;  ///< of labelled tokens, at most logit_rows at a time
  int64_t bytes(const MicrobatchCounts& counts) const;
};
StageWorkspace stage_workspace(const ModelConfig& model, const StageShape& stage, int64_t element_size);

/// Layers split as evenly as can be, the last stages one fewer where they do not divide: the last has the head to compute.
/// is_sequence_parallel: StageShape's. Throws InternalError for more stages than layers.
std::vector<StageShape> even_stages(const ModelConfig& model, int64_t stages, int64_t tensor_parallel, bool is_sequence_parallel = false);

}  // namespace cotune
