/// Ranks of a run in words.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "control/run_view.h"

namespace cotune {

/// `0-7,16-23`.
std::string layers_text(const RankView& rank);

/// How busy they are, each with its layers, and its host where there are several, in at most so many columns: without the layers where these do not
/// fit, else the least and most busy ones alone. "" where there is none.
std::string rank_line(std::span<const RankView> ranks, size_t columns);

}  // namespace cotune
