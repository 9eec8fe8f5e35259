#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// By arrival. Nothing is pre-empted; whoever has waited for four hours has an instance held for it.
class FirstComeFirstServed : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "fcfs"; }
  double rank(const JobFacts&) const override { return 0; }
  double patience_s() const override { return 4 * 3600; }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> first_come_first_served() { return std::make_unique<FirstComeFirstServed>(); }

}  // namespace cotune
