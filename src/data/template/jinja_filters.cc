#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <unordered_map>

#include "data/template/jinja_python_text.h"
#include "data/template/jinja_runtime.h"

namespace cotune::jinja {
namespace {

using Filter = Value (*)(Runtime&, const Value&, const Arguments&);

const Value& required(Runtime& runtime, const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.find(index, name);
  if (!value) runtime.fail(fmt::format("a filter misses its argument '{}'", name));
  return *value;
}

bool flag(Runtime& runtime, const Arguments& arguments, size_t index, std::string_view name, bool fallback) {
  const Value* value = arguments.find(index, name);
  return value ? runtime.truthy(*value) : fallback;
}

/// The value at a dotted path, as the `attribute` of filters: parts that are numbers are indices.
Value at_path(Runtime& runtime, const Value& value, const std::string& path) {
  Value current = value;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_index = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    current = is_index ? subscript_of(runtime, current, static_cast<int64_t>(std::stoll(part)))
                       : attribute_of(runtime, current, part);
    begin = end + 1;
  }
  return current;
}

/// The attribute that a filter sorts or groups by; the item itself when there is none.
Value keyed(Runtime& runtime, const Value& item, const Arguments& arguments, size_t index) {
  const Value* attribute = arguments.find(index, "attribute");
  if (!attribute || attribute->is_none()) return item;
  return at_path(runtime, item, runtime.str(*attribute).bytes());
}

Value folded(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.as_text()) return value;
  return change_case(runtime, *value.as_text(), "lower");
}

/// The positional arguments behind the first so many.
std::vector<Value> arguments_behind(Runtime& runtime, const Arguments& arguments, size_t count) {
  const std::vector<Value>& all = arguments.positional;
  runtime.charge(all.size());
  return std::vector<Value>(all.begin() + static_cast<ptrdiff_t>(std::min(count, all.size())), all.end());
}

/// select, reject, selectattr and rejectattr. As in jinja2, attribute and test are given by their places alone.
Value filtered(Runtime& runtime, const Value& value, const Arguments& arguments, bool by_attribute, bool keep) {
  const std::string name = fmt::format("{}{}", keep ? "select" : "reject", by_attribute ? "attr" : "");
  if (!arguments.named.empty()) {
    runtime.fail(fmt::format("{}: the argument '{}' cannot be given by name", name, arguments.named.front().first));
  }
  const size_t test_place = by_attribute ? 1 : 0;
  if (arguments.positional.size() < test_place) runtime.fail(fmt::format("{} misses the name of an attribute", name));
  const std::string path = by_attribute ? runtime.str(arguments.positional[0]).bytes() : std::string();
  const Value* test = arguments.positional.size() > test_place ? &arguments.positional[test_place] : nullptr;
  const Arguments rest{arguments_behind(runtime, arguments, test_place + 1), {}};
  std::vector<Value> kept;
  for (const Value& item : runtime.items(value)) {
    const Value tested = by_attribute ? at_path(runtime, item, path) : item;
    const bool passes = test ? apply_test(runtime, runtime.text_of(*test, "test").bytes(), tested, rest)
                             : runtime.truthy(tested);
    if (passes == keep) kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

/// map(attribute=…, default=…).
Value map_attribute(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, argument] : arguments.named) {
    if (name == "attribute") {
      attribute = &argument;
    } else if (name == "default") {
      fallback = &argument;
    } else {
      runtime.fail(fmt::format("map: the argument '{}' cannot be given by name", name));
    }
  }
  if (!attribute) runtime.fail("map misses the name of a filter, or attribute=");
  const std::string path = runtime.str(*attribute).bytes();
  std::vector<Value> mapped;
  for (const Value& item : runtime.items(value)) {
    Value found = at_path(runtime, item, path);
    mapped.push_back(found.is_undefined() && fallback ? *fallback : found);
  }
  return Value::list(std::move(mapped));
}

Value map_items(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (arguments.positional.empty()) return map_attribute(runtime, value, arguments);
  const std::string filter = runtime.text_of(arguments.positional[0], "map").bytes();
  runtime.charge(arguments.named.size());
  const Arguments rest{arguments_behind(runtime, arguments, 1), arguments.named};
  std::vector<Value> mapped;
  for (const Value& item : runtime.items(value)) mapped.push_back(apply_filter(runtime, filter, item, rest));
  return Value::list(std::move(mapped));
}

Value join(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Text between = separator ? runtime.str(*separator) : Text();
  Text joined;
  bool second = false;
  for (const Value& item : runtime.items(value)) {
    if (second) runtime.append(joined, between);
    second = true;
    runtime.append(joined, runtime.str(keyed(runtime, item, arguments, 1)));
  }
  return joined;
}

Value indent(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  Text margin(std::string(4, ' '));
  if (width && width->as_text()) {
    margin = runtime.str(*width);
  } else if (width) {
    const int64_t count = runtime.integer_of(*width, "indent");
    runtime.charge_text(static_cast<size_t>(std::max<int64_t>(count, 0)));
    margin = Text(std::string(static_cast<size_t>(std::max<int64_t>(count, 0)), ' '));
  }
  const bool first = flag(runtime, arguments, 1, "first", false);
  const bool blank = flag(runtime, arguments, 2, "blank", false);
  Text text = runtime.str(value);
  text.append("\n", template_origin);
  const Value lines = call_method(runtime, Value(std::move(text)), "splitlines", {});
  const Text newline("\n");
  Text out;
  bool is_first = true;
  for (const Value& line : lines.as_list()->items) {
    if (!is_first) runtime.append(out, newline);
    if (is_first ? first : blank || !line.as_text()->empty()) runtime.append(out, margin);
    runtime.append(out, *line.as_text());
    is_first = false;
  }
  return out;
}

/// As Python's float() reads a text: decimal, no hexadecimal digits, no payload of a NaN.
std::optional<double> python_float(const std::string& text) {
  if (text.empty() || text.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return *end == '\0' ? std::optional(value) : std::nullopt;
}

/// As Python's round(): of the two nearest decimals the one that the exact value is nearer to.
double rounded(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits >= 0) return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
  const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-digits, 300)));
  return std::nearbyint(value / unit) * unit;
}

Value to_integer(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* given = arguments.find(0, "default");
  const Value fallback = given ? *given : Value(int64_t{0});
  if (value.is_integer()) return value.integer();
  double real = std::numeric_limits<double>::quiet_NaN();
  if (value.is<double>()) real = value.number();
  if (const Text* text = value.as_text()) {
    const std::string digits = strip_text(runtime, *text, nullptr, true, true).bytes();
    char* end = nullptr;
    errno = 0;
    const int64_t whole = std::strtoll(digits.c_str(), &end, 10);
    if (!digits.empty() && *end == '\0' && errno == 0) return whole;
    real = python_float(digits).value_or(std::numeric_limits<double>::quiet_NaN());
  }
  if (!(std::abs(real) < 9.2e18)) return fallback;
  return static_cast<int64_t>(real);
}

Value to_float(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* given = arguments.find(0, "default");
  if (value.is_number()) return value.number();
  if (const Text* text = value.as_text()) {
    const std::string digits = strip_text(runtime, *text, nullptr, true, true).bytes();
    if (const std::optional<double> real = python_float(digits)) return *real;
  }
  return given ? *given : Value(0.0);
}

Value round_number(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!value.is_number()) runtime.fail("round: expected a number");
  const Value* precision = arguments.find(0, "precision");
  const int64_t digits = precision ? runtime.integer_of(*precision, "round") : 0;
  const Value* method = arguments.find(1, "method");
  const std::string how = method ? runtime.str(*method).bytes() : "common";
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(digits, -300, 300)));
  const double scaled = value.number() * scale;
  if (how == "ceil") return std::ceil(scaled) / scale;
  if (how == "floor") return std::floor(scaled) / scale;
  if (value.is_integer()) return digits >= 0 ? value : Value(static_cast<int64_t>(rounded(value.number(), digits)));
  return rounded(value.number(), digits);
}

Value escape(Runtime& runtime, const Value& value, const Arguments&) {
  Text text = runtime.str(value);
  const std::pair<const char*, const char*> entities[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
  for (const auto& [plain, entity] : entities) text = replace_text(runtime, text, Text(plain), Text(entity), -1);
  return text;
}

Value sort_items(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const bool reverse = flag(runtime, arguments, 0, "reverse", false);
  const bool case_sensitive = flag(runtime, arguments, 1, "case_sensitive", false);
  std::vector<std::pair<Value, Value>> keyed_items;
  for (const Value& item : runtime.items(value)) {
    keyed_items.emplace_back(folded(runtime, keyed(runtime, item, arguments, 2), case_sensitive), item);
  }
  std::stable_sort(keyed_items.begin(), keyed_items.end(), [&](const auto& a, const auto& b) {
    return reverse ? runtime.order(b.first, a.first) < 0 : runtime.order(a.first, b.first) < 0;
  });
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed_items) sorted.push_back(std::move(item));
  return Value::list(std::move(sorted));
}

Value unique(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const bool case_sensitive = flag(runtime, arguments, 0, "case_sensitive", false);
  std::vector<Value> kept;
  std::vector<Value> keys;
  for (const Value& item : runtime.items(value)) {
    Value key = folded(runtime, keyed(runtime, item, arguments, 1), case_sensitive);
    const bool seen = std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return runtime.equal(k, key); });
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Value extreme(Runtime& runtime, const Value& value, const Arguments& arguments, int sign) {
  const std::vector<Value> items = runtime.items(value);
  if (items.empty()) return Value::undefined("no item");
  size_t best = 0;
  const auto key = [&](size_t i) {
    return folded(runtime, keyed(runtime, items[i], arguments, 1), flag(runtime, arguments, 0, "case_sensitive", false));
  };
  for (size_t i = 1; i < items.size(); ++i) {
    if (runtime.order(key(i), key(best)) * sign > 0) best = i;
  }
  return items[best];
}

Value dict_sort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  if (!value.as_dict()) runtime.fail("dictsort: expected a mapping");
  Arguments sorting;
  const Value* by = arguments.find(1, "by");
  sorting.positional = {Value(flag(runtime, arguments, 2, "reverse", false)),
                        Value(flag(runtime, arguments, 0, "case_sensitive", false)),
                        Value::text(by && runtime.str(*by).bytes() == "value" ? "1" : "0")};
  return sort_items(runtime, call_method(runtime, value, "items", {}), sorting);
}

Value to_json(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* width = arguments.find(1, "indent");
  const Value* separators = arguments.find(2, "separators");
  int64_t indent = -1;
  if (width && !width->is_none()) indent = runtime.integer_of(*width, "tojson");
  if (indent > 1000) runtime.fail("tojson: indent must be at most 1000");
  indent = std::max<int64_t>(indent, -1);
  std::string item_separator;
  std::string key_separator;
  if (separators && separators->as_list() && separators->as_list()->items.size() == 2) {
    item_separator = runtime.str(separators->as_list()->items[0]).bytes();
    key_separator = runtime.str(separators->as_list()->items[1]).bytes();
  }
  const bool sort_keys = flag(runtime, arguments, 3, "sort_keys", false);
  const bool ascii = flag(runtime, arguments, 0, "ensure_ascii", false);
  return runtime.to_json(value, static_cast<int>(indent), item_separator, key_separator, sort_keys, ascii);
}

Value default_value(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* fallback = arguments.find(0, "default_value");
  const bool on_false = flag(runtime, arguments, 1, "boolean", false);
  if (value.is_undefined() || (on_false && !runtime.truthy(value))) return fallback ? *fallback : Value(Text());
  return value;
}

Value ends(Runtime& runtime, const Value& value, bool last) {
  const std::vector<Value> items = runtime.items(value);
  if (items.empty()) return Value::undefined("no item");
  return last ? items.back() : items.front();
}

Value reversed(Runtime& runtime, const Value& value) {
  std::vector<Value> items = runtime.items(value);
  std::reverse(items.begin(), items.end());
  if (!value.as_text()) return Value::list(std::move(items));
  Text text;
  for (const Value& item : items) text.append(*item.as_text());
  return text;
}

Value sum(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* start = arguments.find(1, "start");
  Value total = start ? *start : Value(int64_t{0});
  for (const Value& item : runtime.items(value)) {
    total = runtime.arithmetic("+", total, keyed(runtime, item, arguments, 0));
  }
  return total;
}

Value replace(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const Value* count = arguments.find(2, "count");
  return replace_text(runtime, runtime.str(value), runtime.str(required(runtime, arguments, 0, "old")),
                      runtime.str(required(runtime, arguments, 1, "new")),
                      count && !count->is_none() ? std::max<int64_t>(runtime.integer_of(*count, "replace"), -1) : -1);
}

Value absolute(Runtime& runtime, const Value& value) {
  if (value.is<double>()) return std::abs(value.number());
  const int64_t number = runtime.integer_of(value, "abs");
  return number < 0 ? runtime.arithmetic("-", int64_t{0}, number) : Value(number);
}

template <char method>
Value cased(Runtime& runtime, const Value& value, const Arguments&) {
  constexpr std::string_view name = method == 'u' ? "upper" : method == 'l' ? "lower" : method == 't' ? "title filter" : "capitalize";
  return change_case(runtime, runtime.str(value), name);
}

const std::unordered_map<std::string, Filter>& filters() {
  static const std::unordered_map<std::string, Filter> table = {
      {"trim", [](Runtime& r, const Value& v, const Arguments& a) -> Value { return strip_text(r, r.str(v), a.find(0, "chars"), true, true); }},
      {"tojson", to_json},
      {"length", [](Runtime& r, const Value& v, const Arguments&) -> Value { return r.length(v); }},
      {"count", [](Runtime& r, const Value& v, const Arguments&) -> Value { return r.length(v); }},
      {"upper", cased<'u'>},
      {"lower", cased<'l'>},
      {"title", cased<'t'>},
      {"capitalize", cased<'c'>},
      {"first", [](Runtime& r, const Value& v, const Arguments&) { return ends(r, v, false); }},
      {"last", [](Runtime& r, const Value& v, const Arguments&) { return ends(r, v, true); }},
      {"join", join},
      {"default", default_value},
      {"d", default_value},
      {"string", [](Runtime& r, const Value& v, const Arguments&) -> Value { return r.str(v); }},
      {"safe", [](Runtime& r, const Value& v, const Arguments&) -> Value { return r.str(v); }},
      {"int", to_integer},
      {"float", to_float},
      {"abs", [](Runtime& r, const Value& v, const Arguments&) { return absolute(r, v); }},
      {"round", round_number},
      {"list", [](Runtime& r, const Value& v, const Arguments&) { return Value::list(r.items(v)); }},
      {"items", [](Runtime& r, const Value& v, const Arguments&) {
         if (v.is_undefined()) return Value::list({});
         if (!v.as_dict()) r.fail("items: expected a mapping");
         return call_method(r, v, "items", {});
       }},
      {"selectattr", [](Runtime& r, const Value& v, const Arguments& a) { return filtered(r, v, a, true, true); }},
      {"rejectattr", [](Runtime& r, const Value& v, const Arguments& a) { return filtered(r, v, a, true, false); }},
      {"select", [](Runtime& r, const Value& v, const Arguments& a) { return filtered(r, v, a, false, true); }},
      {"reject", [](Runtime& r, const Value& v, const Arguments& a) { return filtered(r, v, a, false, false); }},
      {"map", map_items},
      {"replace", replace},
      {"indent", indent},
      {"e", escape},
      {"escape", escape},
      {"sort", sort_items},
      {"dictsort", dict_sort},
      {"unique", unique},
      {"reverse", [](Runtime& r, const Value& v, const Arguments&) { return reversed(r, v); }},
      {"sum", sum},
      {"min", [](Runtime& r, const Value& v, const Arguments& a) { return extreme(r, v, a, -1); }},
      {"max", [](Runtime& r, const Value& v, const Arguments& a) { return extreme(r, v, a, 1); }},
      {"attr", [](Runtime& r, const Value& v, const Arguments& a) {
         return attribute_of(r, v, r.text_of(required(r, a, 0, "name"), "attr").bytes());
       }},
  };
  return table;
}

}  // namespace

Value apply_filter(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments) {
  const Runtime::Nesting nesting(runtime);  // map applies filters
  runtime.charge(1);
  const auto found = filters().find(name);
  if (found == filters().end()) runtime.fail(fmt::format("no filter named '{}'", name));
  return found->second(runtime, value, arguments);
}

}  // namespace cotune::jinja
