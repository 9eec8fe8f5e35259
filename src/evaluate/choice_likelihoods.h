/// Log probabilities of choices behind a question.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/generation.h"

namespace cotune {

/// A question as tokens, and the tokens of each choice behind it. All have at least one.
struct TokenizedChoices {
  std::vector<int32_t> question;
  std::vector<std::vector<int32_t>> choices;
};

/// For every adapter (nullptr: the model alone) and question the likelihood of each choice: [adapter][question][choice]. A question goes
/// through the model once per adapter; its choices go on from its keys and values, those of several questions and adapters together.
/// bytes: that keys and values may take. Where those of a question and all its choices do not fit for every adapter, adapters follow one
/// another; where they do not for one, choices do. A question with one choice is in memory in any case.
/// Nothing where `interrupted` said so. on_progress: questions that are done.
std::optional<std::vector<std::vector<std::vector<Likelihood>>>> choice_likelihoods(
    Generator& generator, std::span<Adapter* const> adapters, std::span<const TokenizedChoices> questions, int64_t bytes,
    const std::function<bool()>& interrupted = {}, const std::function<void(size_t done)>& on_progress = {});

}  // namespace cotune
