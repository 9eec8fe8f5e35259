/// Walks a syntax tree and writes its output.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/template/jinja_runtime.h"
#include "data/template/jinja_syntax.h"

namespace cotune::jinja {

/// The variables of one scope. A loop iteration, macro call, `with` or `generation` block has its own; `if` has not.
struct Scope {
  std::shared_ptr<Scope> parent;
  int depth = 0;
  std::vector<std::pair<std::string, Value>> variables;
};

/// A macro and the scope it was defined in.
struct Macro {
  const MacroDefinition* definition = nullptr;
  std::shared_ptr<Scope> scope;
};

class Renderer {
 public:
  explicit Renderer(Runtime& runtime);
  ~Renderer();
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;

  Text render(const Block& block, std::vector<std::pair<std::string, Value>> variables);

 private:
  enum class Flow { normal, stop, next };

  Flow run_block(const Block& block, Text& out);
  Flow run(const Statement& statement, Text& out);
  Flow run_loop(const Statement& statement, Text& out);
  Flow run_scope(const Statement& statement, Text& out);
  void define_macro(const Statement& statement);
  void assign(const Target& target, const Value& value);
  void bind(const Target& target, const Value& value);
  void set_variable(const std::string& name, const Value& value);
  Value lookup(const std::string& name);

  Value evaluate(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_concatenation(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value negated(const Value& value);
  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& expressions, size_t begin);
  Arguments arguments_of(const Expression& expression);
  Value call_function(const Function& function, const Arguments& arguments);
  Value call_macro(const Function& function, const Arguments& arguments);
  Value call_global(const std::string& name, const Arguments& arguments);
  void put(std::vector<std::pair<Text, Value>>& entries, const Text& name, Value value);
  Value make_dict(const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Value format_time(const Arguments& arguments);

  void push_scope(std::shared_ptr<Scope> parent);

  Runtime& runtime_;
  std::shared_ptr<Scope> scope_;
  // Both can hold references in a circle; they are emptied when the rendering ends.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;
};

}  // namespace cotune::jinja
