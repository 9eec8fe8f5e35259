#include "data/template/jinja_expression_parser.h"

#include <algorithm>

#include "base/error.h"

namespace cotune::jinja {

void ExpressionParser::fail(const std::string& reason) const {
  throw_user_error("{}:{}: {}", name_, peek().line, reason);
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser_.nesting_ >= max_nesting) parser_.fail(fmt::format("nested deeper than {} levels", max_nesting));
  ++parser_.nesting_;
}

bool ExpressionParser::is_symbol(std::string_view symbol) const {
  return peek().kind == TokenKind::symbol && peek().text == symbol;
}
bool ExpressionParser::is_name(std::string_view name) const {
  return peek().kind == TokenKind::name && peek().text == name;
}
bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!is_symbol(symbol)) return false;
  next();
  return true;
}
bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}
void ExpressionParser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) fail(fmt::format("expected '{}', found {}", symbol, describe(peek())));
}
void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (peek().kind != kind) fail(fmt::format("expected {}, found {}", what, describe(peek())));
  next();
}
std::string ExpressionParser::parse_name(std::string_view what) {
  if (peek().kind != TokenKind::name) fail(fmt::format("expected {}, found {}", what, describe(peek())));
  std::string name = peek().text;
  next();
  return name;
}

std::string ExpressionParser::describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::text: return "text";
    case TokenKind::output_begin: return "'{{'";
    case TokenKind::output_end: return "'}}'";
    case TokenKind::block_begin: return "'{%'";
    case TokenKind::block_end: return "'%}'";
    case TokenKind::end: return "the end of the template";
    case TokenKind::integer:
    case TokenKind::real: return "a number";
    case TokenKind::string: return "a string";
    default: return fmt::format("'{}'", token.text);
  }
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind) const {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = peek().line;
  return expression;
}

ExpressionPtr ExpressionParser::adopt(ExpressionPtr parent, ExpressionPtr child) const {
  if (child) {
    parent->depth = std::max(parent->depth, child->depth + 1);
    if (parent->depth > max_nesting) fail(fmt::format("nested deeper than {} levels", max_nesting));
  }
  parent->children.push_back(std::move(child));
  return parent;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition) {
  ExpressionPtr first = parse_expression(with_condition);
  if (!is_symbol(",")) return first;
  ExpressionPtr tuple = adopt(make(ExpressionKind::tuple), std::move(first));
  while (skip_symbol(",")) {
    const TokenKind kind = peek().kind;
    if (kind == TokenKind::output_end || kind == TokenKind::block_end || is_symbol(")") || is_symbol("]")) break;
    tuple = adopt(std::move(tuple), parse_expression(with_condition));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  ExpressionPtr value = parse_or();
  while (with_condition && is_name("if")) {
    ExpressionPtr conditional = make(ExpressionKind::conditional);
    next();
    conditional = adopt(std::move(conditional), parse_or());
    conditional = adopt(std::move(conditional), std::move(value));
    value = adopt(std::move(conditional), skip_name("else") ? parse_expression() : nullptr);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    ExpressionPtr parent = make(ExpressionKind::logic_or);
    next();
    parent = adopt(std::move(parent), std::move(left));
    left = adopt(std::move(parent), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    ExpressionPtr parent = make(ExpressionKind::logic_and);
    next();
    parent = adopt(std::move(parent), std::move(left));
    left = adopt(std::move(parent), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExpressionPtr parent = make(ExpressionKind::logic_not);
  next();
  return adopt(std::move(parent), parse_not());
}

ExpressionPtr ExpressionParser::parse_compare() {
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::string operation;
    for (const std::string_view symbol : {"==", "!=", "<", "<=", ">", ">="}) {
      if (is_symbol(symbol)) operation = symbol;
    }
    if (is_name("in")) operation = "in";
    const bool not_in = is_name("not") && peek_next().kind == TokenKind::name && peek_next().text == "in";
    if (not_in) operation = "not in";
    if (operation.empty()) break;
    if (!chain) chain = adopt(make(ExpressionKind::compare), std::move(first));
    next();
    if (not_in) next();
    chain->operators.push_back(operation);
    chain = adopt(std::move(chain), parse_sum());
  }
  return chain ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (is_symbol("+") || is_symbol("-")) {
    ExpressionPtr parent = make(ExpressionKind::arithmetic);
    parent->operators.push_back(peek().text);
    next();
    parent = adopt(std::move(parent), std::move(left));
    left = adopt(std::move(parent), parse_concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  ExpressionPtr first = parse_product();
  if (!is_symbol("~")) return first;
  ExpressionPtr parent = adopt(make(ExpressionKind::concatenate), std::move(first));
  while (skip_symbol("~")) parent = adopt(std::move(parent), parse_product());
  return parent;
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (is_symbol("*") || is_symbol("/") || is_symbol("//") || is_symbol("%")) {
    ExpressionPtr parent = make(ExpressionKind::arithmetic);
    parent->operators.push_back(peek().text);
    next();
    parent = adopt(std::move(parent), std::move(left));
    left = adopt(std::move(parent), parse_power());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary(true);
  while (is_symbol("**")) {
    ExpressionPtr parent = make(ExpressionKind::arithmetic);
    parent->operators.push_back("**");
    next();
    parent = adopt(std::move(parent), std::move(left));
    left = adopt(std::move(parent), parse_unary(true));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr value;
  if (is_symbol("-") || is_symbol("+")) {
    ExpressionPtr parent = make(is_symbol("-") ? ExpressionKind::negate : ExpressionKind::plus);
    next();
    value = adopt(std::move(parent), parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filter ? parse_filters(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token token = peek();
  if (is_symbol("[")) return parse_list();
  if (is_symbol("{")) return parse_dict();
  if (skip_symbol("(")) {
    if (skip_symbol(")")) return make(ExpressionKind::tuple);
    ExpressionPtr value = parse_tuple();
    expect_symbol(")");
    return value;
  }
  ExpressionPtr constant = make(ExpressionKind::constant);
  switch (token.kind) {
    case TokenKind::name:
      next();
      if (token.text == "true" || token.text == "True") {
        constant->value = true;
      } else if (token.text == "false" || token.text == "False") {
        constant->value = false;
      } else if (token.text == "none" || token.text == "None") {
        constant->value = None{};
      } else {
        constant->kind = ExpressionKind::name;
        constant->name = token.text;
      }
      return constant;
    case TokenKind::string: {
      std::string joined;
      while (peek().kind == TokenKind::string) {
        joined += peek().text;
        next();
      }
      constant->value = Value::text(std::move(joined));
      return constant;
    }
    case TokenKind::integer:
      next();
      constant->value = token.integer;
      return constant;
    case TokenKind::real:
      next();
      constant->value = token.real;
      return constant;
    default:
      fail("expected an expression, found " + describe(token));
  }
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr list = make(ExpressionKind::list);
  next();
  while (!is_symbol("]")) {
    if (!list->children.empty()) expect_symbol(",");
    if (is_symbol("]")) break;
    list = adopt(std::move(list), parse_expression());
  }
  next();
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(ExpressionKind::dict);
  next();
  while (!is_symbol("}")) {
    if (!dict->children.empty()) expect_symbol(",");
    if (is_symbol("}")) break;
    dict = adopt(std::move(dict), parse_expression());
    expect_symbol(":");
    dict = adopt(std::move(dict), parse_expression());
  }
  next();
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr value) {
  while (true) {
    if (is_symbol(".")) {
      next();
      if (peek().kind == TokenKind::integer) {
        ExpressionPtr index = make(ExpressionKind::constant);
        index->value = peek().integer;
        next();
        value = adopt(adopt(make(ExpressionKind::subscript), std::move(value)), std::move(index));
      } else {
        ExpressionPtr attribute = make(ExpressionKind::attribute);
        attribute->name = parse_name("an attribute");
        value = adopt(std::move(attribute), std::move(value));
      }
    } else if (is_symbol("[")) {
      value = parse_subscript(std::move(value));
    } else if (is_symbol("(")) {
      ExpressionPtr call = adopt(make(ExpressionKind::call), std::move(value));
      parse_arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr value) {
  ExpressionPtr subscript = adopt(make(ExpressionKind::subscript), std::move(value));
  next();
  ExpressionPtr parts[3];
  int colons = 0;
  while (!is_symbol("]")) {
    if (is_symbol(":") && colons < 2) {
      ++colons;
      next();
    } else if (!parts[colons]) {
      parts[colons] = parse_expression();
    } else {
      fail("expected ']', found " + describe(peek()));
    }
  }
  next();
  if (colons == 0 && !parts[0]) fail("expected a subscript, found ']'");
  if (colons > 0) subscript->kind = ExpressionKind::slice;
  for (int i = 0; i < (colons > 0 ? 3 : 1); ++i) subscript = adopt(std::move(subscript), std::move(parts[i]));
  return subscript;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value) {
  while (true) {
    if (is_symbol("|")) {
      next();
      ExpressionPtr filter = adopt(make(ExpressionKind::filter), std::move(value));
      filter->name = parse_name("the name of a filter");
      if (is_symbol("(")) parse_arguments(*filter);
      value = std::move(filter);
    } else if (is_name("is")) {
      value = parse_test(std::move(value));
    } else if (is_symbol("(")) {
      ExpressionPtr call = adopt(make(ExpressionKind::call), std::move(value));
      parse_arguments(*call);
      value = std::move(call);
    } else {
      return value;
    }
  }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  next();
  const bool negated = skip_name("not");
  ExpressionPtr test = adopt(make(ExpressionKind::test), std::move(value));
  test->name = parse_name("the name of a test");
  const Token& token = peek();
  bool has_argument = token.kind == TokenKind::string || token.kind == TokenKind::integer ||
                      token.kind == TokenKind::real || is_symbol("[") || is_symbol("{");
  if (token.kind == TokenKind::name) {
    has_argument = true;
    for (const std::string_view word : {"else", "or", "and", "if", "is", "in", "not"}) {
      if (token.text == word) has_argument = false;
    }
  }
  if (is_symbol("(")) {
    parse_arguments(*test);
  } else if (has_argument) {
    test = adopt(std::move(test), parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  return adopt(make(ExpressionKind::logic_not), std::move(test));
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_symbol("(");
  bool first = true;
  while (!is_symbol(")")) {
    if (!first) expect_symbol(",");
    if (is_symbol(")")) break;
    first = false;
    if (is_symbol("*") || is_symbol("**")) fail("unpacked arguments are not available in chat templates");
    const bool named =
        peek().kind == TokenKind::name && peek_next().kind == TokenKind::symbol && peek_next().text == "=";
    std::string name = named ? peek().text : "";
    if (named) {
      next();
      next();
    } else if (!call.named.empty()) {
      fail("a positional argument follows a named one");
    }
    ExpressionPtr value = parse_expression();
    call.depth = std::max(call.depth, value->depth + 1);
    if (call.depth > max_nesting) fail(fmt::format("nested deeper than {} levels", max_nesting));
    if (named) {
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      call.children.push_back(std::move(value));
    }
  }
  next();
}

}  // namespace cotune::jinja
