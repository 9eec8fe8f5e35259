#include "plan/deployment/step_dispatch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

size_t bucket_of(const StepBuckets& buckets, int64_t tokens) {
  const auto found = std::lower_bound(buckets.tokens.begin(), buckets.tokens.end(), tokens);
  COTUNE_CHECK(found != buckets.tokens.end(), "a row of {} tokens is longer than every bucket", tokens);
  return static_cast<size_t>(found - buckets.tokens.begin());
}

}  // namespace

StepBuckets bucket_rows(const std::vector<StepRow>& rows, int64_t buckets,
                        std::span<const Configuration> configurations) {
  std::vector<int64_t> lengths;
  int64_t longest = 0;
  for (const StepRow& row : rows) longest = std::max(longest, lengths.emplace_back(row.tokens));
  BucketPolicy policy{.buckets = buckets, .interval = std::max<int64_t>(1, (longest + 63) / 64)};
  for (const Configuration& each : configurations) policy.pinned.push_back(each.chunk_tokens);
  std::erase_if(policy.pinned, [&](int64_t tokens) { return tokens <= 0 || tokens >= longest; });
  std::sort(policy.pinned.begin(), policy.pinned.end());
  policy.pinned.erase(std::unique(policy.pinned.begin(), policy.pinned.end()), policy.pinned.end());
  const LengthBuckets borders = bucket_lengths(lengths, policy);
  StepBuckets result{.tokens = borders.tokens,
                     .mean = std::vector<double>(borders.tokens.size(), 0),
                     .sequences = std::vector<int64_t>(borders.tokens.size(), 0)};
  std::vector<int64_t> reached(borders.tokens.size(), 0);
  for (const int64_t tokens : lengths) {
    const size_t j = bucket_of(result, tokens);
    reached[j] = std::max(reached[j], tokens);
    result.mean[j] += static_cast<double>(tokens);
    ++result.sequences[j];
  }
  StepBuckets filled;
  for (size_t j = 0; j < reached.size(); ++j) {
    if (result.sequences[j] == 0) continue;
    filled.tokens.push_back(reached[j]);
    filled.mean.push_back(result.mean[j] / static_cast<double>(result.sequences[j]));
    filled.sequences.push_back(result.sequences[j]);
  }
  return filled;
}

std::vector<size_t> replicas_of_rows(const std::vector<StepRow>& rows, const StepBuckets& buckets, const RowDispatch& dispatch) {
  const size_t replicas = dispatch.replicas.size();
  std::vector<size_t> result(rows.size());
  std::vector<std::vector<size_t>> of_bucket(buckets.tokens.size());
  for (size_t row = 0; row < rows.size(); ++row) of_bucket[bucket_of(buckets, rows[row].tokens)].push_back(row);
  for (size_t j = 0; j < of_bucket.size(); ++j) {
    std::vector<int64_t> given(replicas, 0);
    int64_t seen = 0;
    for (const size_t row : of_bucket[j]) {
      const double share = static_cast<double>(++seen) / static_cast<double>(of_bucket[j].size());
      size_t next = replicas;
      double most_behind = 0;
      for (size_t r = 0; r < replicas; ++r) {
        const int64_t due = dispatch.replicas[r].sequences[j];
        if (given[r] >= due) continue;
        const double behind = share * static_cast<double>(due) - static_cast<double>(given[r]);
        if (next == replicas || behind > most_behind) next = r, most_behind = behind;
      }
      COTUNE_CHECK(next < replicas, "the dispatch holds fewer rows of bucket {} than there are", j);
      ++given[next];
      result[row] = next;
    }
  }
  return result;
}

std::vector<std::vector<StepRow>> deal_rows(const std::vector<StepRow>& rows, const StepBuckets& buckets,
                                            const RowDispatch& dispatch) {
  std::vector<std::vector<StepRow>> dealt(dispatch.replicas.size());
  const std::vector<size_t> replica_of = replicas_of_rows(rows, buckets, dispatch);
  for (size_t row = 0; row < rows.size(); ++row) dealt[replica_of[row]].push_back(rows[row]);
  for (std::vector<StepRow>& own : dealt) {
    std::stable_sort(own.begin(), own.end(), [](const StepRow& a, const StepRow& b) {
      return std::pair(a.job, a.tokens) < std::pair(b.job, b.tokens);
    });
  }
  return dealt;
}

}  // namespace cotune
