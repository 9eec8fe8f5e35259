#include "model/weights/model_files.h"

#include "base/error.h"
#include "base/file.h"
#include "model/weights/gguf_weights.h"
#include "model/weights/safetensors_weights.h"

namespace cotune {
namespace {

/// Runs one part of opening; false, with its mistakes added, where it fails.
template <typename Part>
bool attempt(Diagnostics& mistakes, Part part) {
  try {
    part();
    return true;
  } catch (const UserError& error) {
    mistakes.add(error);
    return false;
  }
}

ModelParts open_folder(const std::filesystem::path& folder, Diagnostics& mistakes) {
  ModelParts parts;
  ModelFiles& model = parts.files;
  model.path = folder;
  const std::filesystem::path config_path = folder / "config.json";
  if (!std::filesystem::exists(config_path)) {
    mistakes.add(folder.string(), 0, "",
                 "has no config.json; accepted: a Hugging Face model folder or a .gguf file");
    return parts;
  }
  parts.has_config = attempt(
      mistakes, [&] { model.config = parse_model_config(read_file(config_path), config_path.string()); });
  parts.has_tokenizer =
      attempt(mistakes, [&] { model.tokenizer = find_tokenizer_files(folder, model.config.eos_token_ids); });
  parts.has_weights = parts.has_config && attempt(mistakes, [&] {
                        model.weights = open_safetensors_weights(folder, model.config);
                      });
  return parts;
}

ModelParts open_gguf(const std::filesystem::path& path, Diagnostics& mistakes) {
  ModelParts parts;
  ModelFiles& model = parts.files;
  model.path = path;
  std::shared_ptr<const GgufFile> file;
  parts.has_config = attempt(mistakes, [&] {
    file = std::make_shared<const GgufFile>(path);
    model.config = model_config_from_gguf(*file);
  });
  if (file == nullptr) return parts;
  parts.has_tokenizer = attempt(mistakes, [&] { model.tokenizer = tokenizer_files_of(*file); });
  parts.has_weights =
      parts.has_config && attempt(mistakes, [&] { model.weights = open_gguf_weights(file, model.config); });
  return parts;
}

}  // namespace

ModelParts open_model(const std::filesystem::path& path, Diagnostics& mistakes) {
  if (!std::filesystem::exists(path)) {
    mistakes.add(path.string(), 0, "",
                 "no such file or folder; accepted: a Hugging Face model folder or a .gguf file");
    return {};
  }
  return std::filesystem::is_directory(path) ? open_folder(path, mistakes) : open_gguf(path, mistakes);
}

ModelFiles open_model(const std::filesystem::path& path) {
  Diagnostics mistakes;
  ModelParts parts = open_model(path, mistakes);
  mistakes.throw_if_any();
  return std::move(parts.files);
}

}  // namespace cotune
