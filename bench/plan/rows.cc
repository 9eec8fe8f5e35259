#include "rows.h"

#include <fmt/ranges.h>

#include "support/source_folder.h"

namespace cotune {

void print_row(const std::string& what, const std::string& paper, const std::string& goal, const std::string& here) {
  fmt::print("| {} | {} | {} | {} |\n", what, paper, goal, here);
}

const char* missed_unless(bool is_met) { return is_met ? "" : " (**missed**)"; }

std::string plan_text(std::span<const Configuration> configurations, const Counts& replicas) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0) parts.push_back(fmt::format("{}×{}", configurations[i].name(), replicas[i]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Counts replicas_of(std::span<const Configuration> configurations, const std::vector<std::pair<std::string, int64_t>>& plan) {
  Counts replicas(configurations.size(), 0);
  for (const auto& [name, count] : plan) {
    for (size_t i = 0; i < configurations.size(); ++i) {
      if (configurations[i].name() == name) replicas[i] = count;
    }
  }
  return replicas;
}

LengthBuckets expected_of(const Counts& lengths_of_a_hundred_steps) {
  LengthBuckets buckets = bucket_lengths(lengths_of_a_hundred_steps);
  for (int64_t& count : buckets.sequences) count = (count + 99) / 100;
  return buckets;
}

std::string data_file(const std::string& name) {
  return (source_folder() / "bench/plan/data" / name).string();
}

}  // namespace cotune
