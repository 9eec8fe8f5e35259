#pragma once

#include <termios.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace cotune {

/// Whether standard output is a terminal that knows colours and how to move its cursor; whether standard error is.
bool has_drawing_terminal();
bool has_drawing_error_terminal();

/// Whether a live view can be drawn on it: standard input is the same terminal, and this process is in its foreground.
bool has_live_terminal();

/// Colours as the environment wishes (NO_COLOR), and characters beyond ASCII as the locale has them.
bool wants_colour();
bool shows_unicode();

/// (columns, rows) of standard output; 80 and 24 where it does not say.
std::pair<size_t, size_t> terminal_size();
/// Columns of standard error, at least 2; 80 where it does not say.
size_t error_terminal_columns();

/// The terminal of standard output as a screen to draw on: the alternate screen, without a cursor, and keys as they are pressed,
/// without an echo; where has_live_terminal(). Ctrl-C, Ctrl-\ and Ctrl-Z keep their meaning. While it lives, what is written to
/// standard error of a terminal is kept (messages()).
///
/// However the process ends but by SIGKILL, the terminal is as before: by the destructor, by exit(), by a signal that kills, by
/// whoever calls before_sudden_end(), by Ctrl-Z, after which `fg` brings the screen back. In the background it is left alone. One at a
/// time.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool has_keys() const;
  enum class Screen {
    away,  ///< this process is in the background
    anew,  ///< ours, and empty: at the start, and after `fg`
    held   ///< ours, as it was drawn
  };
  /// Takes the screen where it can be had.
  Screen screen();
  /// Nothing happens where the screen is away.
  void draw(std::string_view bytes);
  /// What was typed since the last call; "" where there is nothing.
  std::string keys();
  /// What was written to standard error since the last call.
  std::string messages();
};

/// A terminal that another process, which this one waits for, may draw on, as it is when this is made.
class TerminalOfAnother {
 public:
  TerminalOfAnother();
  /// Where that process was killed while it had the screen: as it was.
  void mend() const;

 private:
  bool is_there_ = false;
  termios was_{};
};

/// Gives the terminal back at once, where a Terminal lives. May be called by a handler of signals.
void give_terminal_back();

}  // namespace cotune
