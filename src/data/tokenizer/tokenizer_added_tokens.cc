#include "data/tokenizer/tokenizer_added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/unicode.h"

namespace cotune {

void AddedTokenMatcher::add(const AddedToken& token, std::string_view content) {
  COTUNE_CHECK(!content.empty());
  uint32_t node = 0;
  for (const char c : content) {
    const auto [it, is_new] = nodes_[node].children.try_emplace(c, static_cast<uint32_t>(nodes_.size()));
    node = it->second;
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::vector<AddedTokenMatcher::Stretch> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Stretch> out;
  size_t covered = 0;
  for (size_t at = 0; at < text.size();) {
    uint32_t node = 0;
    int32_t found = -1;
    size_t end = at;
    for (size_t i = at; i < text.size(); ++i) {
      const auto it = nodes_[node].children.find(text[i]);
      if (it == nodes_[node].children.end()) break;
      node = it->second;
      if (nodes_[node].token >= 0) {
        found = nodes_[node].token;
        end = i + 1;
      }
    }
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = at;
    at = end;  // the search goes on behind the match, even where the match is turned down
    if (token.single_word) {
      size_t before = begin, behind = end;
      if (before > 0 && is_word_character(previous_code_point(text, before))) continue;
      if (behind < text.size() && is_word_character(next_code_point(text, behind))) continue;
    }
    if (token.lstrip) {
      for (size_t before = begin; before > covered;) {
        if (!is_whitespace(previous_code_point(text, before))) break;
        begin = std::max(before, covered);
      }
    }
    if (token.rstrip) {
      for (size_t behind = end; behind < text.size();) {
        if (!is_whitespace(next_code_point(text, behind))) break;
        end = behind;
      }
    }
    if (covered < begin) out.push_back({-1, covered, begin});
    out.push_back({token.id, begin, end});
    covered = end;
  }
  if (covered < text.size()) out.push_back({-1, covered, text.size()});
  return out;
}

}  // namespace cotune
