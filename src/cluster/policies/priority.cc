#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// mLoRA §3.4 (ML-22): static priorities, first come first served within one. A higher priority pushes out a lower one at
/// its step boundary, equal ones never do. There is no ageing: a low priority may wait for ever.
class HighestPriority : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "priority"; }
  double rank(const JobFacts& job) const override { return -static_cast<double>(job.priority); }
  bool is_preemptive() const override { return true; }
  bool preempts(const Contender& waiting, const Contender& running) const override {
    return waiting.job.priority > running.job.priority;
  }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> highest_priority() { return std::make_unique<HighestPriority>(); }

}  // namespace cotune
