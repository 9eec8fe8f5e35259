#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// The job that is due first goes first; jobs without a deadline come last, and any job with one pushes them out.
class EarliestDeadline : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "deadline"; }
  double rank(const JobFacts& job) const override { return job.deadline_s; }
  bool is_preemptive() const override { return true; }
  bool preempts(const Contender& waiting, const Contender& running) const override {
    return waiting.job.deadline_s < running.job.deadline_s;
  }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> earliest_deadline() { return std::make_unique<EarliestDeadline>(); }

}  // namespace cotune
