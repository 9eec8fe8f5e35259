/// How a run's ranks divide the model, as users write it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "jobs/job.h"

namespace cotune {

/// pipeline · tensor ranks: so many stages of layers, each of which so many ranks divide.
struct Parallel {
  int64_t pipeline = 1;
  int64_t tensor = 1;
  int64_t ranks() const { return pipeline * tensor; }
  bool operator==(const Parallel&) const = default;
};

inline constexpr int64_t most_ranks = 64;

/// `pp=2,tp=2`: either or both, in any order, whole numbers from 1, at most most_ranks in all. Nothing where the text is none of
/// these.
std::optional<Parallel> parse_parallel(std::string_view text);

/// Of a run: under `auto` every rank is a stage.
Parallel parallel_of(const RunSpec& run);

}  // namespace cotune
