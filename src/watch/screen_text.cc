#include "watch/screen_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/utf8.h"
#include "watch/column_tables.h"

namespace cotune {
namespace {

bool contains(std::span<const column_tables::CodePointRange> ranges, char32_t c) {
  const auto it = std::partition_point(ranges.begin(), ranges.end(), [c](const auto& range) { return range.last < c; });
  return it != ranges.end() && it->first <= c;
}

/// Where the first word ends, npos: with the text. A number and its unit of bytes are one word, where a line holds them.
size_t end_of_word(std::string_view text, size_t columns) {
  constexpr std::array<std::string_view, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.front() < '0' || text.front() > '9') return space;
  const std::string_view behind = text.substr(space + 1);
  const bool has_unit = std::any_of(units.begin(), units.end(), [&](std::string_view unit) { return behind.starts_with(unit); });
  const size_t end = text.find(' ', space + 1);
  return has_unit && columns_of(text.substr(0, end)) <= columns ? end : space;
}

/// The text's beginning that takes at most so many columns, marks of its last character included.
std::string_view beginning(std::string_view text, size_t columns) {
  size_t position = 0, taken = 0;
  while (position < text.size()) {
    size_t next = position;
    taken += columns_of(next_code_point(text, next));
    if (taken > columns) break;
    position = next;
  }
  return text.substr(0, position);
}

}  // namespace

size_t columns_of(char32_t code_point) {
  if (code_point < 0x300) return 1;
  if (contains(column_tables::no_columns, code_point)) return 0;
  return contains(column_tables::two_columns, code_point) ? 2 : 1;
}

std::string printable(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string result;
  for (size_t position = 0; position < valid.size();) {
    const size_t begin = position;
    const char32_t c = next_code_point(valid, position);
    // Marks that change the direction of what follows would reorder the columns of a table.
    const bool turns = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F;
    const bool controls = c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029;
    if (turns) continue;
    result += controls ? std::string_view(" ") : std::string_view(valid).substr(begin, position - begin);
  }
  return result;
}

size_t columns_of(std::string_view printable) {
  size_t columns = 0;
  for (size_t position = 0; position < printable.size();) columns += columns_of(next_code_point(printable, position));
  return columns;
}

std::string in_columns(std::string_view printable, size_t columns, Align align, bool unicode) {
  const size_t needed = columns_of(printable);
  if (needed > columns) {
    if (columns == 0) return "";
    std::string cut(beginning(printable, columns - 1));
    const size_t taken = columns_of(cut);
    cut += unicode ? "…" : ".";
    return cut.append(columns - taken - 1, ' ');
  }
  const std::string space(columns - needed, ' ');
  return align == Align::left ? std::string(printable) + space : space + std::string(printable);
}

std::string with_both_ends(std::string_view printable, size_t columns, bool unicode) {
  const size_t needed = columns_of(printable);
  if (needed <= columns) return std::string(printable);
  const std::string_view between = unicode ? "…" : "..";
  const size_t taken = unicode ? 1 : 2;
  if (columns <= taken) return std::string(beginning(printable, columns));
  const size_t end_columns = (columns - taken) / 2;
  std::string_view end = printable;
  while (columns_of(end) > end_columns) {
    size_t next = 0;
    next_code_point(end, next);
    end.remove_prefix(next);
  }
  return std::string(beginning(printable, columns - taken - end_columns)).append(between).append(end);
}

size_t distinct_width(const std::vector<std::string>& names, size_t least, size_t widest, bool unicode) {
  const size_t count = std::set(names.begin(), names.end()).size();
  for (size_t width = least; width < widest; ++width) {
    std::set<std::string> cut;
    for (const std::string& name : names) cut.insert(with_both_ends(name, width, unicode));
    if (cut.size() == count) return width;
  }
  return widest;
}

std::vector<std::string> wrapped(std::string_view printable, size_t columns) {
  columns = std::max<size_t>(columns, 2);
  std::vector<std::string> lines(1);
  while (!printable.empty()) {
    const size_t end = end_of_word(printable, columns);
    std::string_view word = printable.substr(0, end);
    printable.remove_prefix(end == std::string_view::npos ? printable.size() : end + 1);
    const size_t held = columns_of(lines.back());
    if (held > 0 && held + 1 + columns_of(word) > columns) lines.emplace_back();
    if (!lines.back().empty()) lines.back() += ' ';
    while (columns_of(word) > columns) {
      const std::string_view part = beginning(word, columns);
      lines.back() = part;
      lines.emplace_back();
      word.remove_prefix(part.size());
    }
    lines.back() += word;
  }
  return lines;
}

std::vector<std::string> wrapped(std::string_view printable, size_t columns, size_t most, bool unicode) {
  std::vector<std::string> lines = wrapped(printable, columns);
  if (lines.size() <= most) return lines;
  std::string rest = lines[most - 1];
  for (size_t i = most; i < lines.size(); ++i) rest += " " + lines[i];
  lines.resize(most);
  lines.back() = in_columns(rest, columns, Align::left, unicode);
  return lines;
}

std::string sparkline(std::span<const double> values, size_t columns, bool unicode) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite), [](double value) { return std::isfinite(value); });
  if (finite.size() < 2 || columns == 0) return "";
  const size_t count = std::min(columns, finite.size());
  std::vector<double> means(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * finite.size() / count, end = (i + 1) * finite.size() / count;
    for (size_t k = begin; k < end; ++k) means[i] += finite[k] / static_cast<double>(end - begin);
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  constexpr std::array<const char*, 8> blocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr std::array<const char*, 6> letters = {"_", ".", "-", "=", "*", "#"};
  const size_t levels = unicode ? blocks.size() : letters.size();
  std::string line;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0;
    const size_t level = std::min(levels - 1, static_cast<size_t>(share * static_cast<double>(levels)));
    line += unicode ? blocks[level] : letters[level];
  }
  return line;
}

std::string bar(double share, size_t columns, bool unicode) {
  const double cut = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const auto full = static_cast<size_t>(std::lround(cut * static_cast<double>(columns)));
  std::string line;
  for (size_t i = 0; i < columns; ++i) line += i < full ? (unicode ? "█" : "#") : (unicode ? "░" : "-");
  return line;
}

}  // namespace cotune
