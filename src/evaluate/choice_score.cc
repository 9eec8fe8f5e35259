#include "evaluate/choice_score.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace cotune {

ChoiceScore score_choices(std::span<const double> log_probabilities, std::span<const std::string> texts) {
  COTUNE_CHECK(log_probabilities.size() == texts.size() && !texts.empty());
  std::vector<double> per_byte;
  for (size_t i = 0; i < texts.size(); ++i) per_byte.push_back(log_probabilities[i] / static_cast<double>(std::max<size_t>(texts[i].size(), 1)));
  return {static_cast<size_t>(std::ranges::max_element(log_probabilities) - log_probabilities.begin()),
          static_cast<size_t>(std::ranges::max_element(per_byte) - per_byte.begin())};
}

}  // namespace cotune
