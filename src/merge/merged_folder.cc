#include "merge/merged_folder.h"

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "model/config/rope.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

const char* config_name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return "bfloat16";
    case at::kHalf: return "float16";
    case at::kDouble: return "float64";
    default: return "float32";
  }
}

constexpr int deepest_config = 64;  // levels: writing them recurses

std::string changed_config(const fs::path& file, at::ScalarType dtype) {
  const auto check = [&](int depth, ordered_json::parse_event_t event, const ordered_json&) {
    const bool begins = event == ordered_json::parse_event_t::object_start || event == ordered_json::parse_event_t::array_start;
    if (begins && depth >= deepest_config) throw_user_error("{}: JSON nested deeper than {} levels", file.string(), deepest_config);
    return true;
  };
  ordered_json config = ordered_json::parse(read_file(file), check);
  config.erase(config.contains("dtype") ? "torch_dtype" : "dtype");
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = config_name_of(dtype);
  return config.dump(2) + "\n";
}

std::string config_of_gguf(const ModelFiles& model, at::ScalarType dtype) {
  ModelConfig config = model.config;
  const std::optional<RopeScaling> scaling = named_rope_scaling(config);
  if (!scaling) {
    throw_user_error(
        "{}: tensor 'rope_freqs.weight': no rope_scaling of config.json gives these rotary frequencies; accepted: those scaled as Llama 3.1 to 3.3 "
        "scale theirs, or all alike; "
        "merge to a GGUF file: an --output that ends in .gguf",
        model.path.string());
  }
  config.rope_scaling = *scaling;
  config.dtype = config_name_of(dtype);
  return format_model_config(config);
}

bool is_weights(const fs::path& file) {
  static const std::set<std::string> kinds = {".safetensors", ".bin", ".gguf", ".ggml", ".pth", ".pt", ".ckpt", ".onnx", ".onnx_data",
                                              ".h5", ".msgpack", ".ot", ".tflite", ".npz"};
  return kinds.contains(file.extension().string()) || file.filename().string().ends_with(".index.json");
}

/// What else belongs to a model: its tokenizer, templates, generation settings, code, licence. Not an adapter_config.json, by which
/// transformers would take the model for an adapter.
void copy_other_files(const fs::path& from, const fs::path& to) {
  static const std::set<std::string> left_out = {config_file, "adapter_config.json"};
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.starts_with('.') || left_out.contains(name) || is_weights(entry.path())) continue;
    copy_file_atomically(entry.path(), to / name);
  }
}

}  // namespace

std::string merged_config(const ModelFiles& model, std::optional<at::ScalarType> dtype) {
  const fs::path file = model.path / config_file;
  if (fs::is_directory(model.path)) return dtype ? changed_config(file, *dtype) : read_file(file);
  COTUNE_CHECK(dtype.has_value());
  return config_of_gguf(model, *dtype);
}

void write_other_files(const ModelFiles& model, const fs::path& output) {
  if (fs::is_directory(model.path)) {
    copy_other_files(model.path, output);
    if (fs::is_directory(model.path / more_chat_templates_folder)) {
      fs::create_directory(output / more_chat_templates_folder);
      copy_other_files(model.path / more_chat_templates_folder, output / more_chat_templates_folder);
    }
    return;
  }
  for (const auto& [name, text] : format_tokenizer_files(model.tokenizer, model.config, model.path.string())) {
    fs::create_directories((output / name).parent_path());
    write_file_atomically(output / name, text);
  }
}

}  // namespace cotune
