#include "jobs/settings.h"

#include <fmt/format.h>

#include <algorithm>

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
  result.adapter.init_from.clear();
  result.train.save_steps = 0;
  result.sweep.max_concurrent = 0;
  return result;
}

std::string settings_hash(const JobSpec& job) {
  JobsFile alone;
  alone.jobs.push_back(result_settings(job));
  return checksum(to_yaml(alone));
}

namespace {

std::string weight_text(const TrainFile& file) {
  return file.weight > 0 ? fmt::format("weight {}", file.weight) : "no weight";
}

/// Weights by place where there are as many files as before, since files may have moved; else what was added and taken away.
std::vector<std::string> file_differences(const std::vector<TrainFile>& before, const std::vector<TrainFile>& now) {
  std::vector<std::string> lines;
  if (before.size() == now.size()) {
    for (size_t i = 0; i < now.size(); ++i) {
      if (before[i].weight == now[i].weight) continue;
      const std::string moved = before[i].path == now[i].path ? "" : fmt::format("{}, now ", before[i].path);
      lines.push_back(fmt::format("data.train[{}]: {}{}: {}, now {}", i, moved, now[i].path, weight_text(before[i]), weight_text(now[i])));
    }
    return lines;
  }
  std::vector<TrainFile> rest = before;
  for (size_t i = 0; i < now.size(); ++i) {
    const auto same = std::ranges::find(rest, now[i].path, &TrainFile::path);
    if (same == rest.end()) {
      lines.push_back(fmt::format("data.train[{}]: {}: is not among the files of before, {} now", i, now[i].path, weight_text(now[i])));
      continue;
    }
    if (same->weight != now[i].weight) {
      lines.push_back(fmt::format("data.train[{}]: {}: {}, now {}", i, now[i].path, weight_text(*same), weight_text(now[i])));
    }
    rest.erase(same);
  }
  for (const TrainFile& gone : rest)
    lines.push_back(fmt::format("data.train: {}: {}, now not among the files", gone.path, weight_text(gone)));
  return lines;
}

}  // namespace

std::vector<std::string> settings_differences(const JobSpec& before, const JobSpec& now) {
  JobSpec old_job = result_settings(before), new_job = result_settings(now);
  const OptionTarget old_target{nullptr, nullptr, &old_job}, new_target{nullptr, nullptr, &new_job};
  std::vector<std::string> differences;
  for (const Option& option : option_table()) {
    const bool of_jobs = option.section != Section::model && option.section != Section::run;
    if (!of_jobs || option.input_only || option.path() == "name") continue;
    const OptionValue old_value = option.get(old_target), new_value = option.get(new_target);
    if (old_value == new_value) continue;
    if (option.path() == "data.train") {
      for (const std::string& line : file_differences(before.data.train, now.data.train))
        differences.push_back(fmt::format("jobs.{}.{}", now.name, line));
      continue;
    }
    differences.push_back(fmt::format("jobs.{}.{}: {}, now {}", now.name, option.path(), to_yaml_text(old_value),
                                      to_yaml_text(new_value)));
  }
  return differences;
}

}  // namespace cotune
