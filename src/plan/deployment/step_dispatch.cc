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

std::vector<int64_t> lengths_of(const std::vector<StepRow>& rows) {
  std::vector<int64_t> lengths;
  for (const StepRow& row : rows) lengths.push_back(row.tokens);
  return lengths;
}

std::vector<int64_t> ascending(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

/// What configurations take at most, as far as there are longer rows.
std::vector<int64_t> reaches_below(std::span<const Configuration> configurations, std::span<const int64_t> lengths) {
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  std::vector<int64_t> reaches;
  for (const Configuration& each : configurations) {
    if (each.reach() > 0 && each.reach() < longest) reaches.push_back(each.reach());
  }
  return ascending(std::move(reaches));
}

/// Those that hold rows. borders: the last is the longest row or beyond.
StepBuckets filled_buckets(std::span<const int64_t> lengths, const std::vector<int64_t>& borders) {
  const StepBuckets by_border{.tokens = borders, .mean = {}, .sequences = {}};
  std::vector<int64_t> reached(borders.size(), 0), sequences(borders.size(), 0), tokens(borders.size(), 0);
  for (const int64_t each : lengths) {
    const size_t j = bucket_of(by_border, each);
    reached[j] = std::max(reached[j], each);
    tokens[j] += each;
    ++sequences[j];
  }
  StepBuckets filled;
  for (size_t j = 0; j < borders.size(); ++j) {
    if (sequences[j] == 0) continue;
    filled.tokens.push_back(reached[j]);
    filled.mean.push_back(static_cast<double>(tokens[j]) / static_cast<double>(sequences[j]));
    filled.sequences.push_back(sequences[j]);
  }
  return filled;
}

}  // namespace

BucketPolicy bucket_policy(std::span<const int64_t> lengths, int64_t buckets) {
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  return {.buckets = buckets, .interval = std::max<int64_t>(1, (longest + 63) / 64), .pinned = {}};
}

StepBuckets bucket_rows(const std::vector<StepRow>& rows, int64_t buckets,
                        std::span<const Configuration> configurations) {
  const std::vector<int64_t> lengths = lengths_of(rows);
  BucketPolicy policy = bucket_policy(lengths, buckets);
  policy.pinned = reaches_below(configurations, lengths);
  return filled_buckets(lengths, bucket_lengths(lengths, policy).tokens);
}

StepBuckets bucket_rows_by(const std::vector<StepRow>& rows, std::span<const int64_t> borders, std::span<const Configuration> configurations) {
  const std::vector<int64_t> lengths = lengths_of(rows);
  if (lengths.empty()) return {};
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<int64_t> all = reaches_below(configurations, lengths);
  for (const int64_t border : borders) {
    if (border < longest) all.push_back(border);
  }
  all.push_back(longest);
  return filled_buckets(lengths, ascending(std::move(all)));
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
