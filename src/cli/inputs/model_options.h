#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
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

}  // namespace cotune
