/// Names and regular expressions that choose modules (target_modules, exclude_modules, rank_pattern, alpha_pattern).
/// Expressions are Perl-compatible (PCRE2), near enough to Python's `re` for module names; matching is bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

inline constexpr std::string_view all_linear = "all-linear";

/// True for [A-Za-z0-9_.]+: a name that is matched at the end of a module's name, not an expression.
bool is_plain_module_name(std::string_view text);

/// True when the module's full name is `name` or ends in `.name` (PEFT's rule for lists).
bool ends_in_module_name(std::string_view module, std::string_view name);

/// A compiled expression. Copies share it.
class ModuleExpression {
 public:
  /// Throws UserError with the reason and position when the expression is malformed.
  explicit ModuleExpression(std::string_view expression);

  /// Whether the whole name matches, as Python's re.fullmatch. Throws UserError when that needs too much backtracking.
  bool matches(std::string_view module) const;

 private:
  std::string expression_;
  std::shared_ptr<void> code_;
};

/// The expression that rank_pattern and alpha_pattern make of a key: `(.*\.)?(key)`.
ModuleExpression pattern_key_expression(std::string_view key);

/// Chooses modules by plain names or by one expression.
class ModuleSelector {
 public:
  /// entries: plain names; or one expression; or `all-linear` alone. Throws UserError for a malformed expression.
  explicit ModuleSelector(const std::vector<std::string>& entries);
  /// Whether entry `index` chooses the module.
  bool chooses(size_t index, std::string_view module) const;

 private:
  std::vector<std::string> names_;
  std::vector<ModuleExpression> expression_;  ///< one or none
  bool all_ = false;
};

/// What is wrong with an entry of target_modules or exclude_modules; "" when nothing is. in_list: it stands in a list,
/// where only plain names may.
std::string module_pattern_mistake(std::string_view entry, bool in_list);

/// What is wrong with a regular expression (malformed, longer than 1000 bytes); "" when nothing is.
std::string expression_mistake(std::string_view expression);

}  // namespace cotune
