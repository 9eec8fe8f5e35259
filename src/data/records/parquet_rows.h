/// Rows of Parquet files. Apache Arrow reads them, in a plugin beside the program, libcotune_parquet.so, which is opened when a
/// Parquet file is named: what needs none does not load Arrow's 60 MB.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/records/record_lines.h"

namespace cotune {

/// The file's rows as JSON texts with those of `fields` that are among its columns. A value that is null is left out of its row
/// or struct, as JSONL leaves it out; nulls() names those of the row. Throws UserError, without the file's name: no plugin, a
/// damaged file, none of the fields, or a column of a type that JSON has no value for.
std::unique_ptr<RecordLines> open_parquet(const std::filesystem::path& path, const std::vector<std::string>& fields);

/// What the plugin exports, and the version of it that both sides were compiled with.
inline constexpr const char* parquet_plugin_symbol = "cotune_parquet_rows";
inline constexpr const char* parquet_interface_symbol = "cotune_parquet_interface";
#define COTUNE_PARQUET_INTERFACE "3"
using ParquetRowsFunction = RecordLines*(const std::filesystem::path& path, const std::vector<std::string>& fields);

}  // namespace cotune
