#include "cluster/job_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace cotune {

std::string JobKind::name() const {
  switch (method) {
    case AdapterMethod::lora:
      return fmt::format("lora{}-{}x{}", width, rows, tokens);
    case AdapterMethod::bottleneck:
      return fmt::format("bottleneck{}-{}x{}", width, rows, tokens);
    case AdapterMethod::diff_pruning:
      break;
  }
  return fmt::format("diff-{}x{}", rows, tokens);
}

JobMix::JobMix(std::vector<int32_t> kinds) {
  std::sort(kinds.begin(), kinds.end());
  for (const int32_t kind : kinds) {
    if (counts_.empty() || counts_.back().first != kind) counts_.emplace_back(kind, 0);
    counts_.back().second += 1;
  }
  job_count_ = static_cast<int64_t>(kinds.size());
}

void JobMix::add(int32_t kind) {
  const auto place = std::lower_bound(counts_.begin(), counts_.end(), std::pair{kind, 0});
  if (place != counts_.end() && place->first == kind) {
    place->second += 1;
  } else {
    counts_.insert(place, {kind, 1});
  }
  job_count_ += 1;
}

void JobMix::remove(int32_t kind) {
  const auto place = std::lower_bound(counts_.begin(), counts_.end(), std::pair{kind, 0});
  COTUNE_CHECK(place != counts_.end() && place->first == kind, "no job of kind {} in the mix", kind);
  place->second -= 1;
  if (place->second == 0) counts_.erase(place);
  job_count_ -= 1;
}

std::vector<int32_t> JobMix::kinds() const {
  std::vector<int32_t> all;
  for (const auto& [kind, count] : counts_) all.insert(all.end(), static_cast<size_t>(count), kind);
  return all;
}

size_t JobMixHash::operator()(const JobMix& mix) const {
  uint64_t key = 0;
  for (const auto& [kind, count] : mix.counts()) {
    key = mix_key(key, (static_cast<uint64_t>(kind) << 32) | static_cast<uint64_t>(count));
  }
  return static_cast<size_t>(key);
}

}  // namespace cotune
