#include "cluster/scheduling_policy.h"

#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/error.h"

namespace cotune {

bool SchedulingPolicy::preempts(const Contender&, const Contender&) const { return false; }

std::vector<std::string> policy_names() { return {"fcfs", "priority", "shortest", "fair", "deadline", "multiplexing"}; }

std::unique_ptr<SchedulingPolicy> make_policy(const std::string& name, const RoundPredictor& predictor, size_t kind_count) {
  if (name == "fcfs") return first_come_first_served();
  if (name == "priority") return highest_priority();
  if (name == "shortest") return shortest_remaining();
  if (name == "fair") return fair_share();
  if (name == "deadline") return earliest_deadline();
  if (name == "multiplexing") return multiplexing_aware(predictor, kind_count);
  throw_user_error("--policy: there is no policy `{}`; there are {}", name, fmt::join(policy_names(), ", "));
}

}  // namespace cotune
