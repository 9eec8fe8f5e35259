#include <algorithm>

#include "data/template/jinja_renderer.h"

namespace cotune::jinja {

Value Renderer::evaluate_call(const Expression& expression) {
  const Expression& callee = *expression.children[0];
  if (callee.kind == ExpressionKind::attribute) {
    const Value object = evaluate(*callee.children[0]);
    if (has_method(object, callee.name)) {
      const Arguments arguments = arguments_of(expression);
      runtime_.set_line(expression.line);
      return call_method(runtime_, object, callee.name, arguments);
    }
    const Value member = attribute_of(runtime_, object, callee.name);
    const Arguments arguments = arguments_of(expression);
    runtime_.set_line(expression.line);
    if (const Function* function = member.as_function()) return call_function(*function, arguments);
    runtime_.fail(fmt::format("{} has no method '{}'", Runtime::type_name(object), callee.name));
  }
  const Value value = evaluate(callee);
  const Arguments arguments = arguments_of(expression);
  runtime_.set_line(expression.line);
  runtime_.require_defined(value);
  const Function* function = value.as_function();
  if (!function) runtime_.fail(fmt::format("a {} cannot be called", Runtime::type_name(value)));
  return call_function(*function, arguments);
}

Value Renderer::call_function(const Function& function, const Arguments& arguments) {
  return function.macro ? call_macro(function, arguments) : call_global(function.name, arguments);
}

Value Renderer::call_macro(const Function& function, const Arguments& arguments) {
  const std::shared_ptr<const Macro> macro = function.macro;  // the body may replace the variable that holds it
  const MacroDefinition& definition = *macro->definition;
  const auto outer = scope_;
  push_scope(macro->scope);
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const std::string& parameter = definition.parameters[i];
    const Value* given = arguments.find(i, parameter);
    const size_t required = definition.parameters.size() - definition.defaults.size();
    Value value = given ? *given
                  : i >= required ? evaluate(*definition.defaults[i - required])
                                  : Value::undefined(parameter);
    set_variable(parameter, value);
  }
  if (arguments.positional.size() > definition.parameters.size()) {
    runtime_.fail(fmt::format("macro '{}' takes {} arguments, got {}", definition.name, definition.parameters.size(),
                              arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    if (std::find(definition.parameters.begin(), definition.parameters.end(), name) == definition.parameters.end()) {
      runtime_.fail(fmt::format("macro '{}' has no parameter '{}'", definition.name, name));
    }
  }
  Text out;
  run_block(definition.body, out);
  scope_ = outer;
  return out;
}

Value Renderer::call_global(const std::string& name, const Arguments& arguments) {
  if (name == "namespace") return make_namespace(arguments);
  if (name == "dict") return make_dict(arguments);
  if (name == "strftime_now") return format_time(arguments);
  if (name == "raise_exception") {
    const Value* message = arguments.find(0, "message");
    runtime_.fail(message ? runtime_.str(*message).bytes() : "raise_exception");
  }
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    const size_t count = arguments.positional.size();
    if (count == 0 || count > 3) runtime_.fail("range takes one to three arguments");
    for (size_t i = 0; i < count; ++i) {
      bounds[count == 1 ? 1 : i] = runtime_.integer_of(arguments.positional[i], "range");
    }
    const auto [start, stop, step] = bounds;
    if (step == 0) runtime_.fail("range: the step cannot be zero");
    std::vector<Value> items;
    __int128 value = start;
    for (; step > 0 ? value < stop : value > stop; value += step) {
      if (items.size() >= 100'000) runtime_.fail("range: more than 100000 items");
      runtime_.charge(4);
      items.emplace_back(static_cast<int64_t>(value));
    }
    return Value::list(std::move(items));
  }
  runtime_.fail(fmt::format("'{}' cannot be called by itself", name));
}

void Renderer::put(std::vector<std::pair<Text, Value>>& entries, const Text& name, Value value) {
  runtime_.charge(1 + name.size() / 64 + entries.size() * (1 + name.size() / 64) / 16);
  const auto same = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.first == name; });
  if (same != entries.end()) {
    same->second = std::move(value);
  } else {
    entries.emplace_back(name, std::move(value));
  }
}

Value Renderer::make_dict(const Arguments& arguments) {
  std::vector<std::pair<Text, Value>> entries;
  if (!arguments.positional.empty()) {
    const Dict* dict = arguments.positional[0].as_dict();
    if (!dict) runtime_.fail("dict: expected a mapping");
    for (const auto& [key, value] : dict->entries) runtime_.charge(4 + key.size() / 64);
    entries = dict->entries;
  }
  for (const auto& [name, value] : arguments.named) put(entries, Text(name), value);
  return Value::dict(std::move(entries));
}

Value Renderer::make_namespace(const Arguments& arguments) {
  runtime_.charge(16);
  const Value values = make_dict(arguments);
  auto space = std::make_shared<Namespace>();
  for (const auto& [key, value] : values.as_dict()->entries) {
    if (key.bytes().starts_with('_')) runtime_.fail("a namespace's attribute cannot begin with an underscore");
    space->attributes.emplace_back(key.bytes(), value);
  }
  namespaces_.push_back(space);
  return Value(Value::Storage(std::move(space)));
}

Value Renderer::format_time(const Arguments& arguments) {
  const Value* format = arguments.find(0, "format");
  if (!format) runtime_.fail("strftime_now needs a format");
  const std::string& pattern = runtime_.text_of(*format, "strftime_now").bytes();
  if (pattern.empty()) return Text();
  char buffer[512];
  const size_t size = pattern.size() > 200 ? 0 : std::strftime(buffer, sizeof buffer, pattern.c_str(), &*runtime_.now());
  if (size == 0) runtime_.fail("strftime_now: the format is too long");
  return Text(std::string(buffer, size));
}

}  // namespace cotune::jinja
