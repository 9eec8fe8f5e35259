#include "data/records/unread_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace cotune {

std::string advice_for_fields(const std::vector<std::string>& found) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> pairs = {{{"question", "answer"},
                                                                                         {"input", "output"},
                                                                                         {"question", "response"},
                                                                                         {"query", "response"},
                                                                                         {"prompt", "response"},
                                                                                         {"problem", "solution"},
                                                                                         {"instruction", "response"}}};
  const auto holds = [&](std::string_view name) { return std::find(found.begin(), found.end(), name) != found.end(); };
  for (const auto& [asked, answered] : pairs) {
    if (!holds(asked) || !holds(answered)) continue;
    if (asked == "instruction" && holds("context")) {
      return fmt::format("; instruction, context and {} are accepted under the names instruction, input and output", answered);
    }
    return fmt::format("; {0} and {1} are accepted under the names prompt and completion (text behind text), or as a chat: {{\"messages\": "
                       "[{{\"role\": \"user\", \"content\": {0}}}, {{\"role\": \"assistant\", \"content\": {1}}}]}}",
                       asked, answered);
  }
  return "";
}

}  // namespace cotune
