#include <nlohmann/json.hpp>
#include <set>

#include "base/diagnostics.h"
#include "base/error.h"
#include "formats/safetensors.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

/// tensor → file name, from model.safetensors.index.json.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  Json index;
  try {
    index = Json::parse(read_file(path));
  } catch (const Json::exception& error) {
    throw_user_error("{}: not JSON: {}", path.string(), error.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw_user_error("{}: weight_map: must be an object that gives each tensor's file", path.string());
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      throw_user_error("{}: weight_map.{}: must be the name of a file in the same folder", path.string(),
                       name);
    }
    files[name] = file;
  }
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  const std::filesystem::path single = folder / "model.safetensors";
  if (!std::filesystem::exists(index)) {
    if (!std::filesystem::exists(single)) {
      throw_user_error("{}: holds neither model.safetensors nor model.safetensors.index.json",
                       folder.string());
    }
    const auto file = std::make_shared<const SafetensorsFile>(single);
    for (const auto& [name, view] : file->tensors()) tensors_[name] = {file, &view};
    return;
  }
  Diagnostics mistakes;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, file_name] : read_index(index)) {
    auto& file = files[file_name];
    if (!file) file = std::make_shared<const SafetensorsFile>(folder / file_name);
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) {
      mistakes.add((folder / file_name).string(), 0, name,
                   "not in this file, where model.safetensors.index.json has it");
    } else {
      tensors_[name] = {file, &found->second};
    }
  }
  mistakes.throw_if_any();
}

void SafetensorsFolder::drop_pages() const {
  std::set<const SafetensorsFile*> files;
  for (const auto& [name, location] : tensors_) files.insert(location.file.get());
  for (const SafetensorsFile* file : files) file->drop_pages();
}

}  // namespace cotune
