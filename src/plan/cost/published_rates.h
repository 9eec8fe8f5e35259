/// LobRA's Table 3: tokens per device and second of ten configurations of Llama-2-7B on A100-40GB, by length.
#pragma once

#include <span>
#include <vector>

#include "plan/deployment/configuration.h"

namespace cotune {

/// The table as configurations; `chunk_tokens` is the longest length with a rate. Thousands are 1000. Between the listed
/// lengths the rate is interpolated, below the least it is the least's.
std::vector<Configuration> published_7b_configurations();

}  // namespace cotune
