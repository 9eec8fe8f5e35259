#include "jobs/settings.h"

#include <fmt/format.h>

#include "base/file.h"
#include "jobs/jobs_file.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {

JobSpec result_settings(const JobSpec& job) {
  JobSpec result = job;
  result.tenant.clear();
  result.priority = 0;
  result.deadline.clear();
  for (TrainFile& file : result.data.train) file.path.clear();
  if (!has_weights(result.data)) result.data.train.clear();
  result.data.eval.clear();
  result.data.chat_template.clear();
  result.train.save_steps = 0;
  result.sweep.max_concurrent = 0;
  return result;
}

std::string settings_hash(const JobSpec& job) {
  JobsFile alone;
  alone.jobs.push_back(result_settings(job));
  return checksum(to_yaml(alone));
}

std::vector<std::string> settings_differences(const JobSpec& before, const JobSpec& now) {
  JobSpec old_job = result_settings(before), new_job = result_settings(now);
  const OptionTarget old_target{nullptr, nullptr, &old_job}, new_target{nullptr, nullptr, &new_job};
  std::vector<std::string> differences;
  for (const Option& option : option_table()) {
    const bool of_jobs = option.section != Section::model && option.section != Section::run;
    if (!of_jobs || option.input_only || option.path() == "name") continue;
    const OptionValue old_value = option.get(old_target), new_value = option.get(new_target);
    if (old_value == new_value) continue;
    differences.push_back(fmt::format("jobs.{}.{}: {}, now {}", now.name, option.path(), to_yaml_text(old_value),
                                      to_yaml_text(new_value)));
  }
  return differences;
}

}  // namespace cotune
