/// Added tokens: texts such as <|im_end|> that are one token wherever they stand, before any other rule.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      ///< left out by decode(skip_special)
  bool normalized = false;   ///< looked for in the normalized text, in its normalized form
  bool single_word = false;  ///< not where a word character stands right before or behind it
  bool lstrip = false;       ///< swallows whitespace before it
  bool rstrip = false;       ///< swallows whitespace behind it
};

/// A set of texts, searched for leftmost first and longest first.
class AddedTokenMatcher {
 public:
  /// A stretch of text without added tokens (id -1), or one added token.
  struct Stretch {
    int32_t id;
    size_t begin;
    size_t end;
  };

  /// `content` must not be empty; of equal contents the last wins.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return nodes_.size() == 1; }

  /// Cuts the text; whitespace that a token swallows belongs to it. Stretches are never empty, and in order.
  std::vector<Stretch> split(std::string_view utf8) const;

 private:
  struct Node {
    std::map<char, uint32_t> children;
    int32_t token = -1;  ///< index into tokens_
  };
  std::vector<Node> nodes_{1};  ///< a trie of bytes
  std::vector<AddedToken> tokens_;
};

}  // namespace cotune
