#include "model/weights/model_files.h"

#include "base/error.h"
#include "model/weights/gguf_weights.h"
#include "model/weights/safetensors_weights.h"

namespace cotune {
namespace {

ModelFiles open_folder(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "config.json";
  if (!std::filesystem::exists(config_path)) {
    throw_user_error("{}: has no config.json; accepted: a Hugging Face model folder or a .gguf file",
                     folder.string());
  }
  ModelFiles model;
  model.path = folder;
  model.config = parse_model_config(read_file(config_path), config_path.string());
  model.tokenizer = find_tokenizer_files(folder, model.config.eos_token_ids);
  model.weights = open_safetensors_weights(folder, model.config);
  return model;
}

ModelFiles open_gguf(const std::filesystem::path& path) {
  const auto file = std::make_shared<const GgufFile>(path);
  ModelFiles model;
  model.path = path;
  model.config = model_config_from_gguf(*file);
  model.tokenizer = tokenizer_files_of(*file);
  model.weights = open_gguf_weights(file, model.config);
  return model;
}

}  // namespace

ModelFiles open_model(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw_user_error("{}: no such file or folder; accepted: a Hugging Face model folder or a .gguf file",
                     path.string());
  }
  return std::filesystem::is_directory(path) ? open_folder(path) : open_gguf(path);
}

}  // namespace cotune
