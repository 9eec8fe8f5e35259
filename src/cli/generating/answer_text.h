#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "data/stop_texts.h"
#include "data/tokenizer/tokenizer.h"

namespace cotune {

/// The text of an answer while its tokens come: never a part of a character, nor of a text that is to end the answer.
class AnswerText {
 public:
  /// stop_tokens: end it too. They must outlive this.
  AnswerText(const Tokenizer& tokenizer, const StopTexts& stop, std::span<const int32_t> stop_tokens)
      : stream_(tokenizer.stream(true)), stop_(stop), stop_tokens_(stop_tokens) {}

  /// What can be shown now.
  std::string add(int32_t token) {
    is_at_stop_token_ = std::ranges::count(stop_tokens_, token) > 0;
    return keep(stop_.add(stream_.add(token)));
  }
  std::string finish() {
    std::string rest = stop_.add(stream_.finish());
    if (!stop_.found()) rest += stop_.finish();
    return keep(std::move(rest));
  }
  bool is_stopped() const { return is_at_stop_token_ || stop_.found(); }
  const std::string& text() const { return text_; }

 private:
  std::string keep(std::string piece) {
    text_ += piece;
    return piece;
  }

  Tokenizer::Stream stream_;
  StopTexts stop_;
  std::span<const int32_t> stop_tokens_;
  bool is_at_stop_token_ = false;
  std::string text_;
};

}  // namespace cotune
