/// checksums.json in the folder of a checkpoint: a checksum (base/file.h) of every file beside it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace cotune {

inline constexpr const char* checksums_file = "checksums.json";

/// By file. Throws UserError where checksums.json cannot be read.
std::map<std::string, std::string> read_checksums(const std::filesystem::path& folder);

/// Throws UserError naming the file where it is not listed, cannot be read or has another checksum.
void check_against_checksum(const std::filesystem::path& folder, const std::string& file, const std::map<std::string, std::string>& checksums);

/// Checks what is read of an adapter, where its folder has checksums.json: that of a checkpoint has, others need none. Throws UserError as above.
void check_adapter_config_checksum(const std::filesystem::path& adapter_folder);
void check_adapter_checksums(const std::filesystem::path& adapter_folder);

}  // namespace cotune
