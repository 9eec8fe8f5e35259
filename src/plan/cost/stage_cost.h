/// How long a stage computes on a microbatch, with the adapters of all its jobs fused (MuxTune §3.3, Eq. 3; MX-10).
#pragma once

#include <vector>

#include "plan/cost/operator_seconds.h"

namespace cotune {

struct StageSeconds {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
  bool operator==(const StageSeconds&) const = default;
};

/// λ of a stage for one microbatch, from its operator list:
///   Σ_o t_o                          each operator without its adapters, for all tokens, on the shard of one rank
/// + Σ_a max{max_k τ_ak, Σ_k u_ak·τ_ak}   the adapters at an operator: τ_ak of job k alone, no less than a launch; u_ak the
///                                    share of the device that it keeps busy meanwhile, so u·τ is its time at full use
/// + Σ collective_seconds             where the list communicates: tokens·hidden values over the tensor-parallel ranks.
/// Attention and norms are operators like the rest, communication is not hidden, forward and backward are each their own
/// sum: where the paper's formula is silent (reference inventory MX-10).
/// machine.recompute: backward has recomputed_operators as well.
/// Layers that are adapted alike are computed once.
/// machine.measured: times of a profile in place of both first lines, with the adapters as the engine fuses them.
StageSeconds stage_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                           const MicrobatchCounts& counts, const StageMachine& machine);

/// Whether every layer has the same adapters.
bool layers_are_alike(const ModelConfig& model, const std::vector<AdapterShape>& adapters);

/// A stage with `count` of its layers, for adapters that are alike in all: the first of a stage may be the lowest of the model,
/// the last one has the head's input, so from two layers on one more is one more in the middle.
struct StageOfLayers {
  ModelConfig model;
  StageShape stage;
  std::vector<AdapterShape> adapters;
};
StageOfLayers stage_of_layers(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                              int64_t count);

/// An operator as it is priced: without adapters, and with those of each job.
struct OperatorParts {
  explicit OperatorParts(const Operator& op);

  /// As above, without an all-reduce.
  double seconds(const ModelConfig& model, const StageShape& stage, const MicrobatchCounts& counts,
                 const StageMachine& machine) const;

  Operator whole, bare;
  std::vector<Operator> of_jobs;
};

/// One operator of a list, as above.
double operator_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op, const MicrobatchCounts& counts,
                        const StageMachine& machine);

/// The sum over a list.
double list_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& operators,
                    const MicrobatchCounts& counts, const StageMachine& machine);

/// `rows` rows of `tokens` tokens each, all of them labelled; tokens are shared out among the jobs by `shares` (which sum
/// to 1), rounded so that they add up.
MicrobatchCounts even_microbatch(int64_t rows, int64_t tokens, const std::vector<double>& shares);

}  // namespace cotune
