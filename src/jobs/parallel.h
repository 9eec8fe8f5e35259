/// How a run's ranks divide the model, as users write it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// One replica of the model: pipeline · tensor ranks, so many stages of layers, each of which so many ranks divide.
struct ReplicaDegrees {
  int64_t pipeline = 1;
  int64_t tensor = 1;
  int64_t longest_row = 0;  ///< tokens of the longest row that it takes; 0: any
  int64_t ranks() const { return pipeline * tensor; }
  bool operator==(const ReplicaDegrees&) const = default;
};

/// Replicas that train together, at least one; one of them takes rows of any length.
struct Parallel {
  std::vector<ReplicaDegrees> replicas = std::vector<ReplicaDegrees>(1);
  int64_t ranks() const;
  int64_t pipeline() const;         ///< the longest one
  std::vector<int64_t> tensor() const;  ///< the degrees that occur, ascending
  bool divides_layers() const { return tensor().back() > 1; }
  bool operator==(const Parallel&) const = default;
};

inline constexpr int64_t most_ranks = 64;

/// `pp=2,tp=2,dp=2`: two replicas of two stages each, in which two ranks divide every layer. Any of them, in any order, whole numbers
/// from 1. Unlike replicas are joined by `+`: `dp=2+tp=2`. `len=512` beside a replica's degrees: no row of more tokens goes there;
/// one kind has none. At most most_ranks in all. Nothing where the text is none of these.
std::optional<Parallel> parse_parallel(std::string_view text);

/// Of a run: under `auto` every rank is a stage.
Parallel parallel_of(const RunSpec& run);

/// `pp=2,tp=2`: of one replica; its length limit left out.
std::string to_string(const ReplicaDegrees& degrees);

}  // namespace cotune
