/// What one rendering carries along: its limits, the line it is at, and Python's operations on values under them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/template/jinja_value.h"

namespace cotune::jinja {

/// Bounds of one rendering. A step is one evaluated node, one item, or 64 bytes of text touched.
struct Limits {
  uint64_t steps = 5'000'000;
  size_t text_bytes = size_t{64} << 20;  ///< of the output and of any value
  int depth = 400;                       ///< nested evaluation, macro calls included
};

/// The steps that several renderings share are used up.
class StepsSpent : public UserError {
 public:
  using UserError::UserError;
};

class Runtime {
 public:
  /// `name` outlives the runtime. `now`: what strftime_now sees; without it that function is undefined. `shared_steps`: how many are
  /// left to this rendering and others, which outlives the runtime too; those taken are subtracted when it ends. nullptr: limits alone.
  Runtime(const std::string& name, const Limits& limits, std::optional<std::tm> now, uint64_t* shared_steps = nullptr)
      : name_(name),
        limits_(limits),
        now_(now),
        shared_steps_(shared_steps),
        granted_steps_(shared_steps ? std::min(limits.steps, *shared_steps) : limits.steps),
        steps_left_(granted_steps_) {}
  ~Runtime() {
    if (shared_steps_) *shared_steps_ -= granted_steps_ - steps_left_;
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Counts nested evaluation while it lives; fails beyond Limits::depth.
  class Nesting {
   public:
    explicit Nesting(Runtime& runtime) : runtime_(runtime) {
      if (runtime_.depth_ >= runtime_.limits_.depth) runtime_.fail("the template recurses too deeply");
      ++runtime_.depth_;
    }
    ~Nesting() { --runtime_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Runtime& runtime_;
  };

  /// Throws UserError `name:line: reason`; of a long reason its beginning.
  [[noreturn]] void fail(const std::string& reason) const;
  void set_line(int line) { line_ = line; }
  int line() const { return line_; }
  const std::optional<std::tm>& now() const { return now_; }

  /// Fails when the steps are used up; throws StepsSpent when it is the shared ones that are.
  void charge(uint64_t steps) {
    if (steps > steps_left_) fail_steps();
    steps_left_ -= steps;
  }
  /// Charges for comparing a name of that size with so many others.
  void charge_names(size_t count, size_t bytes) { charge(1 + count * (1 + bytes / 64) / 4); }
  /// Charges for comparing a word at every place of a text, beside reading the text.
  void charge_search(const Text& text, const Text& word) { charge(text.size() / 64 * (word.size() / 64)); }
  /// Charges for making text of that size, and fails when it is too long.
  void charge_text(size_t bytes) {
    if (bytes > limits_.text_bytes) fail("the template makes too long a text");
    charge(1 + bytes / 64);
  }
  void append(Text& out, const Text& text) {
    charge(steps_of(text));
    if (out.size() + text.size() > limits_.text_bytes) fail("the template makes too long a text");
    out.append(text);
  }

  bool truthy(const Value& value) const;
  /// Python's ==.
  bool equal(const Value& left, const Value& right);
  /// Python's ordering: negative, 0 or positive. Fails for values without an order.
  int order(const Value& left, const Value& right);
  /// `item in container`.
  bool contains(const Value& container, const Value& item);
  /// str(value) and repr(value).
  Text str(const Value& value);
  Text repr(const Value& value);
  /// json.dumps(value, ensure_ascii=ascii, indent=indent); indent < 0: one line.
  Text to_json(const Value& value, int indent = -1, std::string_view item_separator = {},
               std::string_view key_separator = {}, bool sort_keys = false, bool ascii = false);
  /// The items a loop would see: of a list, the keys of a dict, the characters of text, none of undefined.
  std::vector<Value> items(const Value& value);
  /// len(value); undefined has length 0.
  int64_t length(const Value& value);
  /// left OP right for + - * / // % **.
  Value arithmetic(std::string_view operation, const Value& left, const Value& right);
  /// left OP right for == != < <= > >= in, not in.
  bool compare(std::string_view operation, const Value& left, const Value& right);
  /// Python's name of the value's type.
  static std::string_view type_name(const Value& value);
  /// The text of an argument; fails with `what` otherwise.
  const Text& text_of(const Value& value, std::string_view what) const;
  int64_t integer_of(const Value& value, std::string_view what) const;
  /// Fails with "'x' is undefined" when it is.
  void require_defined(const Value& value) const;
  /// The dict's entry of that name; nullptr when there is none.
  const Value* find(const Dict& dict, std::string_view key) {
    charge_names(dict.entries.size(), key.size());
    return dict.find(key);
  }

 private:
  /// Of touching a text and its runs once.
  static uint64_t steps_of(const Text& text) { return 1 + (text.size() + sizeof(Run) * text.runs().size()) / 64; }
  [[noreturn]] void fail_steps() const;
  void write(Text& out, const Value& value, bool quoted);
  struct JsonStyle;
  void write_json(Text& out, const Value& value, const JsonStyle& style, int level);
  Value repeat(const Value& value, int64_t count);
  Value integer_arithmetic(std::string_view operation, int64_t left, int64_t right);

  const std::string& name_;
  const Limits limits_;
  const std::optional<std::tm> now_;
  uint64_t* const shared_steps_;
  const uint64_t granted_steps_;
  uint64_t steps_left_;
  int depth_ = 0;
  int line_ = 1;
};

/// `value | name(arguments)` and `value is name(arguments)`. Fail for unknown names.
Value apply_filter(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(Runtime& runtime, const std::string& name, const Value& value, const Arguments& arguments);
bool is_test(const std::string& name);

/// `value.name` for data (not methods): dict entries, namespace attributes, loop fields; undefined when absent.
Value attribute_of(Runtime& runtime, const Value& value, const std::string& name);
/// `value[key]`; undefined when absent.
Value subscript_of(Runtime& runtime, const Value& value, const Value& key);
/// `value[start:stop:step]`, None for a missing part.
Value slice_of(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step);

/// Whether values of that type have a method of that name, and its call.
bool has_method(const Value& value, std::string_view name);
Value call_method(Runtime& runtime, const Value& value, const std::string& name, const Arguments& arguments);

/// Text methods that filters share: see Python's str. change_case also knows "title filter", jinja2's, which begins words elsewhere.
Text strip_text(Runtime& runtime, const Text& text, const Value* characters, bool left, bool right);
Text change_case(Runtime& runtime, const Text& text, std::string_view method);
Text replace_text(Runtime& runtime, const Text& text, const Text& old, const Text& replacement, int64_t count);

}  // namespace cotune::jinja
