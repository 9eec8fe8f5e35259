#include <algorithm>
#include <cctype>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "jobs/hub_cache.h"
#include "model/config/model_config.h"

namespace cotune {
namespace {

struct Preset {
  const char* name;
  const char* family;
  int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary, context;
  double epsilon, theta;
  bool tied, qkv_bias;
  int64_t learned_positions = 0;
};

// From the config.json of each base checkpoint on the Hugging Face hub; gpt-2.7b as MuxTune's Table 1 sizes it (32 layers
// of 2560 with 32 heads), with GPT-3's vocabulary and context.
constexpr Preset preset_table[] = {
    {"llama-2-7b", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e-5, 1e4, false, false},
    {"llama-2-13b", "llama", 40, 5120, 13824, 40, 40, 128, 32000, 4096, 1e-5, 1e4, false, false},
    {"llama-2-70b", "llama", 80, 8192, 28672, 64, 8, 128, 32000, 4096, 1e-5, 1e4, false, false},
    {"llama-3-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 1e-5, 5e5, false, false},
    {"llama-3-70b", "llama", 80, 8192, 28672, 64, 8, 128, 128256, 8192, 1e-5, 5e5, false, false},
    {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1e-6, 1e6, true, true},
    {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 131072, 1e-6, 1e6, false, true},
    {"qwen2.5-32b", "qwen2", 64, 5120, 27648, 40, 8, 128, 152064, 131072, 1e-5, 1e6, false, true},
    {"tinyllama-1.1b", "llama", 22, 2048, 5632, 32, 4, 64, 32000, 2048, 1e-5, 1e4, false, false},
    {"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e-5, 1e5, true, false},
    {"smollm2-360m", "llama", 32, 960, 2560, 15, 5, 64, 49152, 8192, 1e-5, 1e5, true, false},
    {"smollm2-1.7b", "llama", 24, 2048, 8192, 32, 32, 64, 49152, 8192, 1e-5, 1.3e5, true, false},
    {"mistral-7b", "mistral", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1e-5, 1e6, false, false},
    {"gpt-2.7b", "gpt", 32, 2560, 10240, 32, 32, 80, 50257, 2048, 1e-5, 1e4, true, true, 2048},
    {"opt-30b", "opt", 48, 7168, 28672, 56, 56, 128, 50272, 2048, 1e-5, 1e4, true, true, 2050},
};

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return result;
}

}  // namespace

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : preset_table) names.emplace_back(preset.name);
  return names;
}

ModelConfig model_preset(std::string_view name) {
  for (const Preset& preset : preset_table) {
    if (lower(name) != preset.name) continue;
    ModelConfig config;
    config.family = preset.family;
    config.layer_count = preset.layers;
    config.hidden_size = preset.hidden;
    config.intermediate_size = preset.intermediate;
    config.head_count = preset.heads;
    config.kv_head_count = preset.kv_heads;
    config.head_dim = preset.head_dim;
    config.vocabulary_size = preset.vocabulary;
    config.context_length = preset.context;
    config.rms_norm_epsilon = preset.epsilon;
    config.rope_theta = preset.theta;
    config.tied_embeddings = preset.tied;
    config.qkv_bias = preset.qkv_bias;
    config.learned_positions = preset.learned_positions;
    config.gated = preset.learned_positions == 0;
    config.activation = config.gated ? "silu" : config.family == "gpt" ? "gelu" : "relu";
    config.dtype = "bfloat16";
    return config;
  }
  const std::string near = nearest_name(lower(name), model_preset_names());
  throw_user_error("model preset '{}' is not known{}; accepted: {}", name,
                   near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near),
                   fmt::join(model_preset_names(), ", "));
}

ModelConfig find_model_config(const std::string& preset_or_path) {
  const std::filesystem::path path = model_path(preset_or_path);
  if (std::filesystem::is_directory(path)) {
    const std::filesystem::path file = path / "config.json";
    if (!std::filesystem::exists(file)) throw_user_error("{}: has no config.json{}", path.string(), hub_part_hint(path));
    return parse_model_config(read_file(file), file.string());
  }
  if (std::filesystem::exists(path)) {
    if (path.extension() == ".gguf") return model_config_from_gguf(GgufFile(path));
    return parse_model_config(read_file(path), path.string());
  }
  if (path.has_parent_path()) throw_user_error("{}: no such file or folder{}", preset_or_path, hub_cache_hint(path));
  return model_preset(preset_or_path);
}

}  // namespace cotune
