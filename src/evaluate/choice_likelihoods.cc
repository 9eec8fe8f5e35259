#include "evaluate/choice_likelihoods.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace cotune {
namespace {

/// Tokens whose keys and values are in memory at once, of all adapters; a larger question goes alone.
constexpr size_t tokens_at_once = 8192;

size_t token_count(const TokenisedChoices& question) {
  size_t count = question.question.size();
  for (const auto& choice : question.choices) count += question.question.size() + choice.size();
  return count;
}

}  // namespace

std::optional<std::vector<std::vector<std::vector<Likelihood>>>> choice_likelihoods(Generator& generator, std::span<Adapter* const> adapters,
                                                                                    std::span<const TokenisedChoices> questions,
                                                                                    const std::function<bool()>& interrupted,
                                                                                    const std::function<void(size_t done)>& on_progress) {
  std::vector<std::vector<std::vector<Likelihood>>> results(adapters.size());
  for (size_t first = 0; first < questions.size();) {
    size_t last = first, tokens = 0;
    do {
      tokens += adapters.size() * token_count(questions[last]);
    } while (++last < questions.size() && tokens + adapters.size() * token_count(questions[last]) <= tokens_at_once);

    std::deque<CachedSequence> shared, own;
    std::deque<std::vector<int32_t>> inputs;
    std::vector<Generator::LabelledFeed> beginnings, endings;
    for (Adapter* adapter : adapters) {
      for (const TokenisedChoices& question : questions.subspan(first, last - first)) {
        COTUNE_CHECK(!question.question.empty());
        const auto begin = std::span(question.question).first(question.question.size() - 1);
        if (!begin.empty()) beginnings.push_back({{&shared.emplace_back(adapter), begin}, {}});
      }
    }
    if (!beginnings.empty() && !generator.likelihoods(beginnings, interrupted)) return std::nullopt;
    auto beginning = shared.begin();
    for (Adapter* adapter : adapters) {
      for (const TokenisedChoices& question : questions.subspan(first, last - first)) {
        const bool has_beginning = question.question.size() > 1;
        for (const std::vector<int32_t>& choice : question.choices) {
          COTUNE_CHECK(!choice.empty());
          own.push_back(has_beginning ? beginning->copy() : CachedSequence(adapter));
          std::vector<int32_t>& input = inputs.emplace_back(1, question.question.back());
          input.insert(input.end(), choice.begin(), choice.end() - 1);
          endings.push_back({{&own.back(), input}, choice});
        }
        if (has_beginning) *beginning++ = CachedSequence();
      }
    }
    const auto found = generator.likelihoods(endings, interrupted);
    if (!found) return std::nullopt;
    auto likelihood = found->begin();
    for (auto& result : results) {
      for (const TokenisedChoices& question : questions.subspan(first, last - first)) {
        const auto count = static_cast<std::ptrdiff_t>(question.choices.size());
        result.emplace_back(likelihood, likelihood + count);
        likelihood += count;
      }
    }
    first = last;
    if (on_progress) on_progress(first);
  }
  return results;
}

}  // namespace cotune
