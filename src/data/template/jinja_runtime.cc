#include "data/template/jinja_runtime.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/template/jinja_python_text.h"

namespace cotune::jinja {
namespace {

constexpr size_t max_reason_bytes = 1000;

}  // namespace

void Runtime::fail(const std::string& reason) const {
  throw_user_error("{}:{}: {}", name_, line_, shortened(reason, max_reason_bytes));
}

void Runtime::fail_steps() const {
  const std::string reason = "the template takes too many steps";
  if (granted_steps_ < limits_.steps) throw StepsSpent(fmt::format("{}:{}: {}", name_, line_, reason));
  fail(reason);
}

void Runtime::require_defined(const Value& value) const {
  if (const auto* undefined = std::get_if<Undefined>(&value.storage())) {
    fail(fmt::format("'{}' is undefined", undefined->name));
  }
}

std::string_view Runtime::type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "None";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.as_text()) return "str";
  if (const List* list = value.as_list()) return list->is_tuple ? "tuple" : "list";
  if (value.as_dict()) return "dict";
  if (value.as_namespace()) return "namespace";
  if (value.as_loop()) return "loop";
  return "function";
}

const Text& Runtime::text_of(const Value& value, std::string_view what) const {
  require_defined(value);
  if (const Text* text = value.as_text()) return *text;
  fail(fmt::format("{}: expected a string, found {}", what, type_name(value)));
}

int64_t Runtime::integer_of(const Value& value, std::string_view what) const {
  require_defined(value);
  if (value.is_integer()) return value.integer();
  fail(fmt::format("{}: expected an integer, found {}", what, type_name(value)));
}

bool Runtime::truthy(const Value& value) const {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_integer()) return value.integer() != 0;
  if (value.is<double>()) return value.number() != 0;
  if (const Text* text = value.as_text()) return !text->empty();
  if (const List* list = value.as_list()) return !list->items.empty();
  if (const Dict* dict = value.as_dict()) return !dict->entries.empty();
  return true;
}

bool Runtime::equal(const Value& left, const Value& right) {
  charge(1);
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return left.integer() == right.integer();
    return left.number() == right.number();
  }
  const Text* text = left.as_text();
  const Text* other_text = right.as_text();
  if (text && other_text) {
    charge(text->size() / 16);
    return *text == *other_text;
  }
  const List* list = left.as_list();
  const List* other_list = right.as_list();
  if (list && other_list) {
    return list->is_tuple == other_list->is_tuple &&
           std::equal(list->items.begin(), list->items.end(), other_list->items.begin(), other_list->items.end(),
                      [&](const Value& a, const Value& b) { return equal(a, b); });
  }
  const Dict* dict = left.as_dict();
  const Dict* other_dict = right.as_dict();
  if (dict && other_dict) {
    if (dict->entries.size() != other_dict->entries.size()) return false;
    return std::all_of(dict->entries.begin(), dict->entries.end(), [&](const auto& entry) {
      const Value* found = find(*other_dict, entry.first.bytes());
      return found && equal(entry.second, *found);
    });
  }
  if (left.storage().index() != right.storage().index()) return false;
  if (left.is_undefined() || left.is_none()) return true;
  if (left.as_namespace()) return left.as_namespace() == right.as_namespace();
  return left.as_function() && left.as_function() == right.as_function();
}

int Runtime::order(const Value& left, const Value& right) {
  charge(1);
  if (left.is_integer() && right.is_integer()) {
    return left.integer() < right.integer() ? -1 : left.integer() > right.integer();
  }
  if (left.is_number() && right.is_number()) {
    return left.number() < right.number() ? -1 : left.number() > right.number();
  }
  if (left.as_text() && right.as_text()) {
    charge(left.as_text()->size() / 16);
    return left.as_text()->bytes().compare(right.as_text()->bytes());
  }
  if (left.as_list() && right.as_list() && left.as_list()->is_tuple == right.as_list()->is_tuple) {
    const auto& a = left.as_list()->items;
    const auto& b = right.as_list()->items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!equal(a[i], b[i])) return order(a[i], b[i]);
    }
    return a.size() < b.size() ? -1 : a.size() > b.size();
  }
  require_defined(left);
  require_defined(right);
  fail(fmt::format("cannot order {} and {}", type_name(left), type_name(right)));
}

bool Runtime::contains(const Value& container, const Value& item) {
  if (const Text* text = container.as_text()) {
    const Text& word = text_of(item, "in");
    charge(1 + text->size() / 4);
    charge_search(*text, word);
    return text->bytes().find(word.bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    return item.as_text() && find(*dict, item.as_text()->bytes());
  }
  if (const List* list = container.as_list()) {
    return std::any_of(list->items.begin(), list->items.end(), [&](const Value& v) { return equal(v, item); });
  }
  if (container.is_undefined()) return false;
  fail(fmt::format("'in': {} has no items", type_name(container)));
}

std::vector<Value> Runtime::items(const Value& value) {
  std::vector<Value> result;
  if (const List* list = value.as_list()) {
    charge(4 * list->items.size());
    result = list->items;
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, item] : dict->entries) {
      charge(4 + key.size() / 64);
      result.push_back(key);
    }
  } else if (const Text* text = value.as_text()) {
    charge(1 + 8 * text->size());
    const std::vector<size_t> offsets = code_point_offsets(text->bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) result.push_back(text->slice(offsets[i], offsets[i + 1]));
  } else if (!value.is_undefined()) {
    fail(fmt::format("cannot iterate over {}", type_name(value)));
  }
  return result;
}

int64_t Runtime::length(const Value& value) {
  if (const Text* text = value.as_text()) {
    charge(1 + text->size() / 16);
    return static_cast<int64_t>(count_code_points(text->bytes()));
  }
  if (const List* list = value.as_list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.as_dict()) return static_cast<int64_t>(dict->entries.size());
  if (const Loop* loop = value.as_loop()) return static_cast<int64_t>(loop->items->size());
  if (value.is_undefined()) return 0;
  fail(fmt::format("{} has no length", type_name(value)));
}

Value Runtime::repeat(const Value& value, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  if (const Text* text = value.as_text()) {
    if (text->empty() || times == 0) return Text();
    if (times > limits_.text_bytes / text->size()) fail("the template makes too long a text");
    charge_text(text->size() * times);
    charge(times / 4);
    Text result;
    for (size_t i = 0; i < times; ++i) result.append(*text);
    return result;
  }
  const List& list = *value.as_list();
  std::vector<Value> items;
  if (!list.items.empty()) {
    if (times > limits_.steps) fail("the template takes too many steps");
    for (size_t i = 0; i < times; ++i) {
      charge(4 * list.items.size());
      items.insert(items.end(), list.items.begin(), list.items.end());
    }
  }
  return Value::list(std::move(items), list.is_tuple);
}

Value Runtime::integer_arithmetic(std::string_view operation, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflow = false;
  if (operation == "+") {
    overflow = __builtin_add_overflow(left, right, &result);
  } else if (operation == "-") {
    overflow = __builtin_sub_overflow(left, right, &result);
  } else if (operation == "*") {
    overflow = __builtin_mul_overflow(left, right, &result);
  } else if (operation == "**") {
    if (right < 0) return std::pow(static_cast<double>(left), static_cast<double>(right));
    result = 1;
    if (left == 0 || left == 1) return right == 0 ? int64_t{1} : left;
    if (left == -1) return right % 2 == 0 ? int64_t{1} : int64_t{-1};
    for (int64_t i = 0; i < right && !overflow; ++i) overflow = __builtin_mul_overflow(result, left, &result);
  } else {
    if (right == 0) fail("division by zero");
    if (operation == "/") return static_cast<double>(left) / static_cast<double>(right);
    if (right == -1) {
      if (operation == "%") return int64_t{0};
      overflow = __builtin_sub_overflow(int64_t{0}, left, &result);
    } else {
      const bool adjust = left % right != 0 && (left % right < 0) != (right < 0);
      result = operation == "%" ? left % right + (adjust ? right : 0) : left / right - (adjust ? 1 : 0);
    }
  }
  if (overflow) fail("an integer leaves the range of 64 bits");
  return result;
}

Value Runtime::arithmetic(std::string_view operation, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  if (left.is_integer() && right.is_integer()) {
    return integer_arithmetic(operation, left.integer(), right.integer());
  }
  if (left.is_number() && right.is_number()) {
    const double a = left.number();
    const double b = right.number();
    if (operation == "+") return a + b;
    if (operation == "-") return a - b;
    if (operation == "*") return a * b;
    if (operation == "**") return std::pow(a, b);
    if (b == 0) fail("division by zero");
    if (operation == "/") return a / b;
    if (operation == "//") return std::floor(a / b);
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  if (operation == "+" && left.as_text() && right.as_text()) {
    Text sum = str(left);
    append(sum, *right.as_text());
    return sum;
  }
  if (operation == "+" && left.as_list() && right.as_list() && left.as_list()->is_tuple == right.as_list()->is_tuple) {
    charge(left.as_list()->items.size() + right.as_list()->items.size());
    std::vector<Value> sum = left.as_list()->items;
    sum.insert(sum.end(), right.as_list()->items.begin(), right.as_list()->items.end());
    return Value::list(std::move(sum), left.as_list()->is_tuple);
  }
  if (operation == "*" && (left.as_text() || left.as_list()) && right.is_integer()) return repeat(left, right.integer());
  if (operation == "*" && (right.as_text() || right.as_list()) && left.is_integer()) return repeat(right, left.integer());
  fail(fmt::format("cannot compute {} {} {}", type_name(left), operation, type_name(right)));
}

bool Runtime::compare(std::string_view operation, const Value& left, const Value& right) {
  if (operation == "==") return equal(left, right);
  if (operation == "!=") return !equal(left, right);
  if (operation == "in") return contains(right, left);
  if (operation == "not in") return !contains(right, left);
  if ((left.is<double>() && std::isnan(left.number())) || (right.is<double>() && std::isnan(right.number()))) {
    return false;
  }
  const int sign = order(left, right);
  if (operation == "<") return sign < 0;
  if (operation == "<=") return sign <= 0;
  if (operation == ">") return sign > 0;
  return sign >= 0;
}

}  // namespace cotune::jinja
