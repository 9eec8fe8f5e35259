#include "cli/generating/chat_input.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "cli/terminal/interruption.h"

namespace cotune {
namespace {

constexpr std::string_view quotes = "\"\"\"";

/// Of a terminal whose cursor cannot be moved: a line without what its arrow and function keys send: ESC [ … letter, ESC O letter.
std::string without_keys(const std::string& line) {
  std::string text;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      text += line[i];
      continue;
    }
    if (i + 1 < line.size() && line[i + 1] == 'O') {
      i += 2;
    } else if (i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < '@' || line[i] > '~')) ++i;
    }
  }
  return text;
}

}  // namespace

ChatInput::ChatInput(bool shows_prompt, std::filesystem::path history) : shows_prompt_(shows_prompt) {
  if (!shows_prompt || !LineEditor::is_possible()) return;
  editor_ = std::make_unique<LineEditor>();
  history_.emplace(std::move(history));
  for (const std::string& text : history_->texts()) editor_->remember(text);
}

std::optional<std::string> ChatInput::line(const char* prompt) { return editor_ != nullptr ? edited_line(prompt) : read_line(prompt); }

std::optional<std::string> ChatInput::edited_line(const char* prompt) {
  std::optional<std::string> text = editor_->read(prompt);
  was_interrupted_ = !text && interrupted();
  return text;
}

void ChatInput::remember(const std::string& text) {
  if (editor_ == nullptr || text.empty()) return;
  editor_->remember(text);
  try {
    history_->add(text);
  } catch (const SystemError& error) {
    write_to_standard_error(fmt::format("{}; what is typed is not kept for later chats\n", error.what()));
  }
}

std::optional<std::string> ChatInput::read_line(const char* prompt) {
  if (shows_prompt_) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }
  size_t end = std::string::npos;
  while ((end = read_.find('\n')) == std::string::npos) {
    was_interrupted_ = !wait_for_input(STDIN_FILENO);
    if (was_interrupted_) {
      read_.clear();
      return std::nullopt;
    }
    char buffer[1 << 12];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0 && read_.empty()) return std::nullopt;
    if (count <= 0) break;
    read_.append(buffer, static_cast<size_t>(count));
  }
  std::string text = read_.substr(0, end);
  read_.erase(0, end == std::string::npos ? end : end + 1);
  if (text.ends_with('\r')) text.pop_back();
  return shows_prompt_ ? without_keys(text) : text;
}

std::optional<std::string> ChatInput::next() {
  std::optional<std::string> text = line("> ");
  if (text && text->starts_with(quotes)) {
    text->erase(0, quotes.size());
    while (!text->ends_with(quotes)) {
      const std::optional<std::string> more = line("... ");
      if (!more) {
        if (was_interrupted_) text.reset();
        break;
      }
      *text += (text->empty() ? "" : "\n") + *more;
    }
    if (text && text->ends_with(quotes)) text->erase(text->size() - quotes.size());
    if (text && text->ends_with('\n')) text->pop_back();
  } else {
    while (text && text->ends_with('\\')) {
      const std::optional<std::string> more = line("... ");
      if (!more && was_interrupted_) text.reset();
      if (!more) break;
      text->back() = '\n';
      *text += *more;
    }
  }
  if (text) remember(*text);
  if (text || !was_interrupted_ || !shows_prompt_ || asked_to_end()) return text;
  was_interrupted_ = false;
  fmt::print("\n(Ctrl-D ends the program)\n");
  return "";
}

}  // namespace cotune
