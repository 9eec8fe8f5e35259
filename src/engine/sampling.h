/// How the next token is chosen from a model's logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace cotune {

struct SamplingSettings {
  double temperature = 0;  ///< 0: always the likeliest token (greedy); otherwise logits are divided by it
  int64_t top_k = 0;       ///< only the k likeliest tokens; 0: no limit
  double top_p = 1;        ///< (0, 1]: only the likeliest tokens, as few as together have this probability (Holtzman 2020)
  uint64_t seed = 0;
};

/// The token chosen from logits [vocabulary] for place `position` of a sequence: a pure function of its arguments, so that
/// an answer does not depend on what is generated beside it. Order: temperature, top_k, top_p, then a draw in proportion
/// to the probabilities left. Of equal logits the lower id counts as the likelier one.
/// Nothing where a logit is NaN or +infinity, or none is finite.
std::optional<int32_t> sample_token(std::span<const double> logits, const SamplingSettings& settings, uint64_t position);

}  // namespace cotune
