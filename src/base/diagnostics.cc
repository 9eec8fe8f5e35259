#include "base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace cotune {

std::string Diagnostic::to_string() const {
  std::string place = file;
  if (line > 0) place += fmt::format("{}{}", place.empty() ? "line " : ":", line);
  if (!field.empty()) place += fmt::format("{}{}", place.empty() ? "" : ": ", field);
  return place.empty() ? message : place + ": " + message;
}

void Diagnostics::add(std::string file, int line, std::string field, std::string message) {
  items_.push_back({std::move(file), line, std::move(field), std::move(message)});
}

void Diagnostics::add(const UserError& error) {
  if (const auto* several = dynamic_cast<const UserMistakes*>(&error)) {
    items_.insert(items_.end(), several->items().begin(), several->items().end());
  } else {
    add("", 0, "", error.what());
  }
}

std::vector<Diagnostic> Diagnostics::in_order() const {
  std::map<std::string, size_t> first;
  std::set<std::string> seen;
  std::vector<Diagnostic> sorted;
  for (const Diagnostic& item : items_) {
    first.emplace(item.file, first.size());
    if (seen.insert(item.to_string()).second) sorted.push_back(item);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Diagnostic& a, const Diagnostic& b) {
    return std::pair(first.at(a.file), a.line) < std::pair(first.at(b.file), b.line);
  });
  return sorted;
}

void Diagnostics::throw_if_any() const {
  if (items_.empty()) return;
  std::vector<Diagnostic> sorted = in_order();
  std::string text;
  for (const Diagnostic& item : sorted) text += (text.empty() ? "" : "\n") + item.to_string();
  throw UserMistakes(text, std::move(sorted));
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substituted = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace cotune
