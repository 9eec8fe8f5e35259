#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// By arrival. Nothing is pre-empted.
class FirstComeFirstServed : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "fcfs"; }
  double rank(const JobFacts&) const override { return 0; }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> first_come_first_served() { return std::make_unique<FirstComeFirstServed>(); }

}  // namespace cotune
