#include "data/template/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/template/jinja_python_text.h"

namespace cotune::jinja {
namespace {

constexpr size_t max_name_bytes = 1000;  ///< names are compared with each other at every look-up

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : source_(normalize_newlines(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text_and_tag();
    push(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw_user_error("{}:{}: {}", name_, line_, reason); }

  bool looking_at(std::string_view word) const {
    return std::string_view(source_).substr(at_, word.size()) == word;
  }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_space() { advance(skip_space_left(std::string_view(source_).substr(at_))); }
  void push(TokenKind kind, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
  }

  void text_and_tag() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tag = std::string::npos;
        break;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    if (tag == std::string::npos) {
      push(TokenKind::text, source_.substr(at_));
      advance(source_.size() - at_);
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    strip_before_tag(text, sign, kind == '{');
    if (!text.empty()) push(TokenKind::text, std::string(text));
    advance(tag - at_ + 2);
    if (sign == '-' || sign == '+') advance(1);
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      push(TokenKind::output_begin);
      expression_tokens(true);
    } else if (!raw_block()) {
      push(TokenKind::block_begin);
      expression_tokens(false);
    }
    line_starting_ = source_[at_ - 1] == '\n';
  }

  void strip_before_tag(std::string_view& text, char sign, bool is_output) const {
    if (sign == '-') {
      text = text.substr(0, skip_space_right(text));
    } else if (sign != '+' && !is_output) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if (line_begin == 0 && !line_starting_) return;
      const std::string_view tail = text.substr(line_begin);
      if (skip_space_left(tail) == tail.size()) text = text.substr(0, line_begin);
    }
  }

  /// The end of a tag or comment at the cursor: `+%}`, `-%}` with the white space after it, `%}` with one newline.
  bool consume_end(std::string_view end, bool trims_newline) {
    if (looking_at(end)) {
      advance(end.size());
      if (trims_newline && at_ < source_.size() && source_[at_] == '\n') advance(1);
      return true;
    }
    if (at_ + 1 >= source_.size() || std::string_view(source_).substr(at_ + 1, end.size()) != end) return false;
    if (source_[at_] == '-') {
      advance(1 + end.size());
      skip_space();
      return true;
    }
    if (source_[at_] == '+' && trims_newline) {
      advance(1 + end.size());
      return true;
    }
    return false;
  }

  void comment() {
    while (at_ < source_.size()) {
      const size_t end = source_.find("#}", at_);
      if (end == std::string::npos) break;
      const size_t sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? 1 : 0;
      advance(end - sign - at_);
      consume_end("#}", true);
      return;
    }
    fail("the comment is not closed: expected #}");
  }

  /// `{% raw %} … {% endraw %}` after its `{%`; false, with the cursor unmoved, when this is another tag.
  bool raw_block() {
    const size_t begin = at_;
    const int begin_line = line_;
    skip_space();
    bool found = looking_at("raw");
    if (found) {
      advance(3);
      skip_space();
      found = consume_end("%}", false);
    }
    if (!found) {
      at_ = begin;
      line_ = begin_line;
      return false;
    }
    const size_t content = at_;
    size_t open = content;
    while ((open = source_.find("{%", open)) != std::string::npos) {
      size_t cursor = open + 2;
      const char sign = cursor < source_.size() ? source_[cursor] : '\0';
      if (sign == '-' || sign == '+') ++cursor;
      while (cursor < source_.size() && is_ascii_space(source_[cursor])) ++cursor;
      if (source_.compare(cursor, 6, "endraw") == 0) {
        cursor += 6;
        while (cursor < source_.size() && is_ascii_space(source_[cursor])) ++cursor;
        std::string_view text = std::string_view(source_).substr(content, open - content);
        line_starting_ = content > 0 && source_[content - 1] == '\n';
        strip_before_tag(text, sign, false);
        const std::string kept(text);
        if (!kept.empty()) push(TokenKind::text, kept);
        advance(cursor - at_);
        if (!consume_end("%}", true)) fail("expected %} after endraw");
        return true;
      }
      open += 2;
    }
    fail("the raw block is not closed: expected {% endraw %}");
  }

  void expression_tokens(bool is_output) {
    const std::string_view end = is_output ? "}}" : "%}";
    std::string open_brackets;
    while (true) {
      if (open_brackets.empty() && consume_end(end, !is_output)) {
        push(is_output ? TokenKind::output_end : TokenKind::block_end);
        return;
      }
      if (at_ >= source_.size()) fail(fmt::format("the tag is not closed: expected {}", end));
      const char c = source_[at_];
      if (is_ascii_space(c)) {
        skip_space();
      } else if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        size_t size = 1;
        while (at_ + size < source_.size() && (is_name_start(source_[at_ + size]) || is_digit(source_[at_ + size]))) {
          ++size;
        }
        if (size > max_name_bytes) fail(fmt::format("found a name of {} bytes; accepted: at most {}", size, max_name_bytes));
        push(TokenKind::name, source_.substr(at_, size));
        advance(size);
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        symbol(open_brackets);
      }
    }
  }

  void symbol(std::string& open_brackets) {
    static constexpr std::string_view symbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*",
                                                   "%",  "~",  "[",  "]",  "(",  ")",  "{", "}", ">", "<",
                                                   "=",  ".",  ":",  "|",  ",",  ";"};
    for (const std::string_view candidate : symbols) {
      if (!looking_at(candidate)) continue;
      const char c = candidate[0];
      if (c == '(' || c == '[' || c == '{') open_brackets += c;
      if (c == ')' || c == ']' || c == '}') {
        const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (open_brackets.empty() || open_brackets.back() != open) fail(fmt::format("unexpected '{}'", c));
        open_brackets.pop_back();
      }
      push(TokenKind::symbol, std::string(candidate));
      advance(candidate.size());
      return;
    }
    const unsigned char c = static_cast<unsigned char>(source_[at_]);
    if (c < 0x20 || c == 0x7f) fail(fmt::format("unexpected character \\x{:02x} in a tag", c));
    fail(fmt::format("unexpected character '{}' in a tag", source_[at_]));
  }

  void number() {
    std::string digits;
    bool real = false;
    size_t i = at_;
    const auto take_digits = [&] {
      while (i < source_.size() && (is_digit(source_[i]) || (source_[i] == '_' && i + 1 < source_.size() &&
                                                             is_digit(source_[i + 1])))) {
        if (source_[i] != '_') digits += source_[i];
        ++i;
      }
    };
    take_digits();
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && i + 1 < source_.size() && source_[i] == '.' && is_digit(source_[i + 1])) {
      real = true;
      digits += source_[i++];
      take_digits();
    }
    if (i + 1 < source_.size() && (source_[i] == 'e' || source_[i] == 'E')) {
      const size_t sign = source_[i + 1] == '+' || source_[i + 1] == '-' ? 1 : 0;
      if (i + 1 + sign < source_.size() && is_digit(source_[i + 1 + sign])) {
        real = true;
        digits += 'e';
        if (source_[i + 1] == '-') digits += '-';
        i += 1 + sign;
        take_digits();
      }
    }
    push(real ? TokenKind::real : TokenKind::integer);
    const char* first = digits.data();
    const char* last = first + digits.size();
    const auto result = real ? std::from_chars(first, last, tokens_.back().real)
                             : std::from_chars(first, last, tokens_.back().integer);
    if (result.ec != std::errc() || result.ptr != last) fail("number out of range: " + digits);
    advance(i - at_);
  }

  void string(char quote) {
    size_t i = at_ + 1;
    std::string value;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = escape(i + 1, value);
      } else {
        value += source_[i++];
      }
    }
    if (i >= source_.size()) fail("the string is not closed");
    push(TokenKind::string, std::move(value));
    advance(i + 1 - at_);
  }

  /// Decodes the escape whose letter is at `i` as Python does; returns the position after it.
  size_t escape(size_t i, std::string& value) const {
    static constexpr std::string_view letters = "abfnrtv\\'\"";
    static constexpr std::string_view meanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i];
    if (const size_t known = letters.find(c); known != std::string_view::npos) {
      value += meanings[known];
      return i + 1;
    }
    if (c == '\n') return i + 1;
    if (c >= '0' && c <= '7') {
      char32_t octal = 0;
      size_t end = i;
      while (end < source_.size() && end < i + 3 && source_[end] >= '0' && source_[end] <= '7') {
        octal = octal * 8 + static_cast<char32_t>(source_[end++] - '0');
      }
      append_utf8(value, octal);
      return end;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      value += '\\';
      return i;
    }
    uint32_t point = 0;
    const char* first = source_.data() + i + 1;
    const char* last = source_.data() + std::min(source_.size(), i + 1 + digits);
    const auto result = std::from_chars(first, last, point, 16);
    if (result.ptr != first + digits || point > 0x10ffff) fail("malformed escape in a string");
    append_utf8(value, point);
    return i + 1 + digits;
  }

  std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace cotune::jinja
