/// Cuts a template into tokens, with Jinja's whitespace control. Source: jinja2 3.1 `lexer.py`, with the settings of
/// transformers: trim_blocks and lstrip_blocks on, no line statements, one final newline dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cotune::jinja {

enum class TokenKind {
  text,          ///< literal output
  output_begin,  ///< {{
  output_end,    ///< }}
  block_begin,   ///< {%
  block_end,     ///< %}
  name,
  string,
  integer,
  real,
  symbol,  ///< operator or bracket
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  ///< of text, name, string (decoded) and symbol
  int line = 1;
  int64_t integer = 0;
  double real = 0;
};

/// Throws UserError `name:line: reason` for unknown characters, open strings, tags and comments. The last token is `end`.
std::vector<Token> tokenize_template(std::string_view source, const std::string& name);

}  // namespace cotune::jinja
