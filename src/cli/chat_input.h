#pragma once

#include <optional>
#include <string>

namespace cotune {

/// What a chat is told, from standard input: a line; lines that end in a backslash and the one after them; or all lines between `"""` and
/// `"""`.
class ChatInput {
 public:
  /// shows_prompt: on a terminal.
  explicit ChatInput(bool shows_prompt) : shows_prompt_(shows_prompt) {}

  /// Nothing where input has ended. What Ctrl-C broke off is forgotten: "".
  std::optional<std::string> next();
  /// Input ended because of Ctrl-C: of a pipe, where there is nothing to go on with.
  bool was_interrupted() const { return was_interrupted_; }

 private:
  std::optional<std::string> line(const char* prompt);

  bool shows_prompt_;
  bool was_interrupted_ = false;
};

}  // namespace cotune
