/// How the rows of a grouped shrink are dealt to threads: in proportion to what they cost, each factor's rows
/// together (MuxTune §4 deals thread blocks to tasks that way). Pure; the cuts never change a result's bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// What of one group decides its cost.
struct ShrinkShape {
  RowRange rows;
  int64_t row_cost = 0;  ///< of one row: panels of the factor, 32 columns each, or those by what one takes (vectors/expand.cc); 0: nothing to do
};

/// Rows of one group that are multiplied together; heights of its one or two tiles.
struct ShrinkStrip {
  int64_t group = 0;
  int64_t row = 0;
  int height[2] = {0, 0};
  int64_t cost = 0;  ///< rows · row_cost
};

/// Strips in the order of the groups, so that the strips that read one factor follow one another, cut into
/// parts.
struct ShrinkPlan {
  std::vector<ShrinkStrip> strips;
  std::vector<int64_t> part_begins;  ///< [parts + 1]: part p has the strips from [p] to [p + 1]

  int64_t parts() const { return static_cast<int64_t>(part_begins.size()) - 1; }
  int64_t load(int64_t part) const;  ///< Σ cost
};

/// min(threads, strips) parts of at least one strip each; none costs more than the mean and the dearest strip
/// together. Fills `plan`, keeping its memory.
void plan_shrink(std::span<const ShrinkShape> groups, int tile_rows, int tiles_per_strip, int64_t threads,
                 ShrinkPlan& plan);

}  // namespace cotune::kernels
