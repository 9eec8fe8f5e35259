#include "data/records/parquet_rows.h"

#include <dlfcn.h>

#include <cstring>

#include "base/error.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* ways_out =
    "where pip installed cotune, `pip install 'cotune[parquet]'` brings Apache Arrow; in a checkout run scripts/install-dependencies, then "
    "scripts/build; or write the data as JSONL";

/// Opened once, and kept: Arrow has threads and allocators of its own.
ParquetRowsFunction* plugin() {
  static ParquetRowsFunction* found = nullptr;
  if (found != nullptr) return found;
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error).parent_path() / "libcotune_parquet.so";
  if (!fs::exists(path, error)) {
    throw_user_error("is a Parquet file, which this build does not read ({} is missing): {}", path.string(), ways_out);
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw_user_error("is a Parquet file, and the plugin that reads it does not load ({}): {}", reason == nullptr ? "unknown error" : reason,
                     ways_out);
  }
  auto* interface = reinterpret_cast<const char* (*)()>(dlsym(library, parquet_interface_symbol));
  auto* rows = reinterpret_cast<ParquetRowsFunction*>(dlsym(library, parquet_plugin_symbol));
  if (interface == nullptr || rows == nullptr || std::strcmp(interface(), COTUNE_PARQUET_INTERFACE) != 0) {
    throw_user_error("is a Parquet file, and {} was built for another cotune: run scripts/build", path.string());
  }
  found = rows;
  return found;
}

}  // namespace

std::unique_ptr<RecordLines> open_parquet(const fs::path& path, const std::vector<std::string>& fields) {
  return std::unique_ptr<RecordLines>(plugin()(path, fields));
}

}  // namespace cotune
