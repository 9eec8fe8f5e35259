#include "cli/chat_input.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "cli/interruption.h"

namespace cotune {
namespace {

constexpr std::string_view quotes = "\"\"\"";

}  // namespace

std::optional<std::string> ChatInput::line(const char* prompt) {
  if (shows_prompt_) {
    fmt::print("{}", prompt);
    std::fflush(stdout);
  }
  char* line = nullptr;
  size_t room = 0;
  const ssize_t length = ::getline(&line, &room, stdin);
  std::optional<std::string> text;
  if (length >= 0) text.emplace(line, static_cast<size_t>(length));
  std::free(line);
  was_interrupted_ = interrupted();
  if (!text) std::clearerr(stdin);
  if (text && text->ends_with('\n')) text->pop_back();
  if (text && text->ends_with('\r')) text->pop_back();
  return text;
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
  if (text || !was_interrupted_ || !shows_prompt_) return text;
  was_interrupted_ = false;
  fmt::print("\n(Ctrl-D ends the program)\n");
  return "";
}

}  // namespace cotune
