/// What a microbatch of fused jobs costs, by their kinds: stage_seconds and stage_memory (plan/) in sums that are ready
/// beforehand, about a microsecond a question. The simulation of a trace asks millions of times.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cluster/instance.h"
#include "plan/fusion/fusion.h"

namespace cotune {

class KindCosts {
 public:
  /// Throws UserError where the kinds' rows exceed the model's context.
  KindCosts(const InstanceSpec& instance, const std::vector<JobKind>& kinds);

  /// Tokens of a job in one microbatch: ⌈rows·tokens / C⌉, its own rows' length.
  int64_t microbatch_tokens(int32_t kind) const;

  /// One microbatch of these jobs fused, given by their kinds in any order, with repetitions: equal to what stage_seconds
  /// and stage_memory say of it, to rounding. Seconds are of rows / C rows of each job, as on average; bytes of ⌈rows / C⌉, the most that one
  /// has. Every row enters the head; under Layout::padded rows are as long as the longest, and so do the pads.
  FusedCost fused(std::span<const int32_t> kinds) const;

  /// For admission: weights and logits; of each job adapter, gradients, moments, the activations of S − s microbatches on
  /// stage s and the workspace of one.
  const InstanceMemory& memory() const { return memory_; }
  /// Per stage: frozen weights, the part of memory().fixed_bytes that is not in the workspace of `fused`.
  const std::vector<int64_t>& weight_bytes() const { return weight_bytes_; }

 private:
  /// A cost that is affine in tokens, which all enter the head, and pairs of queries and keys: seconds = the larger of both rates,
  /// no less than the launches.
  struct AffineCost {
    std::array<double, 3> flops{};  // constant, per token, per pair
    std::array<double, 3> bytes{};
    double launch_s = 0;
  };
  /// An operator of a stage, as many times as it is there.
  struct StageOperator {
    double times = 0;
    bool has_base = false;
    AffineCost base;
    std::vector<AffineCost> adapter;  // per kind, in the kind's own tokens; empty: no adapters here
    std::vector<bool> adapts;         // per kind
    bool communicates = false;
  };
  struct Direct {
    std::vector<StageOperator> forward, backward;
  };
  struct Stage {
    StageShape shape;
    std::map<uint32_t, Direct> lists;       // by the projections that are adapted
    std::vector<double> kept_per_token;     // per kind: activations
    double workspace_per_token = 0;
    double workspace_fixed = 0;             // logits
  };
  struct Part {  // of one job in a microbatch
    double tokens = 0, pairs = 0;
    double most_tokens = 0;  // of whole rows
  };

  Part part_of(int32_t kind, int64_t row_tokens) const;
  std::vector<StageOperator> stage_list(const StageShape& stage, uint32_t projections, Direction direction) const;
  AffineCost affine(const StageShape& stage, const Operator& op) const;
  double seconds(const AffineCost& cost, double tokens, double pairs) const;
  double list_seconds(const std::vector<StageOperator>& list, std::span<const std::pair<int32_t, int32_t>> counts,
                      std::span<const Part> parts, const Part& sum) const;
  void find_memory();

  InstanceSpec instance_;
  std::vector<JobKind> kinds_;
  std::vector<uint32_t> projections_;  // per kind: bits
  std::vector<Stage> stages_;          // those that differ
  std::vector<size_t> stage_of_;       // per pipeline stage: which of them
  double flop_s_ = 0, byte_s_ = 0;
  InstanceMemory memory_;
  std::vector<int64_t> weight_bytes_;
};

}  // namespace cotune
