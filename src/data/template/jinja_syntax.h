/// The syntax tree of a template. Built by the parser, read by the renderer, immutable in between.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/template/jinja_value.h"

namespace cotune::jinja {

enum class ExpressionKind {
  constant,     ///< value
  name,         ///< name
  list,         ///< children
  tuple,        ///< children
  dict,         ///< children: key, value, key, value …
  attribute,    ///< children[0] . name
  subscript,    ///< children[0] [ children[1] ]
  slice,        ///< children[0] [ children[1] : children[2] : children[3] ], each of the three may be null
  call,         ///< children[0] ( children[1…], named )
  filter,       ///< children[0] | name ( children[1…], named )
  test,         ///< children[0] is name ( children[1…], named )
  logic_not,    ///< children[0]
  negate,       ///< children[0]
  plus,         ///< children[0]
  arithmetic,   ///< children[0] operators[0] children[1]
  concatenate,  ///< children, joined by ~
  compare,      ///< children[0] operators[0] children[1] operators[1] children[2] …
  logic_and,    ///< children[0], children[1]
  logic_or,     ///< children[0], children[1]
  conditional,  ///< children: condition, value when true, value when false (may be null)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::constant;
  int line = 0;
  int depth = 1;  ///< nesting, bounded by the parser
  std::string name;
  Value value;
  std::vector<std::unique_ptr<Expression>> children;
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named;
  std::vector<std::string> operators;
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

/// What an assignment or a loop writes: names (more than one: unpacked), or one attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  std::string attribute;
};

struct Branch {
  ExpressionPtr condition;  ///< null: else
  Block body;
};

enum class StatementKind {
  text,       ///< text
  output,     ///< expression
  condition,  ///< branches, tried in order
  loop,       ///< target, expression, filter (may be null), body, otherwise
  set,        ///< target, expression
  set_block,  ///< target, body
  macro,      ///< macro
  scope,      ///< body in a scope of its own, with `targets` = `values` set first (with, generation)
  stop,       ///< break
  next,       ///< continue
};

/// A macro's definition. `defaults` belongs to the last parameters.
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;
  Block body;
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 0;
  Text text;
  ExpressionPtr expression;
  ExpressionPtr filter;
  Target target;
  std::vector<Branch> branches;
  Block body;
  Block otherwise;
  std::unique_ptr<MacroDefinition> macro;
  std::vector<std::pair<std::string, ExpressionPtr>> bindings;
};

}  // namespace cotune::jinja
