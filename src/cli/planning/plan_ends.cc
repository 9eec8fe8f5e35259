#include "cli/planning/plan_ends.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "jobs/deadline.h"

namespace cotune {

std::vector<PlannedEnd> planned_ends(const std::vector<JobSpec>& jobs, const std::map<std::string, int64_t>& steps, double step_s, int64_t now_s) {
  std::vector<PlannedEnd> ends;
  for (const JobSpec& job : jobs) {
    const auto known = steps.find(job.name);
    if (known == steps.end()) continue;
    PlannedEnd& end = ends.emplace_back(
        PlannedEnd{.job = job.name, .steps = known->second, .at_most_s = static_cast<double>(known->second) * step_s, .meets_deadline = {}});
    const std::optional<int64_t> deadline = job.deadline.empty() ? std::nullopt : parse_deadline(job.deadline);
    if (deadline) end.meets_deadline = static_cast<double>(now_s) + end.at_most_s <= static_cast<double>(*deadline);
  }
  return ends;
}

std::string to_text(const std::vector<PlannedEnd>& ends) {
  if (ends.empty()) return "";
  const auto last = std::ranges::max_element(ends, {}, &PlannedEnd::at_most_s);
  std::string text = fmt::format("To the end: at most {}, for {} of {}; steps are shorter once other jobs have ended.\n",
                                 duration_text(last->at_most_s), counted(last->steps, "step"), last->job);
  for (const PlannedEnd& each : ends) {
    if (!each.meets_deadline) continue;
    text += fmt::format("  {}: at most {} for {}: {}\n", each.job, duration_text(each.at_most_s), counted(each.steps, "step"),
                        *each.meets_deadline ? "in time for its deadline" : "its deadline is earlier");
  }
  return text;
}

nlohmann::ordered_json to_json(const std::vector<PlannedEnd>& ends) {
  auto json = nlohmann::ordered_json::array();
  for (const PlannedEnd& each : ends) {
    json.push_back({{"job", each.job}, {"steps", each.steps}, {"at_most_s", each.at_most_s}, {"meets_deadline", nullptr}});
    if (each.meets_deadline) json.back()["meets_deadline"] = *each.meets_deadline;
  }
  return json;
}

}  // namespace cotune
