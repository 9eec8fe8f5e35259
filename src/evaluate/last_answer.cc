#include "evaluate/last_answer.h"

namespace cotune {

std::optional<LastAnswer> last_answer_of(const Dataset& data, int64_t example) {
  const std::span<const int32_t> tokens = data.tokens(example);
  const std::span<const uint8_t> learned = data.learned(example);
  size_t end = tokens.size();
  while (end > 0 && learned[end - 1] == 0) --end;
  size_t begin = end;
  while (begin > 0 && learned[begin - 1] != 0) --begin;
  if (begin == end || begin == 0) return std::nullopt;
  return LastAnswer{tokens.first(begin), tokens.subspan(begin, end - begin)};
}

}  // namespace cotune
