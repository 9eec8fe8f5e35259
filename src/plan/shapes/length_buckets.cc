#include "plan/shapes/length_buckets.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"

namespace cotune {
namespace {

/// Boundaries for rows of `counts` (upper end of interval → rows) in at most `most` buckets, least padding first.
/// Returns for every number of buckets 1 … most the padding and the boundaries.
struct Cut {
  int64_t padding = 0;
  std::vector<int64_t> boundaries;
};

std::vector<Cut> best_cuts(const std::vector<std::pair<int64_t, int64_t>>& counts, size_t most) {
  const size_t n = counts.size();
  most = std::min(most, n);
  std::vector<int64_t> rows(n + 1, 0), tokens(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    rows[i + 1] = rows[i] + counts[i].second;
    tokens[i + 1] = tokens[i] + counts[i].second * counts[i].first;
  }
  // Intervals [from, to) in one bucket that ends with the last of them.
  const auto padding = [&](size_t from, size_t to) {
    return counts[to - 1].first * (rows[to] - rows[from]) - (tokens[to] - tokens[from]);
  };
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> least(most + 1, std::vector<int64_t>(n + 1, none));
  std::vector<std::vector<size_t>> from(most + 1, std::vector<size_t>(n + 1, 0));
  least[0][0] = 0;
  for (size_t k = 1; k <= most; ++k) {
    for (size_t to = k; to <= n; ++to) {
      for (size_t start = k - 1; start < to; ++start) {
        if (least[k - 1][start] == none) continue;
        const int64_t total = least[k - 1][start] + padding(start, to);
        if (total < least[k][to]) {
          least[k][to] = total;
          from[k][to] = start;
        }
      }
    }
  }
  std::vector<Cut> cuts;
  for (size_t k = 1; k <= most; ++k) {
    Cut& cut = cuts.emplace_back();
    cut.padding = least[k][n];
    for (size_t to = n, level = k; level > 0; to = from[level][to], --level) cut.boundaries.push_back(counts[to - 1].first);
    std::reverse(cut.boundaries.begin(), cut.boundaries.end());
  }
  return cuts;
}

}  // namespace

LengthBuckets sort_into_buckets(std::span<const int64_t> lengths, std::span<const int64_t> boundaries) {
  LengthBuckets buckets{.tokens = {boundaries.begin(), boundaries.end()}, .sequences = {}, .padding = 0};
  buckets.sequences.assign(boundaries.size(), 0);
  for (const int64_t length : lengths) {
    const auto place = std::lower_bound(boundaries.begin(), boundaries.end(), length);
    COTUNE_CHECK(place != boundaries.end(), "a row of {} tokens is longer than every bucket", length);
    ++buckets.sequences[static_cast<size_t>(place - boundaries.begin())];
    buckets.padding += *place - length;
  }
  return buckets;
}

LengthBuckets bucket_lengths(std::span<const int64_t> lengths, const BucketPolicy& policy) {
  COTUNE_CHECK(policy.buckets > 0 && policy.interval > 0);
  if (lengths.empty()) return {};
  std::map<int64_t, int64_t> counts;
  for (const int64_t length : lengths) ++counts[(length + policy.interval - 1) / policy.interval * policy.interval];
  std::vector<int64_t> pinned;
  for (const int64_t length : policy.pinned) {
    if (length < counts.rbegin()->first) pinned.push_back(length);
  }
  std::sort(pinned.begin(), pinned.end());
  pinned.erase(std::unique(pinned.begin(), pinned.end()), pinned.end());

  // Pinned boundaries cut the intervals into sections that are bucketed by themselves; the number of buckets of each is
  // chosen by a second dynamic program over the sections.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> sections(1);
  size_t next = 0;
  for (const auto& [end, rows] : counts) {
    while (next < pinned.size() && end > pinned[next]) {
      if (!sections.back().empty()) sections.emplace_back();
      ++next;
    }
    sections.back().emplace_back(end, rows);
  }
  const auto most = std::max<size_t>(static_cast<size_t>(policy.buckets), sections.size());
  std::vector<Cut> best(1);  // by number of buckets used so far
  std::vector<bool> reachable = {true};
  for (const auto& section : sections) {
    const std::vector<Cut> cuts = best_cuts(section, most);
    std::vector<Cut> after(most + 1);
    std::vector<bool> reached(most + 1, false);
    for (size_t used = 0; used < best.size(); ++used) {
      if (!reachable[used]) continue;
      for (size_t k = 0; k < cuts.size() && used + k + 1 <= most; ++k) {
        Cut& place = after[used + k + 1];
        const int64_t padding = best[used].padding + cuts[k].padding;
        if (reached[used + k + 1] && place.padding <= padding) continue;
        reached[used + k + 1] = true;
        place = best[used];
        place.padding = padding;
        place.boundaries.insert(place.boundaries.end(), cuts[k].boundaries.begin(), cuts[k].boundaries.end());
      }
    }
    best = std::move(after);
    reachable = std::move(reached);
  }
  const Cut* chosen = nullptr;
  for (size_t used = 0; used < best.size(); ++used) {
    if (reachable[used] && (chosen == nullptr || best[used].padding < chosen->padding)) chosen = &best[used];
  }
  COTUNE_CHECK(chosen != nullptr);
  return sort_into_buckets(lengths, chosen->boundaries);
}

std::vector<int64_t> average_step(std::span<const int64_t> sequences, int64_t steps) {
  COTUNE_CHECK(steps > 0);
  std::vector<int64_t> average(sequences.size(), 0);
  int64_t sum = 0, given = 0;
  for (size_t j = sequences.size(); j-- > 0;) {
    sum += sequences[j];
    const int64_t rounded = std::max<int64_t>((2 * sum + steps) / (2 * steps), sum > 0 ? 1 : 0);
    average[j] = rounded - given;
    given = rounded;
  }
  return average;
}

}  // namespace cotune
