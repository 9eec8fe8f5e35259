#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/generating/chat_history.h"
#include "cli/terminal/line_editor.h"

namespace cotune {

/// What a chat is told, from standard input: a line; lines that end in a backslash and the one after them; or all lines between `"""` and
/// `"""`. On a terminal a line is edited (LineEditor), and may hold several that were pasted.
class ChatInput {
 public:
  /// shows_prompt: on a terminal. history: where what is typed there is kept; empty: for as long as this lives.
  ChatInput(bool shows_prompt, std::filesystem::path history);

  /// Nothing where input has ended, or the program is asked to end. What Ctrl-C broke off is forgotten: "".
  std::optional<std::string> next();
  /// Input ended because of a signal: SIGTERM or SIGHUP; of a pipe, where there is nothing to go on with, Ctrl-C too.
  bool was_interrupted() const { return was_interrupted_; }

 private:
  std::optional<std::string> line(const char* prompt);
  std::optional<std::string> edited_line(const char* prompt);
  std::optional<std::string> read_line(const char* prompt);
  void remember(const std::string& text);

  bool shows_prompt_;
  std::string read_;  ///< and not given yet
  bool was_interrupted_ = false;
  std::unique_ptr<LineEditor> editor_;  ///< none of a pipe, or a terminal without a cursor
  std::optional<ChatHistory> history_;
};

}  // namespace cotune
