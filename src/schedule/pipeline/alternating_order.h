/// The order of a rank that takes forwards and backwards in turn: 1F1B and its interleaved form.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/pipeline/one_f_one_b.h"

namespace cotune {

/// A unit on a stage.
struct UnitOnStage {
  int32_t unit = 0;
  int32_t stage = 0;
  auto operator<=>(const UnitOnStage&) const = default;
};

/// What a rank has to do, in order, and how many forwards it takes ahead.
struct AlternatingRank {
  std::vector<UnitOnStage> forwards;
  std::vector<UnitOnStage> backwards;  ///< the same set
  int64_t ahead = 0;
};

/// Units by batch: of each unit, the first unit of its batch (adjacent units of one hybrid task and round).
std::vector<int32_t> batch_starts(const PipelineWork& work);

/// A forward when at most `ahead` units lie between forward and backward and nothing it needs is to come,
/// else a backward. A forward needs the backwards of its jobs' previous step on its stage, and under flush
/// those of all earlier batches. Backwards below a microbatch's lowest stage are left out.
std::vector<Compute> alternate(const PipelineWork& work, const AlternatingRank& rank, BatchBoundary boundary);

}  // namespace cotune
