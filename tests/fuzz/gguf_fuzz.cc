/// Any bytes either parse as GGUF, with every tensor inside them and able to be dequantised where its type
/// allows, or are refused as the user's mistake.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "formats/dequantize.h"
#include "formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const cotune::GgufContent content = cotune::parse_gguf(bytes, "fuzz");
    for (const auto& [name, tensor] : content.tensors) {
      if (tensor.bytes.data() < bytes.data() ||
          tensor.bytes.data() + tensor.bytes.size() > bytes.data() + size)
        std::abort();
      if (!cotune::can_dequantize(tensor.type)) continue;
      const cotune::GgufBlock block = cotune::gguf_block(tensor.type);
      std::vector<float> values(tensor.bytes.size() / static_cast<size_t>(block.bytes) *
                                static_cast<size_t>(block.values));
      cotune::dequantize(tensor.type, tensor.bytes, values);
    }
  } catch (const cotune::UserError&) {
  }
  return 0;
}
