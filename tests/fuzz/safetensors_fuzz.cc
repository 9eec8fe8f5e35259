/// Any bytes either parse as safetensors, with every view inside them, or are refused as the user's mistake.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const cotune::SafetensorsContent content = cotune::parse_safetensors(bytes, "fuzz");
    size_t total = 0;
    for (const auto& [name, view] : content.tensors) {
      if (view.bytes.data() < bytes.data() || view.bytes.data() + view.bytes.size() > bytes.data() + size)
        std::abort();
      total += view.bytes.size();
    }
    if (total > size) std::abort();
  } catch (const cotune::UserError&) {
  }
  return 0;
}
