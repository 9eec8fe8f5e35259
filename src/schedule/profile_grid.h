#pragma once

#include <vector>

#include "schedule/profile.h"

namespace cotune {

/// The canonical shapes that `cotune profile` measures: token counts from 24 to 1,000 in one microbatch, rows from 16
/// tokens to chains over three microbatches, each method at several widths, attached to all projections or some, with
/// and without dropout, one to eight jobs, a quarter to all tokens labelled. Small enough that going over all of them
/// takes seconds (about 10,000 tokens). Rows beyond the model's context are cut into rows of its length.
std::vector<ProfiledShape> canonical_shapes(int64_t context_length);

}  // namespace cotune
