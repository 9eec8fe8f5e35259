/// Parallel configurations of a replica, what they cost, and which are worth considering (LobRA §4.2, LB-4, LB-16).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plan/deployment/dispatch.h"

namespace cotune {

/// `<4,2>`: four ranks divide every layer of two stages. `<4+seq,2>`: they divide the tokens, too. `<4,2>/8`: eight copies share weights.
std::string configuration_name(int64_t tensor_parallel, bool is_sequence_parallel, int64_t pipeline_stages, int64_t shards);

/// <TP, PP>: TP·PP devices that hold the model once; <TP, PP>/Z: Z like copies that share one set of weights
/// (weight_sharding.h), go through a chunk each at the same time, and are deployed as one.
struct Configuration {
  int64_t tensor_parallel = 1;
  bool is_sequence_parallel = false;  ///< StageShape's; tensor_parallel is above 1
  int64_t pipeline_stages = 1;
  int64_t shards = 1;        ///< Z
  int64_t chunk_tokens = 0;  ///< M: most tokens of one chunk (microbatch) with as many under way as a pipeline needs; 0: none fits
  int64_t longest_row = 0;   ///< above M: longer rows, up to this, fit as chains of chunks with nothing else under way
  /// Seconds that the slowest stage needs for forward and backward of a chunk of so many sequences of so many tokens.
  std::function<double(int64_t sequences, int64_t tokens)> chunk_seconds;

  int64_t devices() const { return tensor_parallel * pipeline_stages * shards; }
  /// Tokens of the longest row that fits.
  int64_t reach() const { return std::max(chunk_tokens, longest_row); }
  std::string name() const;  ///< configuration_name
  /// Tokens per device and second of full chunks of rows of that length; 0 where they do not fit.
  double rate(int64_t tokens) const;
};

/// Per-sequence costs of buckets on one of the Z copies: c_j = t(b_j, s_j)/b_j with b_j = ⌊M/s_j⌋ sequences a chunk, or one where it is
/// ⌈s_j/M⌉ chunks; filling the pipeline costs (PP − 1)·max_j t(b_j, s_j) of a chunk, which is at least what Eq. 12 charges for those that exist.
/// `bucket_tokens`: the longest row of each, ascending: what fits is said by them. s_j is `row_tokens`, the mean of a bucket's rows
/// where they are not padded; empty: the longest.
BucketCosts bucket_costs(const Configuration& configuration, std::span<const int64_t> bucket_tokens,
                         std::span<const double> row_tokens = {});
std::vector<BucketCosts> bucket_costs(std::span<const Configuration> configurations, std::span<const int64_t> bucket_tokens,
                                      std::span<const double> row_tokens = {});

/// LB-16: for every device count that is some candidate's and every length, the candidate of highest rate among those that
/// fit into so many devices (replicas of smaller ones count), as `SELECT config, MAX(rate) GROUP BY devices, length`. Ties
/// go to fewer devices, then to the candidate listed first. In the order of `candidates`.
std::vector<Configuration> propose_configurations(std::span<const Configuration> candidates,
                                                  std::span<const int64_t> lengths);

}  // namespace cotune
