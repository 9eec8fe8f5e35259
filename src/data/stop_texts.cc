#include "data/stop_texts.h"

#include <algorithm>
#include <utility>

namespace cotune {
namespace {

/// Bytes at the end of `text` that may be the beginning of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
  size_t count = std::min(text.size(), stop.size() - 1);
  while (count > 0 && text.substr(text.size() - count) != stop.substr(0, count)) --count;
  return count;
}

}  // namespace

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
  std::erase_if(texts_, [](const std::string& text) { return text.empty(); });
}

std::string StopTexts::add(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  size_t first_end = std::string::npos, begin = 0;
  for (const std::string& text : texts_) {
    const size_t at = held_.find(text);
    if (at == std::string::npos) continue;
    const size_t end = at + text.size();
    if (first_end == std::string::npos || end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
    }
  }
  found_ = first_end != std::string::npos;
  size_t kept = 0;
  for (const std::string& text : texts_) kept = std::max(kept, begun(held_, text));
  std::string certain = held_.substr(0, found_ ? begin : held_.size() - kept);
  held_.erase(0, found_ ? held_.size() : certain.size());
  return certain;
}

std::string StopTexts::finish() { return std::exchange(held_, ""); }

}  // namespace cotune
