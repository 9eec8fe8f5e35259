/// Kernel launches as mLoRA §3.3.2 counts them: calls of frozen products and of adapters.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/operators.h"

namespace cotune {

struct LaunchCount {
  int64_t frozen = 0;
  int64_t adapter = 0;
  int64_t total() const { return frozen + adapter; }
  LaunchCount& operator+=(const LaunchCount& other) {
    frozen += other.frozen;
    adapter += other.adapter;
    return *this;
  }
};

/// Calls of one pass over a list.
LaunchCount count_launches(const ModelConfig& config, const StageShape& stage, const std::vector<Operator>& operators,
                           const MicrobatchCounts& counts);

/// Calls for k like jobs, forward and backward; α: base_calls, β: adapter_calls of one job. The paper's model beside ours, for tests: they
/// hold the calls of the operator list and those that the engine makes to it; nothing else asks.
struct LaunchModel {
  int64_t base_calls = 0;
  int64_t adapter_calls = 0;

  int64_t separate(int64_t k) const { return k * (base_calls + adapter_calls); }    ///< kα + kβ: without BatchLoRA
  int64_t batch_lora(int64_t k) const { return base_calls + k * adapter_calls; }    ///< α + kβ: the paper's
  /// α + mβ: ours, one grouped adapter call per operator and method; m is the number of *methods*, whatever the jobs.
  int64_t grouped(int64_t methods) const { return base_calls + methods * adapter_calls; }
  /// (k−1)α / (k(α+β)): the share of calls that BatchLoRA saves.
  double batch_lora_saving(int64_t k) const {
    return static_cast<double>((k - 1) * base_calls) / static_cast<double>(k * (base_calls + adapter_calls));
  }
};

}  // namespace cotune
