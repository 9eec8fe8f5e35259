#include "data/template/jinja_renderer.h"

#include <algorithm>
#include <array>

namespace cotune::jinja {
namespace {

constexpr int max_scope_depth = 200;

}  // namespace

Renderer::Renderer(Runtime& runtime) : runtime_(runtime) {}

Renderer::~Renderer() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& captured : captured_scopes_) {
    // Also those around it: their macros would keep the next one alive, and so on, each to be freed within the one before.
    for (Scope* scope = captured.get(); scope; scope = scope->parent.get()) scope->variables.clear();
  }
}

Text Renderer::render(const Block& block, std::vector<std::pair<std::string, Value>> variables) {
  scope_ = std::make_shared<Scope>();
  scope_->variables = std::move(variables);
  push_scope(scope_);
  Text out;
  run_block(block, out);
  return out;
}

void Renderer::push_scope(std::shared_ptr<Scope> parent) {
  runtime_.charge(4);
  const int depth = parent->depth + 1;
  if (depth > max_scope_depth) runtime_.fail("the template recurses too deeply");
  scope_ = std::make_shared<Scope>(Scope{std::move(parent), depth, {}});
}

Renderer::Flow Renderer::run_block(const Block& block, Text& out) {
  const Runtime::Nesting nesting(runtime_);
  for (const auto& statement : block) {
    const Flow flow = run(*statement, out);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::run(const Statement& statement, Text& out) {
  runtime_.charge(1);
  runtime_.set_line(statement.line);
  switch (statement.kind) {
    case StatementKind::text:
      runtime_.append(out, statement.text);
      return Flow::normal;
    case StatementKind::output:
      runtime_.append(out, runtime_.str(evaluate(*statement.expression)));
      return Flow::normal;
    case StatementKind::condition:
      for (const Branch& branch : statement.branches) {
        if (!branch.condition || runtime_.truthy(evaluate(*branch.condition))) return run_block(branch.body, out);
      }
      return Flow::normal;
    case StatementKind::loop:
      return run_loop(statement, out);
    case StatementKind::set:
      assign(statement.target, evaluate(*statement.expression));
      return Flow::normal;
    case StatementKind::set_block: {
      const auto outer = scope_;
      push_scope(scope_);
      Text content;
      const Flow flow = run_block(statement.body, content);
      scope_ = outer;
      if (flow == Flow::normal) assign(statement.target, std::move(content));
      return flow;
    }
    case StatementKind::macro:
      define_macro(statement);
      return Flow::normal;
    case StatementKind::scope:
      return run_scope(statement, out);
    case StatementKind::stop:
      return Flow::stop;
    case StatementKind::next:
      return Flow::next;
  }
  return Flow::normal;
}

Renderer::Flow Renderer::run_scope(const Statement& statement, Text& out) {
  const auto outer = scope_;
  std::vector<std::pair<std::string, Value>> bound;
  for (const auto& [name, expression] : statement.bindings) bound.emplace_back(name, evaluate(*expression));
  push_scope(scope_);
  scope_->variables = std::move(bound);
  const Flow flow = run_block(statement.body, out);
  scope_ = outer;
  return flow;
}

Renderer::Flow Renderer::run_loop(const Statement& statement, Text& out) {
  const Value iterated = evaluate(*statement.expression);
  auto items = std::make_shared<std::vector<Value>>(runtime_.items(iterated));
  const auto outer = scope_;
  if (statement.filter) {
    std::vector<Value> kept;
    for (const Value& item : *items) {
      push_scope(outer);
      bind(statement.target, item);
      if (runtime_.truthy(evaluate(*statement.filter))) kept.push_back(item);
    }
    scope_ = outer;
    *items = std::move(kept);
  }
  if (items->empty()) {
    push_scope(outer);
    const Flow flow = run_block(statement.otherwise, out);
    scope_ = outer;
    return flow;
  }
  const int depth = depth_over(*items);
  for (size_t i = 0; i < items->size(); ++i) {
    runtime_.charge(1);
    push_scope(outer);
    Loop loop{items, static_cast<int64_t>(i), depth};
    set_variable("loop", Value(Value::Storage(std::make_shared<const Loop>(std::move(loop)))));
    bind(statement.target, (*items)[i]);
    if (run_block(statement.body, out) == Flow::stop) break;
  }
  scope_ = outer;
  return Flow::normal;
}

void Renderer::define_macro(const Statement& statement) {
  if (captured_scopes_.empty() || captured_scopes_.back() != scope_) captured_scopes_.push_back(scope_);
  auto macro = std::make_shared<const Macro>(Macro{statement.macro.get(), scope_});
  auto function = std::make_shared<const Function>(Function{statement.macro->name, std::move(macro)});
  set_variable(statement.macro->name, Value(Value::Storage(std::move(function))));
}

void Renderer::set_variable(const std::string& name, const Value& value) {
  runtime_.charge(1 + scope_->variables.size() / 16);
  for (auto& [key, held] : scope_->variables) {
    if (key == name) {
      held = value;
      return;
    }
  }
  scope_->variables.emplace_back(name, value);
}

void Renderer::bind(const Target& target, const Value& value) {
  if (target.names.size() == 1) {
    set_variable(target.names[0], value);
    return;
  }
  const std::vector<Value> items = runtime_.items(value);
  if (items.size() != target.names.size()) {
    runtime_.fail(fmt::format("cannot unpack {} values into {} names", items.size(), target.names.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) set_variable(target.names[i], items[i]);
}

void Renderer::assign(const Target& target, const Value& value) {
  if (target.attribute.empty()) {
    bind(target, value);
    return;
  }
  const Value held = lookup(target.names[0]);
  Namespace* space = held.as_namespace();
  if (!space) runtime_.fail(fmt::format("cannot assign attribute on '{}': it is not a namespace", target.names[0]));
  if (target.attribute.starts_with('_')) runtime_.fail("a namespace's attribute cannot begin with an underscore");
  runtime_.charge(1 + space->attributes.size() / 16);
  for (auto& [key, attribute] : space->attributes) {
    if (key == target.attribute) {
      attribute = value;
      return;
    }
  }
  space->attributes.emplace_back(target.attribute, value);
}

Value Renderer::lookup(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    runtime_.charge(1 + scope->variables.size() / 16);
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return value;
    }
  }
  static constexpr std::array<std::string_view, 5> globals = {"namespace", "range", "dict", "raise_exception",
                                                              "strftime_now"};
  const bool is_global = std::find(globals.begin(), globals.end(), name) != globals.end();
  if (!is_global || (name == "strftime_now" && !runtime_.now())) return Value::undefined(name);
  return Value(Value::Storage(std::make_shared<const Function>(Function{name, nullptr})));
}

Value Renderer::evaluate(const Expression& expression) {
  const Runtime::Nesting nesting(runtime_);
  runtime_.charge(1);
  runtime_.set_line(expression.line);
  const auto child = [&](size_t i) { return evaluate(*expression.children[i]); };
  switch (expression.kind) {
    case ExpressionKind::constant:
      return expression.value;
    case ExpressionKind::name:
      return lookup(expression.name);
    case ExpressionKind::list:
    case ExpressionKind::tuple:
      return Value::list(evaluate_all(expression.children, 0), expression.kind == ExpressionKind::tuple);
    case ExpressionKind::dict:
      return evaluate_dict(expression);
    case ExpressionKind::attribute: {
      const Value object = child(0);
      if (has_method(object, expression.name)) {
        return Value(Value::Storage(std::make_shared<const Function>(Function{expression.name, nullptr})));
      }
      return attribute_of(runtime_, object, expression.name);
    }
    case ExpressionKind::subscript: {
      const Value object = child(0);
      return subscript_of(runtime_, object, child(1));
    }
    case ExpressionKind::slice:
      return evaluate_slice(expression);
    case ExpressionKind::call:
      return evaluate_call(expression);
    case ExpressionKind::filter: {
      const Value input = child(0);
      const Arguments arguments = arguments_of(expression);
      runtime_.set_line(expression.line);
      return apply_filter(runtime_, expression.name, input, arguments);
    }
    case ExpressionKind::test: {
      const Value input = child(0);
      const Arguments arguments = arguments_of(expression);
      runtime_.set_line(expression.line);
      return apply_test(runtime_, expression.name, input, arguments);
    }
    case ExpressionKind::logic_not:
      return !runtime_.truthy(child(0));
    case ExpressionKind::negate:
      return negated(child(0));
    case ExpressionKind::plus: {
      const Value operand = child(0);
      if (!operand.is_number()) runtime_.fail("'+' needs a number");
      return operand.is_integer() ? Value(operand.integer()) : operand;
    }
    case ExpressionKind::arithmetic: {
      const Value left = child(0);
      const Value right = child(1);
      return runtime_.arithmetic(expression.operators[0], left, right);
    }
    case ExpressionKind::concatenate:
      return evaluate_concatenation(expression);
    case ExpressionKind::compare:
      return evaluate_compare(expression);
    case ExpressionKind::logic_and: {
      Value left = child(0);
      return runtime_.truthy(left) ? child(1) : left;
    }
    case ExpressionKind::logic_or: {
      Value left = child(0);
      return runtime_.truthy(left) ? left : child(1);
    }
    case ExpressionKind::conditional:
      if (runtime_.truthy(child(0))) return child(1);
      return expression.children[2] ? child(2) : Value::undefined("the inline if without else");
  }
  return {};
}

Value Renderer::negated(const Value& value) {
  if (value.is<double>()) return -value.number();
  return runtime_.arithmetic("-", int64_t{0}, value);
}

Value Renderer::evaluate_slice(const Expression& expression) {
  const Value object = evaluate(*expression.children[0]);
  const auto part = [&](size_t i) {
    return expression.children[i] ? evaluate(*expression.children[i]) : Value(None{});
  };
  const Value start = part(1);
  const Value stop = part(2);
  return slice_of(runtime_, object, start, stop, part(3));
}

Value Renderer::evaluate_concatenation(const Expression& expression) {
  Text joined;
  for (const ExpressionPtr& part : expression.children) runtime_.append(joined, runtime_.str(evaluate(*part)));
  return joined;
}

Value Renderer::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1]);
    if (!runtime_.compare(expression.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

std::vector<Value> Renderer::evaluate_all(const std::vector<ExpressionPtr>& expressions, size_t begin) {
  std::vector<Value> values;
  values.reserve(expressions.size() - begin);
  for (size_t i = begin; i < expressions.size(); ++i) values.push_back(evaluate(*expressions[i]));
  return values;
}

Arguments Renderer::arguments_of(const Expression& expression) {
  Arguments arguments;
  arguments.positional = evaluate_all(expression.children, 1);
  for (const auto& [name, value] : expression.named) arguments.named.emplace_back(name, evaluate(*value));
  return arguments;
}

Value Renderer::evaluate_dict(const Expression& expression) {
  std::vector<std::pair<Text, Value>> entries;
  for (size_t i = 0; i + 1 < expression.children.size(); i += 2) {
    const Value key = evaluate(*expression.children[i]);
    Value value = evaluate(*expression.children[i + 1]);
    put(entries, runtime_.text_of(key, "key of a dict"), std::move(value));
  }
  return Value::dict(std::move(entries));
}

}  // namespace cotune::jinja
