#include "watch/answer_panes.h"

#include <fmt/format.h>

#include <algorithm>

#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr size_t narrowest = 34, gap = 3, lowest = 3;

std::vector<std::string> lines_of(const std::string& text, size_t columns) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    for (std::string& line : wrapped(printable(text.substr(begin, end - begin)), columns)) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

std::string heading(const AnswerPane& answer, size_t columns, bool colour, bool unicode) {
  const std::string mark = answer.has_ended ? "" : unicode ? " …" : " ...";
  std::string line = in_columns(printable(answer.name) + mark, columns, Align::left, unicode);
  return colour ? "\x1b[1m" + line + "\x1b[0m" : line;
}

/// Exactly `columns` wide; fewer than `rows` lines where the text is short.
std::vector<std::string> pane(const AnswerPane& answer, size_t columns, size_t rows, bool colour, bool unicode) {
  std::vector<std::string> lines = {heading(answer, columns, colour, unicode)};
  const std::vector<std::string> text = lines_of(answer.text, columns);
  const size_t shown = std::min(text.size(), rows - 1);
  for (size_t i = text.size() - shown; i < text.size(); ++i) lines.push_back(in_columns(text[i], columns, Align::left, unicode));
  return lines;
}

/// Rows for each of answers that stand one under another: equal parts, but what some do not need the others have.
std::vector<size_t> shared_rows(std::span<const AnswerPane> answers, size_t columns, size_t rows) {
  std::vector<size_t> needed, heights(answers.size(), 0);
  for (const AnswerPane& answer : answers) needed.push_back(1 + lines_of(answer.text, columns).size());
  for (bool changed = true; rows > 0 && changed;) {
    changed = false;
    for (size_t i = 0; i < answers.size() && rows > 0; ++i) {
      if (heights[i] >= needed[i]) continue;
      ++heights[i];
      --rows;
      changed = true;
    }
  }
  return heights;
}

std::vector<std::string> side_by_side(std::span<const AnswerPane> answers, size_t width, size_t rows, bool colour, bool unicode) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::vector<std::string> own = pane(answers[i], width, rows, colour, unicode);
    for (size_t row = 0; row < own.size(); ++row) {
      if (row == lines.size()) lines.emplace_back(i * (width + gap), ' ');
      lines[row] += own[row] + std::string(gap, ' ');
    }
    for (size_t row = own.size(); row < lines.size(); ++row) lines[row].append(width + gap, ' ');
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

}  // namespace

std::vector<std::string> answer_panes(std::span<const AnswerPane> answers, size_t columns, size_t rows, bool colour, bool unicode) {
  columns = std::max<size_t>(columns, 2);
  rows = std::max<size_t>(rows, 1);
  if (answers.empty()) return {};
  const size_t width = (columns + gap) / answers.size();
  if (answers.size() > 1 && width >= narrowest + gap) return side_by_side(answers, width - gap, rows, colour, unicode);
  size_t shown = answers.size();
  if (rows < shown * lowest) shown = std::max<size_t>(1, (rows - 1) / lowest);
  const size_t hidden = answers.size() - shown;
  const std::vector<size_t> heights = shared_rows(answers.first(shown), columns, std::max<size_t>(rows - (hidden > 0 && rows > 1), 1));
  std::vector<std::string> lines;
  for (size_t i = 0; i < shown; ++i) {
    for (std::string& line : pane(answers[i], columns, heights[i], colour, unicode)) {
      line.erase(line.find_last_not_of(' ') + 1);
      lines.push_back(std::move(line));
    }
  }
  if (hidden > 0 && rows > 1) lines.push_back(in_columns(fmt::format("and {} more", hidden), columns, Align::left, unicode));
  return lines;
}

}  // namespace cotune
