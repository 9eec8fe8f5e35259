#include "jobs/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>

#include "base/diagnostics.h"
#include "base/error.h"
#include "jobs/option_value.h"
#include "jobs/projection.h"
#include "jobs/target_modules.h"

namespace cotune {

namespace {

constexpr size_t longest_expression = 1000;
constexpr uint32_t most_backtracking = 100'000;
constexpr uint32_t deepest_backtracking = 10'000;
constexpr uint32_t most_heap_kib = 4096;

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return '0' <= c && c <= '9'; });
}

/// Whether a model with enough layers has a projection whose name ends in `name`.
bool names_a_projection(std::string_view name) {
  for (Projection projection : all_projections) {
    std::string_view rest = name;
    const auto take = [&rest](std::string_view part) {  // "more": the name goes on to the left of this part
      if (!rest.ends_with(part)) return false;
      rest.remove_suffix(part.size());
      return true;
    };
    if (!take(projection_name(projection))) continue;
    if (rest.empty()) return true;
    if (!take(".") || !take(projection_parent(projection))) continue;
    if (rest.empty()) return true;
    if (!take(".")) continue;
    const std::string_view layer = rest.substr(rest.rfind('.') + 1);
    if (!is_digits(layer) || !take(layer)) continue;
    if (rest.empty() || rest == "layers." || rest == "model.layers.") return true;
  }
  return false;
}

/// The expression as PCRE2 reads what Python's `re` means: `{,n}` and `{,}`, which PCRE2 takes for plain characters, count from 0. Classes
/// and escaped characters stay as they are.
std::string with_lower_bounds(std::string_view expression) {
  std::string result;
  size_t class_begin = std::string_view::npos;  // in an open class: where its first element stands
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    result += c;
    if (c == '\\' && i + 1 < expression.size()) {
      result += expression[++i];
    } else if (class_begin != std::string_view::npos) {
      if (c == ']' && i != class_begin) class_begin = std::string_view::npos;
    } else if (c == '[') {
      class_begin = i + (expression.substr(i + 1, 1) == "^" ? 2 : 1);
    } else if (c == '{' && expression.substr(i + 1, 1) == ",") {
      const size_t end = expression.find_first_not_of("0123456789", i + 2);
      if (end != std::string_view::npos && expression[end] == '}') result += '0';
    }
  }
  return result;
}

}  // namespace

bool is_plain_module_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c)) || c == '_' || c == '.';
  });
}

bool ends_in_module_name(std::string_view module, std::string_view name) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

ModuleExpression::ModuleExpression(std::string_view expression) : expression_(expression) {
  int error = 0;
  PCRE2_SIZE position = 0;
  const std::string as_python = with_lower_bounds(expression);
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(as_python.data()), as_python.size(),
                                   PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &position, nullptr);
  if (code == nullptr) {
    throw_user_error("`{}` is not a regular expression: {} at character {}", shown(expression), message_of(error),
                     position + 1);
  }
  code_ = std::shared_ptr<void>(code, [](void* owned) { pcre2_code_free(static_cast<pcre2_code*>(owned)); });
}

bool ModuleExpression::matches(std::string_view module) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  COTUNE_CHECK(context != nullptr && data != nullptr);
  pcre2_set_match_limit(context.get(), most_backtracking);
  pcre2_set_depth_limit(context.get(), deepest_backtracking);
  pcre2_set_heap_limit(context.get(), most_heap_kib);
  const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(), 0, 0, data.get(),
                                 context.get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) throw_user_error("`{}` cannot be matched: {}", shown(expression_), message_of(result));
  return true;
}

ModuleExpression pattern_key_expression(std::string_view key) {
  return ModuleExpression(fmt::format("(.*\\.)?({})", key));
}

ModuleSelector::ModuleSelector(const std::vector<std::string>& entries) {
  if (entries.size() == 1 && entries[0] == all_linear) {
    all_ = true;
  } else if (entries.size() == 1 && !is_plain_module_name(entries[0])) {
    expression_.emplace_back(entries[0]);
  } else {
    names_ = entries;
  }
}

bool ModuleSelector::chooses(size_t index, std::string_view module) const {
  if (all_) return true;
  return expression_.empty() ? ends_in_module_name(module, names_[index]) : expression_[index].matches(module);
}

std::string module_pattern_mistake(std::string_view entry, bool in_list) {
  if (entry == all_linear && !in_list) return "";
  if (entry == all_linear) return "`all-linear` must stand alone, not in a list";
  if (is_plain_module_name(entry)) {
    if (names_a_projection(entry)) return "";
    std::string mistake = fmt::format("`{}` names no projection; accepted: {}", shown(entry), accepted_target_modules());
    const std::vector<std::string> names(projection_names.begin(), projection_names.end());
    const std::string near = entry.size() < 60 ? nearest_name(std::string(entry), names) : "";
    if (!near.empty()) mistake += fmt::format("; did you mean `{}`?", near);
    return mistake;
  }
  if (in_list) {
    return fmt::format("`{}` in a list is not a module's name; a list holds names, a regular expression stands alone "
                       "(`target_modules: 'a|b'`)",
                       shown(entry));
  }
  return expression_mistake(entry);
}

std::string expression_mistake(std::string_view expression) {
  if (expression.size() > longest_expression) {
    return fmt::format("a regular expression of {} bytes is too long; at most {} are accepted", expression.size(),
                       longest_expression);
  }
  try {
    const ModuleExpression compiled(expression);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

}  // namespace cotune
