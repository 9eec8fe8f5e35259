#pragma once

#include <histedit.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cotune {

/// Text that is edited at a terminal as it is typed, by libedit: arrow keys, Home and End, the keys of readline (Ctrl-A, E, K, U, W, Y,
/// Alt-B and F, …), earlier texts by Up and Down and by searching (Ctrl-R), and what the user's ~/.editrc says. What is pasted is one
/// text, its lines are lines of the text. Texts are UTF-8, whatever the locale.
///
/// The terminal is as before when read() returns, while the program is stopped (Ctrl-Z), and where a signal ends it.
class LineEditor {
 public:
  /// Whether standard input and output are terminals on which a cursor can be moved.
  static bool is_possible();

  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// Nothing where input has ended (Ctrl-D on an empty line), or a signal interrupted it (interrupted()).
  std::optional<std::string> read(const std::string& prompt);
  /// For Up and Ctrl-R.
  void remember(const std::string& text);

 private:
  static int next_character(EditLine* line, wchar_t* to);
  static wchar_t* prompt_of(EditLine* line);
  static unsigned char take_paste(EditLine* line, int key);

  void bind_keys();
  void take_what_was_typed_ahead();
  /// -1: there is none.
  int next_byte();

  EditLine* line_ = nullptr;
  HistoryW* history_ = nullptr;
  std::wstring prompt_;
  std::string bytes_;     ///< read, and not typed yet
  bool has_ended_ = false;
};

}  // namespace cotune
