/// How a run's ranks divide the model, as users write it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// One replica of the model: pipeline · tensor ranks; so many have stages of layers, each of which so many divide.
struct ReplicaDegrees {
  int64_t pipeline = 1;
  int64_t tensor = 1;
  int64_t longest_row = 0;      ///< tokens of the longest row that it takes; 0: any
  int64_t stages_per_rank = 1;  ///< above 1: stage s is on rank s mod pipeline (interleaved 1F1B's virtual pipeline)
  bool shards_weights = false;  ///< processes of it and of those like it keep slices of the frozen weights they have in common
  bool is_sequence_parallel = false;  ///< its tensor ranks each have some of the tokens between products (sequence parallelism)
  int64_t ranks() const { return pipeline * tensor; }
  int64_t stages() const { return pipeline * stages_per_rank; }
  bool operator==(const ReplicaDegrees&) const = default;
};

/// Replicas that train together, at least one; one of them takes rows of any length.
struct Parallel {
  std::vector<ReplicaDegrees> replicas = std::vector<ReplicaDegrees>(1);
  int64_t ranks() const;
  int64_t stages() const;           ///< of the replica that has most
  std::vector<int64_t> tensor() const;  ///< the degrees that occur, ascending
  bool divides_layers() const { return tensor().back() > 1; }
  bool shards_weights() const;          ///< some replicas do
  bool is_sequence_parallel() const;          ///< some replicas do
  bool operator==(const Parallel&) const = default;
};

inline constexpr int64_t most_ranks = 64;

/// `pp=2,tp=2,dp=2`: two replicas of two stages each, in which two ranks divide every layer. Any of them, in any order, whole numbers
/// from 1. Unlike replicas are joined by `+`: `dp=2+tp=2`. `vp=2`: every rank of the pipeline has two stages. `len=512` beside a replica's
/// degrees: no row of more tokens goes there; one kind has none. `dp=2,shard`: the two share their frozen weights out. `tp=2,seq`: the two
/// divide the tokens, too, where layers are not divided (sequence parallelism). At most most_ranks in all. Nothing where the text is none
/// of these.
std::optional<Parallel> parse_parallel(std::string_view text);

/// RunSpec::parallel that are no degrees.
inline constexpr std::string_view parallel_as_stages = "stages";  ///< every rank is a stage
inline constexpr std::string_view parallel_as_planned = "auto";   ///< the planner chooses (cli/run/planned_division.h)
bool names_degrees(const RunSpec& run);

/// Of a run; where it does not name degrees every rank is a stage.
Parallel parallel_of(const RunSpec& run);

/// What parse_parallel reads as the same.
std::string to_string(const Parallel& parallel);
/// `pp=2,tp=2`: of one replica, and no more than that.
std::string to_string(const ReplicaDegrees& degrees);

}  // namespace cotune
