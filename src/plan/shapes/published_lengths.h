/// Lengths that the papers train on. LobRA's Table 4 has mean and skewness of its data sets, no histogram; three families of
/// distributions that have these stand in for each: `xsum-lognormal`, `xsum-gamma`, `xsum-weibull`. What a plan depends on is the
/// tail, so results are shown for all three. MuxTune and mLoRA pad or cut the rows of a data set to one length: `muxtune-sst2`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/shapes/length_histogram.h"

namespace cotune {

/// One row of Table 4.
struct PublishedDataset {
  std::string_view name;
  double mean = 0;      ///< tokens
  double skewness = 0;
  int64_t batch = 0;    ///< sequences per step
  int64_t longest = 0;  ///< tokens: the class that Table 7's plans imply; longer examples count as this long
};
std::span<const PublishedDataset> published_datasets();

enum class LengthFamily { lognormal, gamma, weibull };
inline constexpr LengthFamily all_length_families[] = {LengthFamily::lognormal, LengthFamily::gamma, LengthFamily::weibull};
std::string_view to_string(LengthFamily family);

/// The distribution of the family with that mean (> 0) and skewness (> 0), in steps of `step` tokens up to `longest`; what
/// is longer counts as `longest`. Weights sum to 1; bins below 1e-9 are left out, the longest never.
///   lognormal   skewness = (w + 2)·√(w − 1), w = e^(σ²);  mean = e^(μ + σ²/2)
///   gamma       skewness = 2/√k;  mean = k·θ
///   weibull     skewness by its moments Γ(1 + i/k);  mean = λ·Γ(1 + 1/k)
LengthHistogram fitted_lengths(LengthFamily family, double mean, double skewness, int64_t longest, int64_t step = 16);

/// By name. `DATASET-FAMILY`; or one length: `muxtune-sst2` is 64 tokens, by the text of MuxTune's Fig. 20(a), `muxtune-openbookqa` and
/// `muxtune-rte` are 128 and 256 (Table 2; stand-ins, for they are not readable in our copy of the paper), `mlora-512` is what every row of
/// GSM8K counts as in mLoRA. Throws UserError that lists the names for an unknown one.
LengthHistogram published_lengths(std::string_view name);
std::vector<std::string> published_length_names();

}  // namespace cotune
