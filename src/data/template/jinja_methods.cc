#include <algorithm>
#include <array>

#include "data/template/jinja_python_text.h"
#include "data/template/jinja_runtime.h"

namespace cotune::jinja {
namespace {

constexpr std::array<std::string_view, 25> text_methods = {
    "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "upper", "lower", "title",
    "capitalize", "replace", "join", "find", "rfind", "count", "isdigit", "isspace", "isupper", "islower", "removeprefix",
    "removesuffix", "partition", "rpartition"};
constexpr std::array<std::string_view, 4> dict_methods = {"items", "keys", "values", "get"};
constexpr std::array<std::string_view, 2> list_methods = {"index", "count"};
constexpr std::array<std::string_view, 1> loop_methods = {"cycle"};

template <size_t n>
bool holds(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t optional_count(Runtime& runtime, const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.find(index, name);
  return value ? std::max<int64_t>(runtime.integer_of(*value, name), -1) : -1;
}

std::vector<Value> split_text(Runtime& runtime, const Text& text, const Arguments& arguments, bool from_right) {
  runtime.charge(1 + text.size());
  int64_t left = optional_count(runtime, arguments, 1, "maxsplit");
  const Value* separator = arguments.find(0, "sep");
  const std::string& bytes = text.bytes();
  std::vector<std::pair<size_t, size_t>> parts;
  if (!separator || separator->is_none()) {
    if (from_right && left >= 0) runtime.fail("rsplit without a separator takes no maximum");
    size_t at = skip_space_left(bytes);
    while (at < bytes.size()) {
      size_t end = at;
      if (left == 0) {
        end = bytes.size();
      } else {
        while (end < bytes.size()) {
          const CodePoint point = code_point_at(bytes, end);
          if (is_python_space(point.value)) break;
          end += point.size;
        }
      }
      parts.emplace_back(at, end);
      if (left == 0) break;
      if (left > 0) --left;
      at = end + skip_space_left(std::string_view(bytes).substr(end));
    }
  } else {
    const Text& separating = runtime.text_of(*separator, "split");
    const std::string& word = separating.bytes();
    if (word.empty()) runtime.fail("split: empty separator");
    runtime.charge_search(text, separating);
    if (from_right) {
      size_t end = bytes.size();
      while (left != 0 && end >= word.size()) {
        const size_t found = bytes.rfind(word, end - word.size());
        if (found == std::string::npos) break;
        parts.emplace_back(found + word.size(), end);
        end = found;
        --left;
      }
      parts.emplace_back(0, end);
      std::reverse(parts.begin(), parts.end());
    } else {
      size_t begin = 0;
      for (size_t found; left != 0 && (found = bytes.find(word, begin)) != std::string::npos; --left) {
        parts.emplace_back(begin, found);
        begin = found + word.size();
      }
      parts.emplace_back(begin, bytes.size());
    }
  }
  runtime.charge(4 * parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const auto& [begin, end] : parts) items.push_back(text.slice(begin, end));
  return items;
}

std::vector<Value> split_lines(Runtime& runtime, const Text& text) {
  runtime.charge(1 + text.size());
  std::vector<Value> lines;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const CodePoint point = code_point_at(bytes, i);
    const char32_t c = point.value;
    size_t size = point.size;
    const bool breaks = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (breaks) {
      runtime.charge(4);
      if (c == '\r' && i + 1 < bytes.size() && bytes[i + 1] == '\n') ++size;
      lines.push_back(text.slice(begin, i));
      begin = i + size;
    }
    i += size;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

bool matches_side(Runtime& runtime, const Text& text, const Arguments& arguments, bool front) {
  const Value* word = arguments.find(0, "prefix");
  if (!word) runtime.fail("startswith and endswith need an argument");
  const auto matches = [&](const Value& value) {
    const std::string& side = runtime.text_of(value, front ? "startswith" : "endswith").bytes();
    runtime.charge(1 + side.size() / 64);
    return front ? text.bytes().starts_with(side) : text.bytes().ends_with(side);
  };
  if (const List* list = word->as_list()) return std::any_of(list->items.begin(), list->items.end(), matches);
  return matches(*word);
}

bool all_characters(Runtime& runtime, const Text& text, std::string_view method) {
  runtime.charge(1 + text.size() / 4);
  bool any = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text.bytes(), i);
    i += point.size;
    const char32_t c = point.value;
    if (method == "isdigit" || method == "isspace") {
      if (method == "isdigit" ? c < '0' || c > '9' : !is_python_space(c)) return false;
      any = true;
    } else {
      const bool is_upper = to_lower(c) != c;
      const bool is_lower = to_upper(c) != c;
      if (method == "isupper" ? is_lower : is_upper) return false;
      any = any || is_upper || is_lower;
    }
  }
  return any;
}

Value call_text_method(Runtime& runtime, const Text& text, const std::string& name, const Arguments& arguments) {
  const Value* first = arguments.find(0, "chars");
  const auto required = [&]() -> const Text& {
    if (!first) runtime.fail(name + " needs an argument");
    return runtime.text_of(*first, name);
  };
  if (name == "strip") return strip_text(runtime, text, first, true, true);
  if (name == "lstrip") return strip_text(runtime, text, first, true, false);
  if (name == "rstrip") return strip_text(runtime, text, first, false, true);
  if (name == "split" || name == "rsplit") return Value::list(split_text(runtime, text, arguments, name == "rsplit"));
  if (name == "splitlines") return Value::list(split_lines(runtime, text));
  if (name == "startswith" || name == "endswith") return matches_side(runtime, text, arguments, name == "startswith");
  if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") {
    return change_case(runtime, text, name);
  }
  if (name == "replace") {
    if (arguments.positional.size() < 2) runtime.fail("replace needs two arguments");
    return replace_text(runtime, text, runtime.text_of(arguments.positional[0], name),
                        runtime.text_of(arguments.positional[1], name), optional_count(runtime, arguments, 2, "count"));
  }
  if (name == "join") {
    if (!first) runtime.fail("join needs an argument");
    Text joined;
    bool second = false;
    for (const Value& item : runtime.items(*first)) {
      if (second) runtime.append(joined, text);
      second = true;
      runtime.append(joined, runtime.text_of(item, "join"));
    }
    return joined;
  }
  if (name == "find" || name == "rfind") {
    runtime.charge(1 + text.size() / 4);
    runtime.charge_search(text, required());
    const std::string& word = required().bytes();
    const size_t found = name == "find" ? text.bytes().find(word) : text.bytes().rfind(word);
    if (found == std::string::npos) return int64_t{-1};
    return static_cast<int64_t>(count_code_points(std::string_view(text.bytes()).substr(0, found)));
  }
  if (name == "count") {
    runtime.charge(1 + text.size() / 4);
    runtime.charge_search(text, required());
    const std::string& word = required().bytes();
    if (word.empty()) return runtime.length(Value(text)) + 1;
    int64_t count = 0;
    for (size_t at = 0; (at = text.bytes().find(word, at)) != std::string::npos; at += word.size()) ++count;
    return count;
  }
  if (name == "removeprefix") {
    runtime.charge(1 + text.size() / 16);
    const std::string& word = required().bytes();
    return text.bytes().starts_with(word) ? text.slice(word.size(), text.size()) : text;
  }
  if (name == "removesuffix") {
    runtime.charge(1 + text.size() / 16);
    const std::string& word = required().bytes();
    return text.bytes().ends_with(word) ? text.slice(0, text.size() - word.size()) : text;
  }
  if (name == "partition" || name == "rpartition") {
    runtime.charge(1 + text.size() / 4);
    runtime.charge_search(text, required());
    const std::string& word = required().bytes();
    if (word.empty()) runtime.fail(name + ": empty separator");
    const size_t found = name == "partition" ? text.bytes().find(word) : text.bytes().rfind(word);
    if (found != std::string::npos) return Value::list({text.slice(0, found), required(), text.slice(found + word.size(), text.size())}, true);
    const Value none = Text();
    return name == "partition" ? Value::list({text, none, none}, true) : Value::list({none, none, text}, true);
  }
  return all_characters(runtime, text, name);
}

Value call_dict_method(Runtime& runtime, const Dict& dict, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.find(0, "key");
    if (!key) runtime.fail("get needs an argument");
    const Value* found = key->as_text() ? runtime.find(dict, key->as_text()->bytes()) : nullptr;
    if (found) return *found;
    const Value* fallback = arguments.find(1, "default");
    return fallback ? *fallback : Value(None{});
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    runtime.charge(4 + key.size() / 64);
    if (name == "keys") {
      items.push_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      items.push_back(Value::list({Value(key), value}, true));
    }
  }
  return Value::list(std::move(items));
}

/// Behind which the filter `title` begins a word: jinja2's [-\s({[<].
bool is_before_word(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.as_text()) return holds(text_methods, name);
  if (value.as_dict()) return holds(dict_methods, name);
  if (value.as_list()) return holds(list_methods, name);
  if (value.as_loop()) return holds(loop_methods, name);
  return false;
}

Value call_method(Runtime& runtime, const Value& value, const std::string& name, const Arguments& arguments) {
  if (const Text* text = value.as_text()) return call_text_method(runtime, *text, name, arguments);
  if (const Dict* dict = value.as_dict()) return call_dict_method(runtime, *dict, name, arguments);
  if (arguments.positional.empty()) runtime.fail(name + " needs an argument");
  if (const Loop* loop = value.as_loop()) {
    return arguments.positional[static_cast<size_t>(loop->index) % arguments.positional.size()];
  }
  const auto& items = value.as_list()->items;
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!runtime.equal(items[i], arguments.positional[0])) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  if (name == "index") runtime.fail("index: the list has no such item");
  return count;
}

Text strip_text(Runtime& runtime, const Text& text, const Value* characters, bool left, bool right) {
  runtime.charge(1 + text.size() / 16);
  const std::string_view bytes = text.bytes();
  if (!characters || characters->is_none()) {
    const size_t begin = left ? skip_space_left(bytes) : 0;
    const size_t end = right ? skip_space_right(bytes) : bytes.size();
    return begin < end ? text.slice(begin, end) : Text();
  }
  const std::string& set = runtime.text_of(*characters, "strip").bytes();
  runtime.charge(1 + count_code_points(bytes) + set.size() / 4);
  const std::vector<size_t> offsets = code_point_offsets(bytes);
  const std::vector<size_t> set_offsets = code_point_offsets(set);
  const auto in_set = [&](size_t point) {
    const std::string_view one = bytes.substr(offsets[point], offsets[point + 1] - offsets[point]);
    for (size_t i = 0; i + 1 < set_offsets.size(); ++i) {
      runtime.charge(1);
      if (std::string_view(set).substr(set_offsets[i], set_offsets[i + 1] - set_offsets[i]) == one) return true;
    }
    return false;
  };
  size_t begin = 0;
  size_t end = offsets.size() - 1;
  while (left && begin < end && in_set(begin)) ++begin;
  while (right && end > begin && in_set(end - 1)) --end;
  return text.slice(offsets[begin], offsets[end]);
}

Text change_case(Runtime& runtime, const Text& text, std::string_view method) {
  runtime.charge(1 + text.size() / 4);
  Text out;
  size_t begin = 0;
  bool word_start = true;
  for (const Run& run : text.runs()) {
    std::string changed;
    for (size_t i = begin; i < run.end;) {
      const CodePoint point = code_point_at(text.bytes(), i);
      char32_t c = point.value;
      const bool raise = method == "upper" || (word_start && method != "lower");
      if (point.size > 1 || c < 0x80) {
        c = raise ? to_upper(c) : to_lower(c);
        append_utf8(changed, c);
      } else {
        changed += text.bytes()[i];
      }
      const bool is_cased = to_upper(c) != c || to_lower(c) != c;
      word_start = (method == "title" && !is_cased) || (method == "title filter" && is_before_word(c));
      i += point.size;
    }
    out.append(changed, run.origin);
    begin = run.end;
  }
  return out;
}

Text replace_text(Runtime& runtime, const Text& text, const Text& old, const Text& replacement, int64_t count) {
  runtime.charge(1 + text.size() / 4);
  runtime.charge_search(text, old);
  Text out;
  const std::string& bytes = text.bytes();
  if (old.empty()) {
    const std::vector<size_t> offsets = code_point_offsets(bytes);
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (count != 0) runtime.append(out, replacement);
      if (count > 0) --count;
      if (i + 1 < offsets.size()) runtime.append(out, text.slice(offsets[i], offsets[i + 1]));
    }
    return out;
  }
  size_t begin = 0;
  for (size_t found; count != 0 && (found = bytes.find(old.bytes(), begin)) != std::string::npos; --count) {
    runtime.append(out, text.slice(begin, found));
    runtime.append(out, replacement);
    begin = found + old.size();
  }
  runtime.append(out, text.slice(begin, bytes.size()));
  return out;
}

}  // namespace cotune::jinja
