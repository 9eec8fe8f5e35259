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

  /// Nothing where input has ended, or the program is asked to end. What Ctrl-C broke off is forgotten: "".
  std::optional<std::string> next();
  /// Input ended because of a signal: SIGTERM or SIGHUP; of a pipe, where there is nothing to go on with, Ctrl-C too.
  bool was_interrupted() const { return was_interrupted_; }

 private:
  std::optional<std::string> line(const char* prompt);

  bool shows_prompt_;
  std::string read_;  ///< and not given yet
  bool was_interrupted_ = false;
};

}  // namespace cotune
