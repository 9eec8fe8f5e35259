#pragma once

#include <string>

#include "adapter/adapter_file.h"

namespace cotune::testing {

/// A file's bytes in one piece.
inline std::string adapter_model_bytes(const Adapter& adapter) {
  std::string bytes;
  write_adapter_model(adapter, [&](std::string_view piece) { bytes.append(piece); });
  return bytes;
}

inline std::string optimizer_state_bytes(const Adapter& adapter) {
  std::string bytes;
  write_optimizer_state(adapter, [&](std::string_view piece) { bytes.append(piece); });
  return bytes;
}

}  // namespace cotune::testing
