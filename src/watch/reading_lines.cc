#include "watch/reading_lines.h"

#include <fmt/format.h>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr double silent_s = 2, between_drawings_s = 0.25, between_lines_s = 10;
constexpr const char* clear_line = "\r\x1b[K";

double seconds_between(ReadingLines::Time begin, ReadingLines::Time end) { return std::chrono::duration<double>(end - begin).count(); }

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace

std::string reading_line(const ReadingProgress& progress, double seconds) {
  std::string text = "tokenizing: ";
  if (progress.part >= 0) text += fmt::format("{:.0f}%, ", 100 * progress.part);
  if (progress.part > 0.01) text += fmt::format("{} left, ", duration_text(seconds * (1 - progress.part) / progress.part));
  if (seconds > 0) text += fmt::format("{} tokens/s, ", grouped(static_cast<int64_t>(static_cast<double>(progress.tokens) / seconds)));
  return printable(text + fmt::format("{} {} of {}", grouped(progress.records), progress.records == 1 ? "record" : "records", progress.file));
}

ReadingLines::~ReadingLines() {
  if (has_line_) write_(clear_line);
}

void ReadingLines::show(const ReadingProgress& progress, Time now) {
  if (!begin_) begin_ = now;
  if (file_ != progress.file) {
    file_ = progress.file;
    file_begin_ = now;
  }
  if (seconds_between(*begin_, now) < silent_s) return;
  if (shown_ && seconds_between(*shown_, now) < (columns_ > 0 ? between_drawings_s : between_lines_s)) return;
  shown_ = now;
  const std::string line = reading_line(progress, seconds_between(file_begin_, now));
  if (columns_ == 0) return write_(line + "\n");
  const auto columns = static_cast<size_t>(columns_ - 1);
  write_(clear_line + (columns_of(line) > columns ? in_columns(line, columns, Align::left, unicode_) : line));
  has_line_ = true;
}

}  // namespace cotune
