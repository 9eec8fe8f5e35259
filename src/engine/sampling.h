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
  double min_p = 0;        ///< [0, 1]: only tokens with at least this share of the likeliest one's probability (Nguyen 2024); 0: no limit
  /// Above 0: logits of tokens that stand in the sequence are divided by it where they are positive and multiplied where they are
  /// negative, as transformers does (Keskar 2019); 1: none. Of greedy answers too.
  double repetition_penalty = 1;
  uint64_t seed = 0;
  bool operator==(const SamplingSettings&) const = default;
};

/// The token chosen from logits [vocabulary] for place `position` of a sequence: a pure function of its arguments, so that
/// an answer does not depend on what is generated beside it. Order: repetition_penalty, temperature, top_k, top_p, min_p, then a
/// draw in proportion to the probabilities left. Of equal logits the lower id counts as the likelier one.
/// sequence: the tokens so far, of which repetition_penalty speaks.
/// Nothing where a logit is NaN or +infinity, or none is finite.
std::optional<int32_t> sample_token(std::span<const double> logits, const SamplingSettings& settings, uint64_t position,
                                    std::span<const int32_t> sequence = {});

/// The seed of one of several answers: sample `sample` of prompt `prompt`, both from 0, of a run with `seed`. Which adapter answers does
/// not matter: with equal logits they draw the same.
uint64_t answer_seed(uint64_t seed, uint64_t prompt, uint64_t sample);

}  // namespace cotune
