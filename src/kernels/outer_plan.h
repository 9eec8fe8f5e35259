/// How the gradients of a grouped outer product are dealt to threads, in proportion to what they cost (MuxTune §4). Pure; the cuts never
/// change a result's bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// What one thread computes: these panels of right's columns, 32 each, of these gradients. RowRange here counts either.
struct OuterShare {
  RowRange panels, gradients;
};

/// A panel of a gradient, with all atoms that add to it, is the unit. Units follow one another panel by panel, and parts are runs of them,
/// so that a part arranges the columns of hardly more panels than it has to itself. A border lies between two panels where that moves no
/// more than a sixteenth of the mean.
struct OuterPlan {
  std::vector<OuterShare> shares;    ///< of one part at most three: the end of a panel, whole panels, the beginning of a panel
  std::vector<int64_t> part_begins;  ///< [parts + 1]: part p has the shares from [p] to [p + 1]

  int64_t parts() const { return static_cast<int64_t>(part_begins.size()) - 1; }
  int64_t load(int64_t part, std::span<const int64_t> costs) const;
};

/// costs: of each gradient, per panel. min(threads, units) parts; none costs more than the mean, the dearest unit and an eighth of the
/// mean together. Fills `plan`, keeping its memory.
void plan_outer(std::span<const int64_t> costs, int64_t panels, int64_t threads, OuterPlan& plan);

}  // namespace cotune::kernels
