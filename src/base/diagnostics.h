/// Collects every mistake in the user's input, so that all are reported at once.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace cotune {

/// One mistake: `jobs.yaml:14: jobs[2].adapter.r: must be between 1 and 512, got 0`.
struct Diagnostic {
  std::string file;
  int line = 0;  ///< 1-based; 0 where the place has no line (a command-line option, a directory).
  std::string field;
  std::string message;

  std::string to_string() const;
  bool operator==(const Diagnostic&) const = default;
};

/// Several mistakes in one exception. Its text has one line per mistake.
class UserMistakes : public UserError {
 public:
  UserMistakes(const std::string& text, std::vector<Diagnostic> items) : UserError(text), items_(std::move(items)) {}
  const std::vector<Diagnostic>& items() const { return items_; }

 private:
  std::vector<Diagnostic> items_;
};

class Diagnostics {
 public:
  void add(std::string file, int line, std::string field, std::string message);
  /// Every mistake of UserMistakes; of another UserError its text, without a place.
  void add(const UserError& error);
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  const std::vector<Diagnostic>& items() const { return items_; }

  /// As they are shown: files in the order of their first mistake, by line within a file, equal ones once.
  std::vector<Diagnostic> in_order() const;

  /// Throws UserMistakes, in order, when there is any.
  void throw_if_any() const;

 private:
  std::vector<Diagnostic> items_;
};

/// The candidate nearest to `word` by edit distance, or "" when none is near: for "did you mean".
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace cotune
