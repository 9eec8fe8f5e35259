/// The expression half of the template parser.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/template/jinja_lexer.h"
#include "data/template/jinja_syntax.h"

namespace cotune::jinja {

/// Recursive descent over tokens; every failure is a UserError `name:line: reason`. `name` outlives the parser.
class ExpressionParser {
 public:
  static constexpr int max_nesting = 150;

  ExpressionParser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  /// One expression; `with_condition` false stops before `if` (the iterable of a loop).
  ExpressionPtr parse_expression(bool with_condition = true);
  /// One expression, or several separated by commas as a tuple.
  ExpressionPtr parse_tuple(bool with_condition = true);

 protected:
  const Token& peek() const { return tokens_[at_]; }
  const Token& peek_next() const { return tokens_[at_ + (at_ + 1 < tokens_.size() ? 1 : 0)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool is_symbol(std::string_view symbol) const;
  bool is_name(std::string_view name) const;
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  void expect(TokenKind kind, std::string_view what);
  std::string parse_name(std::string_view what);
  static std::string describe(const Token& token);
  [[noreturn]] void fail(const std::string& reason) const;

  /// Counts nesting while it lives; fails beyond `max_nesting`.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr make(ExpressionKind kind) const;
  ExpressionPtr adopt(ExpressionPtr parent, ExpressionPtr child) const;
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr value);
  ExpressionPtr parse_subscript(ExpressionPtr value);
  ExpressionPtr parse_filters(ExpressionPtr value);
  ExpressionPtr parse_test(ExpressionPtr value);
  void parse_arguments(Expression& call);

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace cotune::jinja
