/// One token per byte; <a> and <b> are special.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_encoder.h"

namespace cotune {

class ByteEncoder : public TextEncoder {
 public:
  std::vector<int32_t> encode_plain(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<SpecialMatch> find_special(std::string_view text) const override {
    std::vector<SpecialMatch> found;
    for (size_t i = 0; i + 3 <= text.size(); ++i) {
      if (text.substr(i, 3) == "<a>" || text.substr(i, 3) == "<b>") found.push_back({i, i + 3, 200 + text[i + 1]});
    }
    return found;
  }
  std::string token_bytes(int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : std::string{'<', static_cast<char>(id - 200), '>'};
  }
  std::vector<int32_t> prefix() const override { return {297}; }
  std::optional<int32_t> eos_id() const override { return 298; }
  std::string hash() const override { return "bytes"; }
};

}  // namespace cotune
