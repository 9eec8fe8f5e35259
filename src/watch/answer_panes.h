/// Several answers in one terminal, as they come.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace cotune {

struct AnswerPane {
  std::string name;
  std::string text;      ///< so far
  bool has_ended = false;
};

/// The screen's lines, at most `rows`, each at most `columns` wide. Side by side where every answer can have at least 34 columns, else one
/// under another; of each its name and, of its text, what came last and has room. Where there is no room for all, a line says how many
/// are not shown.
std::vector<std::string> answer_panes(std::span<const AnswerPane> answers, size_t columns, size_t rows, bool colour, bool unicode);

}  // namespace cotune
