#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling.h"

namespace CLI {
class App;
class Option;
}

namespace cotune {

/// Where and by what models compute: of every command that uses adapters without training.
struct ModelOptions {
  std::string model, dtype = "auto", device = "auto";
  std::vector<std::string> adapters;
  int threads = 0;
};
void add_model_options(CLI::App& command, ModelOptions& options);
/// Before the first tensor.
void use_threads(const ModelOptions& options);

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
