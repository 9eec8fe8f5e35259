/// A small tokenizer for tests: one token per byte, but "\n\n" and "ab" are one token each (so that merges across
/// borders show), and texts between < and > from a fixed list are special. With `folds`, '~' is read as '-', as a
/// normaliser would.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/text_encoder.h"

namespace cotune {

class ExampleEncoder : public TextEncoder {
 public:
  static constexpr int32_t newline_pair = 300, ab = 301, bos = 400, eos = 401;
  bool folds = false;
  std::set<std::string> ordinary;  ///< of the fixed list, that are added tokens and not special

  std::vector<int32_t> encode_plain(std::string_view text, bool /*at_text_start*/ = true) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.substr(i, 2) == "\n\n" || text.substr(i, 2) == "ab") {
        ids.push_back(text[i] == 'a' ? ab : newline_pair);
        ++i;
      } else if (folds && text[i] == '~') {
        ids.push_back('-');
      } else {
        ids.push_back(static_cast<unsigned char>(text[i]));
      }
    }
    return ids;
  }
  std::vector<SpecialMatch> find_special(std::string_view text) const override {
    std::vector<SpecialMatch> found;
    for (size_t i = 0; i < text.size(); ++i) {
      for (const auto& [token, id] : specials()) {
        if (text.substr(i, token.size()) != token) continue;
        found.push_back({i, i + token.size(), id, false, false, !ordinary.contains(token)});
        i += token.size() - 1;
        break;
      }
    }
    return found;
  }
  std::string token_bytes(int32_t id) const override {
    if (id == newline_pair) return "\n\n";
    if (id == ab) return "ab";
    for (const auto& [token, special] : specials()) {
      if (special == id) return token;
    }
    return std::string(1, static_cast<char>(id));
  }
  std::vector<int32_t> prefix() const override { return {bos}; }
  std::optional<int32_t> eos_id() const override { return eos; }
  std::string hash() const override { return folds ? "folds" : "plain"; }

  /// What tokenizing a rendered text gives: every special text is special.
  std::vector<int32_t> encode(std::string_view text) const {
    std::vector<int32_t> ids;
    size_t at = 0;
    for (const SpecialMatch& match : find_special(text)) {
      for (const int32_t id : encode_plain(text.substr(at, match.begin - at))) ids.push_back(id);
      ids.push_back(match.id);
      at = match.end;
    }
    for (const int32_t id : encode_plain(text.substr(at))) ids.push_back(id);
    return ids;
  }

 private:
  static const std::map<std::string, int32_t>& specials() {
    static const std::map<std::string, int32_t> table = {
        {"<s>", bos}, {"</s>", eos}, {"<|im_start|>", 402}, {"<|im_end|>", 403}, {"<|eot_id|>", 404},
        {"<|begin_of_text|>", 405}, {"<|start_header_id|>", 406}, {"<|end_header_id|>", 407},
        {"<tool_call>", 408}, {"</tool_call>", 409}, {"[INST]", 410}, {"[/INST]", 411}};
    return table;
  }
};

}  // namespace cotune
