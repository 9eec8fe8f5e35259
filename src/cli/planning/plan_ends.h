/// When the jobs of a plan end.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// A job in one of the plan's steps after the other, each as long as with all jobs: at most, for steps are shorter once others have ended.
struct PlannedEnd {
  std::string job;
  int64_t steps = 0;
  double at_most_s = 0;                ///< from the start
  std::optional<bool> meets_deadline;  ///< of a job that has one; false: not by this bound
};

/// Of the jobs whose steps are known (PlannedJobs::steps), in their order. now_s: Unix time of the start.
std::vector<PlannedEnd> planned_ends(const std::vector<JobSpec>& jobs, const std::map<std::string, int64_t>& steps, double step_s, int64_t now_s);

/// "" for none.
std::string to_text(const std::vector<PlannedEnd>& ends);
/// [{"job", "steps", "at_most_s", "meets_deadline": true, false or null}].
nlohmann::ordered_json to_json(const std::vector<PlannedEnd>& ends);

}  // namespace cotune
