/// Collects every mistake in the user's input, so that all are reported at once.
#pragma once

#include <string>
#include <vector>

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

class Diagnostics {
 public:
  void add(std::string file, int line, std::string field, std::string message);
  bool empty() const { return items_.empty(); }
  const std::vector<Diagnostic>& items() const { return items_; }

  /// Throws UserError with one line per mistake, in file and line order, when there is any.
  void throw_if_any() const;

 private:
  std::vector<Diagnostic> items_;
};

/// The candidate nearest to `word` by edit distance, or "" when none is near: for "did you mean".
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace cotune
