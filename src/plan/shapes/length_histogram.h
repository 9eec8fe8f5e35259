/// How long the examples of a job are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// Shares of examples by length. Ascending lengths, each once; weights above 0, which need not sum to 1.
struct LengthHistogram {
  std::vector<std::pair<int64_t, double>> weights;  ///< (tokens, weight)
  bool operator==(const LengthHistogram&) const = default;

  bool empty() const { return weights.empty(); }
  double total() const;
  double mean() const;      ///< tokens
  double skewness() const;  ///< third standardised moment; 0 when all lengths are equal
  int64_t longest() const;  ///< tokens; 0 when empty
};

/// Of a list of lengths (> 0).
LengthHistogram histogram_of(std::span<const int64_t> lengths);

/// `count` lengths drawn independently: a pure function of the key and the histogram, which must not be empty.
std::vector<int64_t> sample_lengths(const LengthHistogram& histogram, uint64_t key, int64_t count);

/// Longer examples are cut to `longest` tokens.
LengthHistogram truncated(const LengthHistogram& histogram, int64_t longest);

/// A JSON file {"LENGTH": COUNT, …}. Throws UserError naming file, key, what was found and what is accepted.
LengthHistogram read_histogram_file(const std::filesystem::path& path);
LengthHistogram parse_histogram(std::string_view json, const std::string& file_name);

/// What `data: {lengths: …}` says: its counts, its file, or the published histogram of that name (published_lengths.h).
/// Throws UserError.
LengthHistogram find_histogram(const LengthsSpec& lengths);

}  // namespace cotune
