#include "evaluate/choice_score.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace cotune {
namespace {

size_t code_point_count(const std::string& utf8) {
  return static_cast<size_t>(std::ranges::count_if(utf8, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

}  // namespace


ChoiceScore score_choices(std::span<const double> log_probabilities, std::span<const std::string> texts) {
  COTUNE_CHECK(log_probabilities.size() == texts.size() && !texts.empty());
  std::vector<double> per_character;
  for (size_t i = 0; i < texts.size(); ++i) {
    per_character.push_back(log_probabilities[i] / static_cast<double>(std::max<size_t>(code_point_count(texts[i]), 1)));
  }
  return {static_cast<size_t>(std::ranges::max_element(log_probabilities) - log_probabilities.begin()),
          static_cast<size_t>(std::ranges::max_element(per_character) - per_character.begin())};
}

}  // namespace cotune
