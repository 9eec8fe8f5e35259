#include "data/template/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "data/template/jinja_expression_parser.h"

namespace cotune::jinja {
namespace {

class StatementParser : ExpressionParser {
 public:
  StatementParser(std::vector<Token> tokens, const std::string& name) : ExpressionParser(std::move(tokens), name) {}

  Block parse_all() {
    Block block = parse_block({});
    if (peek().kind != TokenKind::end) fail("unexpected end of a block");
    return block;
  }

 private:
  /// Statements up to `{% one of ends`, whose name is left as the next token; with no ends, up to the end of the text.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    Block block;
    while (true) {
      const Token& token = peek();
      if (token.kind == TokenKind::end) {
        if (ends.size() > 0) fail(fmt::format("the template ends inside a block: expected {}", *(ends.end() - 1)));
        return block;
      }
      if (token.kind == TokenKind::text) {
        auto statement = make(StatementKind::text);
        statement->text = Text(token.text);
        next();
        block.push_back(std::move(statement));
      } else if (token.kind == TokenKind::output_begin) {
        next();
        auto statement = make(StatementKind::output);
        statement->expression = parse_tuple();
        expect(TokenKind::output_end, "}}");
        block.push_back(std::move(statement));
      } else {
        expect(TokenKind::block_begin, "a tag");
        if (peek().kind == TokenKind::name &&
            std::find(ends.begin(), ends.end(), peek().text) != ends.end()) {
          return block;
        }
        block.push_back(parse_statement());
      }
    }
  }

  std::unique_ptr<Statement> make(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = peek().line;
    return statement;
  }

  void end_tag() { expect(TokenKind::block_end, "%}"); }

  std::unique_ptr<Statement> parse_statement() {
    if (peek().kind != TokenKind::name) fail("expected the name of a tag, found " + describe(peek()));
    const std::string tag = peek().text;
    if (tag == "if") return parse_if();
    if (tag == "for") return parse_for();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "with") return parse_with();
    if (tag == "generation") {
      auto statement = make(StatementKind::scope);
      next();
      end_tag();
      statement->body = parse_block({"endgeneration"});
      next();
      end_tag();
      return statement;
    }
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) fail(fmt::format("'{}' outside of a loop", tag));
      auto statement = make(tag == "break" ? StatementKind::stop : StatementKind::next);
      next();
      end_tag();
      return statement;
    }
    for (const std::string_view refused : {"include", "import", "from", "extends", "block", "call", "filter", "do"}) {
      if (tag == refused) fail(fmt::format("the tag '{}' is not available in chat templates", tag));
    }
    fail(fmt::format("unknown tag '{}'", tag));
  }

  std::unique_ptr<Statement> parse_if() {
    auto statement = make(StatementKind::condition);
    bool has_else = false;
    while (true) {
      const std::string tag = peek().text;
      next();
      if (tag == "endif") break;
      if (has_else) fail("expected endif after else");
      Branch branch;
      if (tag == "else") {
        has_else = true;
      } else {
        branch.condition = parse_tuple();
      }
      end_tag();
      branch.body = parse_block({"elif", "else", "endif"});
      statement->branches.push_back(std::move(branch));
    }
    end_tag();
    return statement;
  }

  std::unique_ptr<Statement> parse_for() {
    auto statement = make(StatementKind::loop);
    next();
    statement->target = parse_target(false);
    if (!skip_name("in")) fail("expected 'in', found " + describe(peek()));
    statement->expression = parse_tuple(false);
    if (skip_name("if")) statement->filter = parse_expression();
    if (is_name("recursive")) fail("recursive loops are not available in chat templates");
    end_tag();
    ++loop_depth_;
    statement->body = parse_block({"else", "endfor"});
    --loop_depth_;
    if (skip_name("else")) {
      end_tag();
      statement->otherwise = parse_block({"endfor"});
    }
    next();
    end_tag();
    return statement;
  }

  Target parse_target(bool allow_attribute) {
    Target target;
    const bool parenthesis = skip_symbol("(");
    do {
      if (peek().kind != TokenKind::name) break;
      target.names.push_back(parse_name("a name to assign to"));
      if (allow_attribute && target.names.size() == 1 && skip_symbol(".")) {
        target.attribute = parse_name("an attribute");
        break;
      }
    } while (skip_symbol(","));
    if (target.names.empty()) fail("expected a name to assign to, found " + describe(peek()));
    if (parenthesis) expect_symbol(")");
    for (const std::string& name : target.names) {
      for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
        if (name == reserved) fail(fmt::format("cannot assign to '{}'", name));
      }
    }
    return target;
  }

  std::unique_ptr<Statement> parse_set() {
    auto statement = make(StatementKind::set);
    next();
    statement->target = parse_target(true);
    if (skip_symbol("=")) {
      statement->expression = parse_tuple();
      end_tag();
      return statement;
    }
    if (is_symbol("|")) fail("filters on a set block are not available in chat templates");
    statement->kind = StatementKind::set_block;
    end_tag();
    statement->body = parse_block({"endset"});
    next();
    end_tag();
    return statement;
  }

  std::unique_ptr<Statement> parse_macro() {
    auto statement = make(StatementKind::macro);
    next();
    statement->macro = std::make_unique<MacroDefinition>();
    MacroDefinition& macro = *statement->macro;
    macro.name = parse_name("the macro's name");
    expect_symbol("(");
    while (!is_symbol(")")) {
      if (!macro.parameters.empty()) expect_symbol(",");
      macro.parameters.push_back(parse_name("a parameter"));
      if (skip_symbol("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("a parameter without a default follows one with a default");
      }
    }
    next();
    end_tag();
    const int outer_loops = std::exchange(loop_depth_, 0);
    macro.body = parse_block({"endmacro"});
    loop_depth_ = outer_loops;
    next();
    end_tag();
    return statement;
  }

  std::unique_ptr<Statement> parse_with() {
    auto statement = make(StatementKind::scope);
    next();
    while (peek().kind != TokenKind::block_end) {
      if (!statement->bindings.empty()) expect_symbol(",");
      std::string name = parse_name("a name to assign to");
      expect_symbol("=");
      statement->bindings.emplace_back(std::move(name), parse_expression());
    }
    end_tag();
    statement->body = parse_block({"endwith"});
    next();
    end_tag();
    return statement;
  }

  int loop_depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source, const std::string& name) {
  return StatementParser(tokenize_template(source, name), name).parse_all();
}

}  // namespace cotune::jinja
