#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/file.h"
#include "model/weights/model_files.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Of the system that runs this process: numbers of files mean something there alone.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

/// The model itself, or the files of its folder.
std::vector<fs::path> files_of(const fs::path& model) {
  std::error_code unknown;
  if (!fs::is_directory(model, unknown)) return {model};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(model, unknown)) {
    if (entry.is_regular_file(unknown)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string model_fingerprint(const ModelFiles& model) {
  const ModelConfig& config = model.config;
  const RopeScaling& rope = config.rope_scaling;
  const std::string shape = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {}", config.family, config.layer_count, config.hidden_size,
      config.intermediate_size, config.head_count, config.kv_head_count, config.head_dim, config.vocabulary_size,
      config.rms_norm_epsilon, config.rope_theta, config.tied_embeddings, config.qkv_bias, config.activation);
  const std::string rotary =
      fmt::format("{} {} {} {} {} {}", static_cast<int>(rope.kind), rope.factor, rope.low_freq_factor,
                  rope.high_freq_factor, rope.original_context, fmt::join(rope.divisors, " "));
  return checksum(shape + "\n" + rotary + "\n" + model.weights->content_hash());
}

std::string model_files_identity(const ModelFiles& model) {
  const std::string system = boot_id();
  std::string files;
  for (const fs::path& file : files_of(model.path)) {
    struct stat found{};
    if (::stat(file.c_str(), &found) != 0) return "";
    files += fmt::format("\n{} {} {} {} {}.{}", file.filename().string(), found.st_dev, found.st_ino, found.st_size, found.st_mtim.tv_sec,
                         found.st_mtim.tv_nsec);
  }
  return system.empty() || files.empty() ? "" : system + files;
}

}  // namespace cotune
