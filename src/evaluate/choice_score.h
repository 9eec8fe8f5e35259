/// Multiple choice by likelihood, as EleutherAI's lm-evaluation-harness scores it.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace cotune {

struct ChoiceScore {
  size_t likeliest = 0;            ///< the choice with the highest log probability; of equal ones the first
  size_t likeliest_by_length = 0;  ///< with the highest log probability per character (code point) of its text
};

/// log_probabilities: of each choice's tokens behind the question. texts: of the choices, without what joins them to the question.
ChoiceScore score_choices(std::span<const double> log_probabilities, std::span<const std::string> texts);

}  // namespace cotune
