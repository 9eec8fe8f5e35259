#include "cluster/scheduling_policy.h"

namespace cotune {
namespace {

/// The job with the least left goes first, and pushes out one that has more than twice as much left: with less between them a
/// pair of jobs would trade places for little.
class ShortestRemaining : public SchedulingPolicy {
 public:
  std::string_view name() const override { return "shortest"; }
  double rank(const JobFacts& job) const override { return job.remaining_s; }
  bool is_preemptive() const override { return true; }
  bool preempts(const Contender& waiting, const Contender& running) const override {
    return 2 * waiting.job.remaining_s < running.job.remaining_s;
  }
};

}  // namespace

std::unique_ptr<SchedulingPolicy> shortest_remaining() { return std::make_unique<ShortestRemaining>(); }

}  // namespace cotune
