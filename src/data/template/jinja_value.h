/// Values of the template interpreter. Text remembers where each of its bytes came from, so that whoever tokenizes the
/// rendered text can tell the template's own control tokens from the same characters inside a user's message.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cotune::jinja {

/// Where bytes came from: `template_origin`, or a number that the caller chose for a variable.
using Origin = int32_t;
constexpr Origin template_origin = 0;

/// Bytes up to `end` (from the end of the run before) have one origin.
struct Run {
  size_t end = 0;
  Origin origin = template_origin;
  bool operator==(const Run&) const = default;
};

/// UTF-8 text with the origin of every byte. Runs cover all bytes, are not empty, and neighbours differ in origin.
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, Origin origin = template_origin);

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin_at(size_t byte) const;

  void append(const Text& other);
  void append(std::string_view bytes, Origin origin);
  /// Bytes [begin, end) with their origins.
  Text slice(size_t begin, size_t end) const;

  bool operator==(const Text& other) const { return bytes_ == other.bytes_; }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Function;

/// A name that has no value. Prints as nothing, is false, has no items; any other use is an error naming it.
struct Undefined {
  std::string name;
};
struct None {};

/// One value: immutable and shared, except namespaces. Integers are 64 bits; going beyond is an error.
class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>, std::shared_ptr<const Loop>,
                               std::shared_ptr<const Function>>;

  Value() = default;
  Value(None) : storage_(None{}) {}
  Value(bool value) : storage_(value) {}
  Value(int64_t value) : storage_(value) {}
  Value(double value) : storage_(value) {}
  Value(Text text) : storage_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(Storage storage) : storage_(std::move(storage)) {}
  /// Of a long name its beginning.
  static Value undefined(std::string_view name);
  static Value text(std::string bytes) { return Value(Text(std::move(bytes))); }
  static Value list(std::vector<Value> items, bool is_tuple = false);
  static Value dict(std::vector<std::pair<Text, Value>> entries);

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(storage_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }  // Python's bool is an int
  bool is_number() const { return is_integer() || is<double>(); }
  const Text* as_text() const;
  const List* as_list() const;
  const Dict* as_dict() const;
  const Loop* as_loop() const;
  const Function* as_function() const;
  Namespace* as_namespace() const;
  int64_t integer() const;  ///< of an integer or boolean
  double number() const;    ///< of any number

  const Storage& storage() const { return storage_; }

 private:
  Storage storage_;
};

/// Nesting of lists, dicts and loops below a value; 0 for anything else. Bounded by `max_value_depth`.
int depth_of(const Value& value);
/// Of what holds these items.
int depth_over(const std::vector<Value>& items);
constexpr int max_value_depth = 100;

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Text, Value>> entries;  ///< insertion order, keys distinct
  int depth = 1;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

/// The variable `loop` of one iteration.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  int64_t index = 0;  ///< from 0
  int depth = 1;
};

struct Macro;

/// Something callable: a macro, a global function, or the name of a method.
struct Function {
  std::string name;
  std::shared_ptr<const Macro> macro;
};

/// JSON as a value: every string and key gets `origin`. Throws UserError beyond `max_value_depth` levels.
Value from_json(const nlohmann::ordered_json& json, Origin origin);

/// Arguments of a call of a function, filter or test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  /// The argument at `index` or called `name`; nullptr when not given.
  const Value* find(size_t index, std::string_view name) const;
};

}  // namespace cotune::jinja
