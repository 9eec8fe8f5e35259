#include "data/template/jinja_value.h"

#include <algorithm>

#include "base/error.h"
#include "data/template/jinja_python_text.h"

namespace cotune::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

Origin Text::origin_at(size_t byte) const {
  COTUNE_CHECK(byte < bytes_.size());
  return std::upper_bound(runs_.begin(), runs_.end(), byte,
                          [](size_t position, const Run& run) { return position < run.end; })
      ->origin;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other) {
  size_t begin = 0;
  bytes_.reserve(bytes_.size() + other.size());
  for (const Run& run : other.runs_) {
    append(std::string_view(other.bytes_).substr(begin, run.end - begin), run.origin);
    begin = run.end;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text result;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t position, const Run& r) { return position < r.end; });
  while (begin < end && run != runs_.end()) {
    const size_t stop = std::min(end, run->end);
    result.append(std::string_view(bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
  return result;
}

namespace {

constexpr size_t max_undefined_bytes = 200;  ///< of a name in messages

void check_depth(int depth) {
  if (depth > max_value_depth) throw_user_error("values nested deeper than {} levels", max_value_depth);
}

template <typename T>
const T* pointer(const Value::Storage& storage) {
  const auto* held = std::get_if<std::shared_ptr<const T>>(&storage);
  return held ? held->get() : nullptr;
}

}  // namespace

int depth_of(const Value& value) {
  if (const List* list = value.as_list()) return list->depth;
  if (const Dict* dict = value.as_dict()) return dict->depth;
  if (const Loop* loop = value.as_loop()) return loop->depth;
  return 0;
}

int depth_over(const std::vector<Value>& items) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
  return 1 + deepest;
}

Value Value::undefined(std::string_view name) {
  return Value(Storage(Undefined{shortened(name, max_undefined_bytes)}));
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  const int depth = depth_over(items);
  check_depth(depth);
  return Value(Storage(std::make_shared<const List>(List{std::move(items), is_tuple, depth})));
}

Value Value::dict(std::vector<std::pair<Text, Value>> entries) {
  auto dict = std::make_shared<Dict>(Dict{std::move(entries), 1});
  for (const auto& [key, item] : dict->entries) dict->depth = std::max(dict->depth, 1 + depth_of(item));
  check_depth(dict->depth);
  return Value(Storage(std::shared_ptr<const Dict>(std::move(dict))));
}

const Text* Value::as_text() const { return pointer<Text>(storage_); }
const List* Value::as_list() const { return pointer<List>(storage_); }
const Dict* Value::as_dict() const { return pointer<Dict>(storage_); }
const Loop* Value::as_loop() const { return pointer<Loop>(storage_); }
const Function* Value::as_function() const { return pointer<Function>(storage_); }
Namespace* Value::as_namespace() const {
  const auto* held = std::get_if<std::shared_ptr<Namespace>>(&storage_);
  return held ? held->get() : nullptr;
}

int64_t Value::integer() const {
  if (const bool* flag = std::get_if<bool>(&storage_)) return *flag ? 1 : 0;
  COTUNE_CHECK(is<int64_t>());
  return std::get<int64_t>(storage_);
}

double Value::number() const {
  if (const double* real = std::get_if<double>(&storage_)) return *real;
  return static_cast<double>(integer());
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

namespace {

Value convert(const nlohmann::ordered_json& json, Origin origin, int level) {
  check_depth(level);
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::json::value_t::number_integer:
      return json.get<int64_t>();
    case nlohmann::json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) throw_user_error("found the integer {}; accepted: at most {}", number, INT64_MAX);
      return static_cast<int64_t>(number);
    }
    case nlohmann::json::value_t::number_float:
      return json.get<double>();
    case nlohmann::json::value_t::string:
      return Text(json.get<std::string>(), origin);
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, origin, level + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      std::vector<std::pair<Text, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        entries.emplace_back(Text(key, origin), convert(item, origin, level + 1));
      }
      return Value::dict(std::move(entries));
    }
    default:
      return None{};
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json, Origin origin) { return convert(json, origin, 1); }

}  // namespace cotune::jinja
