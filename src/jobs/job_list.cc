#include "jobs/job_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cotune {
namespace {

constexpr size_t most_candidates = 3, most_entries = 6;

}  // namespace

SweepOfJob sweeps_of(std::span<const JobSpec> jobs) {
  SweepOfJob sweeps;
  for (const JobSpec& job : jobs) {
    if (!job.sweep.of.empty()) sweeps.emplace(job.name, job.sweep.of);
  }
  return sweeps;
}

std::vector<std::string> listed_jobs(std::span<const std::string> names, const SweepOfJob& sweeps) {
  std::map<std::string, size_t> candidates;  // by sweep
  for (const std::string& name : names) {
    if (const auto found = sweeps.find(name); found != sweeps.end()) ++candidates[found->second];
  }
  std::vector<std::string> entries;
  std::vector<size_t> job_counts;
  for (const std::string& name : names) {
    const auto found = sweeps.find(name);
    const size_t count = found == sweeps.end() ? 1 : candidates.at(found->second);
    if (count == 0) continue;  // listed already
    const bool together = count > most_candidates;
    entries.push_back(together ? fmt::format("{} ({} candidates)", found->second, count) : name);
    job_counts.push_back(together ? count : 1);
    if (together) candidates.at(found->second) = 0;
  }
  if (entries.size() <= most_entries) return entries;
  size_t left_out = 0;
  for (size_t i = most_entries - 1; i < entries.size(); ++i) left_out += job_counts[i];
  entries.resize(most_entries - 1);
  entries.push_back(fmt::format("{} more", left_out));
  return entries;
}

std::string job_list(std::span<const std::string> names, const SweepOfJob& sweeps, std::string_view between) {
  return fmt::format("{}", fmt::join(listed_jobs(names, sweeps), between));
}

}  // namespace cotune
