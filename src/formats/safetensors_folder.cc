#include <nlohmann/json.hpp>
#include <set>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/json_mistake.h"
#include "formats/safetensors.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

/// tensor → file name, from model.safetensors.index.json.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const Json index = json_of_file(read_file(path), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw_user_error("{}: weight_map: must be an object that gives each tensor's file", path.string());
  }
  std::map<std::string, std::string> files;
  Diagnostics mistakes;
  for (const auto& [name, value] : index["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      mistakes.add(path.string(), 0, "weight_map." + name, "must be the name of a file in the same folder");
      continue;
    }
    files[name] = file;
  }
  mistakes.throw_if_any();
  return files;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) {
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  const std::filesystem::path single = folder / "model.safetensors";
  if (std::filesystem::exists(single)) {
    const auto file = std::make_shared<const SafetensorsFile>(single);
    for (const auto& [name, view] : file->tensors()) tensors_[name] = {file, &view};
    return;
  }
  if (!std::filesystem::exists(index)) {
    throw_user_error("{}: holds neither model.safetensors nor model.safetensors.index.json", folder.string());
  }
  const std::map<std::string, std::string> file_names = read_index(index);
  Diagnostics mistakes;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;  // null: cannot be read
  for (const auto& [name, file_name] : file_names) {
    const auto [opened, is_new] = files.try_emplace(file_name);
    std::shared_ptr<const SafetensorsFile>& file = opened->second;
    try {
      if (is_new) file = std::make_shared<const SafetensorsFile>(folder / file_name);
    } catch (const UserError& error) {
      mistakes.add(error);
    }
    if (file == nullptr) continue;
    const auto found = file->tensors().find(name);
    if (found == file->tensors().end()) {
      mistakes.add((folder / file_name).string(), 0, name, "not in this file, where model.safetensors.index.json has it");
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
