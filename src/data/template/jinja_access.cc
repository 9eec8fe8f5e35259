#include <algorithm>

#include "data/template/jinja_python_text.h"
#include "data/template/jinja_runtime.h"

namespace cotune::jinja {
namespace {

Value loop_field(const Loop& loop, const std::string& name) {
  const auto count = static_cast<int64_t>(loop.items->size());
  const auto item = [&](int64_t index) {
    return index >= 0 && index < count ? (*loop.items)[static_cast<size_t>(index)]
                                       : Value::undefined("there is no such item: loop." + name);
  };
  if (name == "index") return loop.index + 1;
  if (name == "index0") return loop.index;
  if (name == "revindex") return count - loop.index;
  if (name == "revindex0") return count - loop.index - 1;
  if (name == "first") return loop.index == 0;
  if (name == "last") return loop.index + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return int64_t{1};  // jinja2 counts recursive loops only
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return item(loop.index - 1);
  if (name == "nextitem") return item(loop.index + 1);
  return Value::undefined("loop." + name);
}

/// Python's slice.indices for a sequence of that length.
struct SliceRange {
  int64_t start, stop, step;
};

SliceRange slice_range(Runtime& runtime, const Value& start, const Value& stop, const Value& step, int64_t length) {
  SliceRange range{0, 0, step.is_none() ? 1 : runtime.integer_of(step, "slice step")};
  if (range.step == 0) runtime.fail("slice step cannot be zero");
  range.step = std::clamp(range.step, -length - 1, length + 1);
  const bool down = range.step < 0;
  const auto bound = [&](const Value& value, int64_t fallback) {
    if (value.is_none()) return fallback;
    int64_t index = runtime.integer_of(value, "slice bound");
    if (index < 0) index = std::max<int64_t>(index, -length - 1) + length;
    return std::clamp<int64_t>(index, down ? -1 : 0, down ? length - 1 : length);
  };
  range.start = bound(start, down ? length - 1 : 0);
  range.stop = bound(stop, down ? -1 : length);
  return range;
}

}  // namespace

Value attribute_of(Runtime& runtime, const Value& value, const std::string& name) {
  runtime.require_defined(value);
  runtime.charge(name.size() / 64);
  if (const Dict* dict = value.as_dict()) {
    if (const Value* found = runtime.find(*dict, name)) return *found;
  } else if (const Namespace* space = value.as_namespace()) {
    runtime.charge_names(space->attributes.size(), name.size());
    for (const auto& [key, item] : space->attributes) {
      if (key == name) return item;
    }
  } else if (const Loop* loop = value.as_loop()) {
    return loop_field(*loop, name);
  }
  return Value::undefined(fmt::format("{} object has no attribute {}", Runtime::type_name(value), name));
}

Value subscript_of(Runtime& runtime, const Value& value, const Value& key) {
  runtime.require_defined(value);
  if (key.is_undefined()) return Value::undefined("subscript");
  if (key.is_integer()) {
    int64_t index = key.integer();
    if (const List* list = value.as_list()) {
      const auto count = static_cast<int64_t>(list->items.size());
      if (index < 0) index += count;
      if (index >= 0 && index < count) return list->items[static_cast<size_t>(index)];
      return Value::undefined(fmt::format("{} object has no element {}", Runtime::type_name(value), key.integer()));
    }
    if (const Text* text = value.as_text()) {
      runtime.charge(1 + text->size() / 4);
      const std::vector<size_t> offsets = code_point_offsets(text->bytes());
      const auto count = static_cast<int64_t>(offsets.size()) - 1;
      if (index < 0) index += count;
      if (index < 0 || index >= count) return Value::undefined(fmt::format("str object has no element {}", key.integer()));
      return text->slice(offsets[static_cast<size_t>(index)], offsets[static_cast<size_t>(index) + 1]);
    }
  }
  if (const Text* text = key.as_text()) return attribute_of(runtime, value, text->bytes());
  return Value::undefined(fmt::format("{} object has no such element", Runtime::type_name(value)));
}

Value slice_of(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step) {
  runtime.require_defined(value);
  const Text* text = value.as_text();
  const List* list = value.as_list();
  if (!text && !list) runtime.fail(fmt::format("a {} cannot be sliced", Runtime::type_name(value)));
  std::vector<size_t> offsets;
  if (text) {
    runtime.charge_text(text->size() * 4);
    offsets = code_point_offsets(text->bytes());
  }
  const auto length = static_cast<int64_t>(text ? offsets.size() - 1 : list->items.size());
  const SliceRange range = slice_range(runtime, start, stop, step, length);
  if (text && range.step == 1) {
    if (range.start >= range.stop) return Text();
    return text->slice(offsets[static_cast<size_t>(range.start)], offsets[static_cast<size_t>(range.stop)]);
  }
  Text characters;
  std::vector<Value> items;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    runtime.charge(1);
    const auto at = static_cast<size_t>(i);
    if (text) {
      characters.append(text->slice(offsets[at], offsets[at + 1]));
    } else {
      items.push_back(list->items[at]);
    }
  }
  if (text) return characters;
  return Value::list(std::move(items), list->is_tuple);
}

}  // namespace cotune::jinja
