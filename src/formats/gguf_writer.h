/// GGUF files of version 3 with dense tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/gguf.h"

namespace cotune {

/// A key and its value, in the types that writers of adapters need.
using GgufPair = std::pair<std::string, std::variant<std::string, uint32_t, float>>;

/// The bytes of a file: pairs and tensors in the order given, tensors of F32 or F16 aligned to 32. Throws InternalError where a
/// tensor's bytes disagree with its shape.
std::string gguf_bytes(std::span<const GgufPair> pairs, std::span<const GgufTensor> tensors);

}  // namespace cotune
