#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/inputs/model_options.h"
#include "engine/sampling.h"

namespace CLI {
class App;
}

namespace cotune {

struct GenerateOptions {
  ModelOptions model;
  std::optional<std::string> prompt, system;
  std::string prompt_file, chat_template;
  std::string prompts, output;  ///< a file of prompts, and of their answers
  std::string session;
  bool chat = false, raw = false, json = false, resume = false, overwrite = false, no_history = false;
  int64_t max_new_tokens = 256, samples = 1, at_once = 0;
  std::vector<std::string> stop;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
};
void add_generate_options(CLI::App& command, GenerateOptions& options);

/// Throws UserError where an option would have no effect.
SamplingSettings sampling_of(const GenerateOptions& options);

}  // namespace cotune
