#include "cli/terminal/status_line.h"

#include "base/abrupt_exit.h"
#include "base/quantity_text.h"
#include "watch/screen_text.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

/// As much as one line of the terminal holds: what wraps cannot be drawn over.
std::string in_one_line(const std::string& text) {
  const size_t columns = error_terminal_columns() - 1;
  return columns_of(text) > columns ? in_columns(text, columns, Align::left, shows_unicode()) : text;
}

}  // namespace

StatusLine::StatusLine() : is_terminal_(has_drawing_error_terminal()) {}

StatusLine::~StatusLine() {
  if (is_drawn_) write_to_standard_error("\r\x1b[K");
}

bool StatusLine::is_due() const {
  return Clock::now() - shown_at_ >= (is_terminal_ ? std::chrono::milliseconds(250) : std::chrono::seconds(30));
}

void StatusLine::show(const std::string& text) {
  shown_at_ = Clock::now();
  write_to_standard_error(is_terminal_ ? "\r" + in_one_line(text) + "\x1b[K" : text + "\n");
  is_drawn_ = is_terminal_;
}

void StatusLine::end_with(const std::string& text) {
  write_to_standard_error(is_terminal_ ? "\r" + text + "\x1b[K\n" : text + "\n");
  is_drawn_ = false;
}

double StatusLine::seconds() const { return std::chrono::duration<double>(Clock::now() - begun_at_).count(); }

std::string StatusLine::time_left(int64_t done, int64_t all) const {
  if (done <= 0) return "";
  return ", " + duration_text(seconds() / static_cast<double>(done) * static_cast<double>(all - done)) + " left";
}

}  // namespace cotune
