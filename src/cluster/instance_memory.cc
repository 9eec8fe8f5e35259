#include "cluster/instance_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/quantity_text.h"

namespace cotune {

InstanceMemory InstanceMemory::unlimited(size_t kind_count) {
  return {.limit_bytes = {int64_t{1} << 60}, .fixed_bytes = {0}, .kinds = std::vector<JobMemory>(kind_count, {{0}, {0}, 1})};
}

std::vector<int64_t> InstanceMemory::bytes(const JobMix& mix) const {
  int64_t longest = 0;
  for (const auto& [kind, count] : mix.counts()) longest = std::max(longest, kinds[static_cast<size_t>(kind)].row_tokens);
  std::vector<int64_t> sum = fixed_bytes;
  for (const auto& [kind, count] : mix.counts()) {
    const JobMemory& each = kinds[static_cast<size_t>(kind)];
    for (size_t s = 0; s < sum.size(); ++s) {
      double activations = static_cast<double>(each.activation_bytes[s]);
      if (padded) activations *= static_cast<double>(longest) / static_cast<double>(each.row_tokens);
      sum[s] += count * (each.resident_bytes[s] + static_cast<int64_t>(std::ceil(activations)));
    }
  }
  return sum;
}

bool InstanceMemory::fits(const JobMix& mix) const {
  const std::vector<int64_t> needed = bytes(mix);
  for (size_t s = 0; s < needed.size(); ++s) {
    if (needed[s] > limit_bytes[s]) return false;
  }
  return true;
}

std::string InstanceMemory::overflow_text(const JobMix& mix) const {
  const std::vector<int64_t> needed = bytes(mix);
  size_t worst = 0;
  for (size_t s = 1; s < needed.size(); ++s) {
    if (needed[s] - limit_bytes[s] > needed[worst] - limit_bytes[worst]) worst = s;
  }
  const std::string where = needed.size() == 1 ? "it" : fmt::format("stage {} of {}", worst, needed.size());
  return fmt::format("{} takes {} where {} may be used, {} of it whatever the jobs", where, bytes_text(needed[worst]), bytes_text(limit_bytes[worst]),
                     bytes_text(fixed_bytes[worst]));
}

MemoryInUse::MemoryInUse(const InstanceMemory& memory) : memory_(&memory) { set({}); }

void MemoryInUse::set(const JobMix& mix) {
  const size_t stages = memory_->limit_bytes.size();
  resident_.assign(memory_->fixed_bytes.begin(), memory_->fixed_bytes.end());
  per_row_token_.assign(stages, 0);
  own_length_.assign(stages, 0);
  longest_ = 0;
  for (const auto& [kind, count] : mix.counts()) {
    const JobMemory& each = memory_->kinds[static_cast<size_t>(kind)];
    longest_ = std::max(longest_, each.row_tokens);
    for (size_t s = 0; s < stages; ++s) {
      const auto activations = static_cast<double>(each.activation_bytes[s]);
      // Rounded up per job, as in bytes().
      resident_[s] += count * (static_cast<double>(each.resident_bytes[s]) + 1);
      per_row_token_[s] += count * activations / static_cast<double>(each.row_tokens);
      own_length_[s] += count * activations;
    }
  }
}

double MemoryInUse::bytes(size_t stage, int64_t longest) const {
  return resident_[stage] + (memory_->padded ? per_row_token_[stage] * static_cast<double>(longest) : own_length_[stage]);
}

bool MemoryInUse::fits(int32_t kind) const {
  const JobMemory& more = memory_->kinds[static_cast<size_t>(kind)];
  const int64_t longest = std::max(longest_, more.row_tokens);
  for (size_t s = 0; s < resident_.size(); ++s) {
    double activations = static_cast<double>(more.activation_bytes[s]);
    if (memory_->padded) activations *= static_cast<double>(longest) / static_cast<double>(more.row_tokens);
    const double needed = bytes(s, longest) + static_cast<double>(more.resident_bytes[s]) + 1 + activations;
    if (needed > static_cast<double>(memory_->limit_bytes[s])) return false;
  }
  return true;
}

double MemoryInUse::highest_share() const {
  double highest = 0;
  for (size_t s = 0; s < resident_.size(); ++s) {
    highest = std::max(highest, bytes(s, longest_) / static_cast<double>(memory_->limit_bytes[s]));
  }
  return highest;
}

}  // namespace cotune
