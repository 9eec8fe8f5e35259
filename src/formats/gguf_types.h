/// The block sizes of every tensor type of ggml (ggml.h, enum ggml_type), including those that cotune cannot
/// dequantise: their extent in a file is still checked, and messages name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cotune {

struct GgufTypeLayout {
  uint32_t number;
  std::string_view name;
  int64_t block_values;
  int64_t block_bytes;
};

/// Nothing for a number that ggml does not know.
std::optional<GgufTypeLayout> gguf_type_layout(uint32_t number);

}  // namespace cotune
