#include "evaluate/choice_likelihoods.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace cotune {
namespace {

/// Tokens whose keys and values are in memory at once, of all adapters, however much of it there is.
constexpr int64_t tokens_at_once = 8192;

/// A question to one adapter, and which of its choices.
struct Part {
  size_t adapter = 0, question = 0, first_choice = 0, last_choice = 0;
};

/// Hands out all questions to all adapters, in parts that fit in memory together.
class Parts {
 public:
  Parts(size_t adapter_count, std::span<const TokenizedChoices> questions, int64_t tokens)
      : adapter_count_(adapter_count), questions_(questions), tokens_(tokens) {}

  /// Nothing at the end.
  std::vector<Part> next() {
    std::vector<Part> parts;
    int64_t left = tokens_;
    while (question_ < questions_.size()) {
      const TokenizedChoices& question = questions_[question_];
      const auto length = static_cast<int64_t>(question.question.size());
      left -= length;
      size_t last = choice_;
      while (last < question.choices.size()) {
        const int64_t own = length + static_cast<int64_t>(question.choices[last].size());
        if (left < own && !(parts.empty() && last == choice_)) break;
        left -= own;
        ++last;
      }
      const bool is_whole = last == question.choices.size();
      if (!parts.empty() && !is_whole) break;  // more of them fit alone
      parts.push_back({adapter_, question_, choice_, last});
      choice_ = is_whole ? 0 : last;
      if (!is_whole) break;
      if (++adapter_ < adapter_count_) continue;
      adapter_ = 0;
      ++question_;
    }
    return parts;
  }
  /// Whose choices have all been handed out to all adapters.
  size_t questions_done() const { return question_; }

 private:
  size_t adapter_count_;
  std::span<const TokenizedChoices> questions_;
  int64_t tokens_;
  size_t adapter_ = 0, question_ = 0, choice_ = 0;  ///< of the next part
};

}  // namespace

std::optional<std::vector<std::vector<std::vector<Likelihood>>>> choice_likelihoods(
    Generator& generator, std::span<Adapter* const> adapters, std::span<const TokenizedChoices> questions, int64_t bytes,
    const std::function<bool()>& interrupted, const std::function<void(size_t done)>& on_progress) {
  std::vector<std::vector<std::vector<Likelihood>>> results(adapters.size(), std::vector<std::vector<Likelihood>>(questions.size()));
  Parts all(adapters.size(), questions, std::min(tokens_at_once, bytes / cached_bytes_per_token(generator.backbone())));
  for (std::vector<Part> parts = all.next(); !parts.empty(); parts = all.next()) {
    std::deque<CachedSequence> shared, own;
    std::deque<std::vector<int32_t>> inputs;
    std::vector<Generator::LabelledFeed> beginnings, endings;
    for (const Part& part : parts) {
      const TokenizedChoices& question = questions[part.question];
      COTUNE_CHECK(!question.question.empty());
      CachedSequence& sequence = shared.emplace_back(adapters[part.adapter]);
      const auto begin = std::span(question.question).first(question.question.size() - 1);
      if (!begin.empty()) beginnings.push_back({{&sequence, begin}, {}});
    }
    if (!beginnings.empty() && !generator.likelihoods(beginnings, interrupted)) return std::nullopt;
    for (size_t i = 0; i < parts.size(); ++i) {
      const TokenizedChoices& question = questions[parts[i].question];
      for (size_t k = parts[i].first_choice; k < parts[i].last_choice; ++k) {
        const std::vector<int32_t>& choice = question.choices[k];
        COTUNE_CHECK(!choice.empty());
        own.push_back(shared[i].copy(static_cast<int64_t>(choice.size())));
        std::vector<int32_t>& input = inputs.emplace_back(1, question.question.back());
        input.insert(input.end(), choice.begin(), choice.end() - 1);
        endings.push_back({{&own.back(), input}, choice});
      }
      shared[i] = CachedSequence();
    }
    const auto found = generator.likelihoods(endings, interrupted);
    if (!found) return std::nullopt;
    auto likelihood = found->begin();
    for (const Part& part : parts) {
      std::vector<Likelihood>& result = results[part.adapter][part.question];
      const auto count = static_cast<std::ptrdiff_t>(part.last_choice - part.first_choice);
      result.insert(result.end(), likelihood, likelihood + count);
      likelihood += count;
    }
    if (on_progress) on_progress(all.questions_done());
  }
  return results;
}

}  // namespace cotune
