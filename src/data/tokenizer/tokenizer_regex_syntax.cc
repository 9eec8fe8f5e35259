#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_regex.h"
#include "data/tokenizer/unicode_tables.h"

namespace cotune {
namespace {

using unicode_tables::CodePointRange;

constexpr CodePointRange white_space[] = {{0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                                          {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                          {0x205f, 0x205f}, {0x3000, 0x3000}};

std::string class_items(std::span<const CodePointRange> ranges) {
  std::string out;
  for (const auto& r : ranges) {
    out += r.first == r.last ? fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(r.first))
                             : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(r.first),
                                           static_cast<uint32_t>(r.last));
  }
  return out;
}

constexpr size_t longest_translation = 200'000;  // bytes

/// Class items of every code point (surrogates aside) outside the ranges.
std::string complement_items(std::span<const CodePointRange> ranges) {
  std::vector<CodePointRange> out;
  char32_t next = 0;
  const auto add = [&](char32_t first, char32_t last) {
    if (first < 0xD800 && last > 0xDFFF) {
      out.push_back({first, 0xD7FF});
      out.push_back({0xE000, last});
    } else {
      out.push_back({first, last});
    }
  };
  for (const auto& r : ranges) {
    if (r.first > next) add(next, r.first - 1);
    next = r.last + 1;
  }
  add(next, 0x10FFFF);
  return class_items(out);
}

/// Class items for a Unicode category ("L", "Lu"): PCRE2's own set and what newer Unicode versions added.
std::string category_items(const std::string& name) {
  std::string out = "\\p{" + name + "}";
  std::vector<CodePointRange> added;
  for (const auto& addition : unicode_tables::category_additions) {
    if (std::string_view(addition.category).substr(0, name.size()) != name) continue;
    if (!added.empty() && added.back().last + 1 == addition.first) {
      added.back().last = addition.last;
    } else {
      added.push_back({addition.first, addition.last});
    }
  }
  return out + class_items(added);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      translate_one();
      if (out_.size() > longest_translation) refuse("an expression this long", at_);
    }
    if (!groups_.empty()) refuse("a group that is never closed", at_);
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what, size_t where) const {
    throw_user_error("regular expression {}: {} at byte {} is not supported", in_, what, where);
  }
  bool looking_at(std::string_view text) const { return in_.substr(at_).starts_with(text); }

  void begin_atom() { atom_ = out_.size(); }

  void translate_one() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        begin_atom();
        translate_escape();
        return;
      case '[':
        begin_atom();
        out_ += translate_class();
        return;
      case '(':
        open_group();
        return;
      case ')':
        if (groups_.empty()) refuse("')' without '('", at_);
        atom_ = groups_.back();
        groups_.pop_back();
        out_ += c;
        ++at_;
        return;
      case '{':
        translate_interval();
        return;
      case '?':
      case '*':
      case '+':
        out_ += c;
        ++at_;
        return;
      case '^':
        out_ += c;
        ++at_;
        return;
      case '$':
        out_ += "(?=\\n|\\z)";  // Ruby: the end of every line
        ++at_;
        return;
      case '.':
        begin_atom();
        out_ += "[^\\n]";
        ++at_;
        return;
      default: {
        begin_atom();
        const size_t from = at_;
        next_code_point(in_, at_);
        out_ += in_.substr(from, at_ - from);
      }
    }
  }

  void open_group() {
    if (groups_.size() >= 100) refuse("a group more than 100 deep", at_);
    if (looking_at("(*")) refuse("a verb (*...)", at_);
    if (looking_at("(?")) {
      for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
        if (looking_at(known)) {
          groups_.push_back(out_.size());
          out_ += known;
          at_ += known.size();
          return;
        }
      }
      size_t end = at_ + 2;
      while (end < in_.size() && (in_[end] == 'i' || in_[end] == '-' || in_[end] == 'x')) ++end;
      if (end < in_.size() && in_[end] == ':' && end > at_ + 2 && in_.substr(at_, end - at_).find('x') == in_.npos) {
        groups_.push_back(out_.size());
        out_ += in_.substr(at_, end + 1 - at_);
        at_ = end + 1;
        return;
      }
      if (looking_at("(?i)") && out_.empty()) {
        out_ += "(?i)";
        at_ += 4;
        return;
      }
      refuse("the group " + std::string(in_.substr(at_, 4)), at_);
    }
    groups_.push_back(out_.size());
    out_ += "(?:";  // groups are never read back
    ++at_;
  }

  /// {n}, {n,}, {n,m}, {,m}. In Ruby a '+' behind an interval repeats it; in PCRE2 it would make it possessive.
  void translate_interval() {
    size_t end = at_ + 1;
    while (end < in_.size() && ((in_[end] >= '0' && in_[end] <= '9') || in_[end] == ',')) ++end;
    const std::string_view body = end < in_.size() ? in_.substr(at_ + 1, end - at_ - 1) : std::string_view();
    if (end >= in_.size() || in_[end] != '}' || body.empty() || body == "," ||
        std::count(body.begin(), body.end(), ',') > 1) {
      begin_atom();
      out_ += "\\{";
      ++at_;
      return;
    }
    if (body.size() > 9) refuse("an interval of this size", at_);
    out_ += '{';
    if (body.front() == ',') out_ += '0';
    out_ += body;
    out_ += '}';
    at_ = end + 1;
    if (looking_at("+")) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  /// The items that a shorthand such as \s or \p{L} stands for inside a class; "" when the escape is something else.
  /// On success at_ is behind the escape.
  std::string shorthand_items() {
    const char kind = in_[at_ + 1];
    switch (kind) {
      case 's':
        at_ += 2;
        return class_items(white_space);
      case 'S':
        at_ += 2;
        return complement_items(white_space);
      case 'w':
        at_ += 2;
        return class_items(unicode_tables::word);
      case 'W':
        at_ += 2;
        return complement_items(unicode_tables::word);
      case 'd':
        at_ += 2;
        return category_items("Nd");
      case 'D':
        at_ += 2;
        return "\\P{Nd}";
      case 'h':
        at_ += 2;
        return "0-9A-Fa-f";
      case 'p':
      case 'P':
        return property_items();
      default:
        return {};
    }
  }

  std::string property_items() {
    const size_t from = at_;
    bool negated = in_[at_ + 1] == 'P';
    at_ += 2;
    if (!looking_at("{")) refuse("\\p without {", from);
    const size_t close = in_.find('}', at_);
    if (close == in_.npos) refuse("\\p{ without }", from);
    std::string name(in_.substr(at_ + 1, close - at_ - 1));
    at_ = close + 1;
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    static const std::map<std::string, std::string, std::less<>> long_names = {
        {"Letter", "L"}, {"Mark", "M"},   {"Number", "N"}, {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"},
        {"Digit", "Nd"}, {"Upper", "Lu"}, {"Lower", "Ll"}};
    if (const auto it = long_names.find(name); it != long_names.end()) {
      if (name == "Upper" || name == "Lower") refuse("\\p{" + name + "} (use \\p{" + it->second + "})", from);
      name = it->second;
    }
    const bool category = !name.empty() && name.size() <= 2 && name[0] >= 'A' && name[0] <= 'Z';
    if (category && !negated) return category_items(name);
    const bool word = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    });
    if (name.empty() || !word) refuse("the property " + name, from);
    return (negated ? "\\P{" : "\\p{") + name + "}";
  }

  /// \n, \t, \x41, \x{41}, A and escaped punctuation, as PCRE2 writes them; at_ moves behind the escape.
  std::string literal_escape() {
    const size_t from = at_;
    const char kind = in_[at_ + 1];
    if (std::string_view("nrtfae").find(kind) != std::string_view::npos) {
      at_ += 2;
      return {'\\', kind};
    }
    if (kind == 'v') {
      at_ += 2;
      return "\\x0b";
    }
    if (kind == 'x' || kind == 'u') {
      at_ += 2;
      std::string digits;
      if (kind == 'x' && looking_at("{")) {
        const size_t close = in_.find('}', at_);
        if (close == in_.npos) refuse("\\x{ without }", from);
        digits = in_.substr(at_ + 1, close - at_ - 1);
        at_ = close + 1;
      } else {
        const size_t count = kind == 'x' ? 2 : 4;
        if (at_ + count > in_.size()) refuse("an unfinished escape", from);
        digits = in_.substr(at_, count);
        at_ += count;
      }
      const bool hexadecimal = !digits.empty() && digits.size() <= 6 &&
                               digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
      const unsigned long value = hexadecimal ? std::stoul(digits, nullptr, 16) : 0;
      // Two digits from 80 up are bytes of UTF-8 to Oniguruma.
      if (!hexadecimal || (kind == 'x' && digits.size() == 2 && value >= 0x80)) refuse("this escape", from);
      return "\\x{" + digits + "}";
    }
    const bool letter_or_digit = (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') ||
                                 (kind >= '0' && kind <= '9');
    if (letter_or_digit) refuse(std::string("the escape \\") + kind, from);
    ++at_;
    const size_t begin = at_;
    const char32_t c = next_code_point(in_, at_);
    if (c < 0x80) return {'\\', static_cast<char>(c)};
    return std::string(in_.substr(begin, at_ - begin));
  }

  void translate_escape() {
    if (at_ + 1 >= in_.size()) refuse("a lone backslash", at_);
    const char kind = in_[at_ + 1];
    if (std::string_view("AzZbBGRX").find(kind) != std::string_view::npos) {
      out_ += {'\\', kind};
      at_ += 2;
      return;
    }
    if (kind == 'S' || kind == 'W') {
      out_ += "[^" + class_items(kind == 'S' ? std::span<const CodePointRange>(white_space) : unicode_tables::word) +
              "]";
      at_ += 2;
      return;
    }
    if (const std::string items = shorthand_items(); !items.empty()) {
      // \P{L} as [^\p{L}...], so that what newer Unicode versions added counts.
      const std::string name = items.starts_with("\\P{") ? items.substr(3, items.size() - 4) : std::string();
      out_ += name.empty() || name.size() > 2 ? "[" + items + "]" : "[^" + category_items(name) + "]";
      return;
    }
    out_ += literal_escape();
  }

  /// A whole [...], at_ on the bracket. A class inside a class is a union.
  std::string translate_class() {
    const size_t from = at_++;
    std::string out = "[";
    if (looking_at("^")) {
      out += '^';
      ++at_;
    }
    const size_t empty = out.size();
    class_items_until_bracket(out, from, 0);
    if (out.size() == empty) refuse("an empty class", from);
    return out + "]";
  }

  void class_items_until_bracket(std::string& out, size_t from, int depth) {
    if (depth > 10) refuse("a class nested so deep", from);
    const size_t begin = at_;
    while (true) {
      if (at_ >= in_.size()) refuse("a class that is never closed", from);
      const char c = in_[at_];
      if (c == ']' && at_ != begin) {
        ++at_;
        return;
      }
      if (looking_at("[:")) refuse("a POSIX class", at_);
      if (looking_at("&&")) refuse("a class intersection", at_);
      if (looking_at("[^")) refuse("a negated class inside a class", at_);
      if (c == '[') {
        ++at_;
        class_items_until_bracket(out, from, depth + 1);
        continue;
      }
      if (c == '\\') {
        if (at_ + 1 >= in_.size()) refuse("a lone backslash", at_);
        const std::string items = shorthand_items();
        if (!items.empty()) {
          out += items;
          // A '-' between a shorthand and anything is itself.
          if (looking_at("-") && !looking_at("-]")) {
            out += "\\-";
            ++at_;
          }
        } else if (in_[at_ + 1] == 'b') {
          out += "\\x08";
          at_ += 2;
        } else {
          out += literal_escape();
        }
        continue;
      }
      if (c == ']') {
        out += "\\]";
        ++at_;
        continue;
      }
      if (c == '^') {
        out += "\\^";
        ++at_;
        continue;
      }
      const size_t start = at_;
      next_code_point(in_, at_);
      out += in_.substr(start, at_ - start);
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             ///< where the last atom begins in out_
  std::vector<size_t> groups_;  ///< where the open groups begin in out_
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) throw_user_error("regular expression is not valid UTF-8");
  if (pattern.size() > 20'000) throw_user_error("regular expression of {} bytes: at most 20000", pattern.size());
  return Translator(pattern).run();
}

}  // namespace cotune
