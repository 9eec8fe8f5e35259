#include "train/folder_checksums.h"

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

void check_if_listed_there(const fs::path& folder, std::initializer_list<const char*> files) {
  if (!fs::exists(folder / checksums_file)) return;
  const std::map<std::string, std::string> checksums = read_checksums(folder);
  for (const char* file : files) check_against_checksum(folder, file, checksums);
}

}  // namespace

std::map<std::string, std::string> read_checksums(const fs::path& folder) {
  const fs::path file = folder / checksums_file;
  try {
    return nlohmann::json::parse(read_file(file)).get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw_user_error("{}: is not a list of checksums: {}", file.string(), json_reason(error));
  }
}

void check_against_checksum(const fs::path& folder, const std::string& file, const std::map<std::string, std::string>& checksums) {
  const std::string list = (folder / checksums_file).string();
  const auto expected = checksums.find(file);
  if (expected == checksums.end()) throw_user_error("{}: does not list {}", list, file);
  if (checksum_of_file(folder / file) == expected->second) return;
  throw_user_error("{}: is damaged (its checksum is not the one in {})", (folder / file).string(), list);
}

void check_adapter_config_checksum(const fs::path& adapter_folder) { check_if_listed_there(adapter_folder, {adapter_config_file}); }

void check_adapter_checksums(const fs::path& adapter_folder) {
  check_if_listed_there(adapter_folder, {adapter_config_file, adapter_model_file});
}

}  // namespace cotune
