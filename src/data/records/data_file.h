/// A file of records on disk, whatever it is stored as.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "data/records/record_lines.h"

namespace cotune {

/// JSONL, plain or compressed by gzip or zstd, or Parquet, by the file's first bytes and not by its name.
class DataFile {
 public:
  /// fields: what is read of a Parquet file's columns. Throws UserError, without the file's name, where it cannot be opened or is of another kind
  /// (foreign_file.h).
  DataFile(const std::filesystem::path& path, const std::vector<std::string>& fields);

  /// Its next() throws UserError where the file cannot be read on.
  RecordLines& lines() { return *lines_; }
  /// How much of the file has been read, [0, 1]; of Parquet, of its rows.
  double part_read();
  /// Reading ended because of the disk, not at the end of the file.
  bool is_broken() const { return stream_.bad(); }

 private:
  std::ifstream stream_;
  uint64_t bytes_ = 0;
  std::unique_ptr<std::istream> content_;
  std::unique_ptr<RecordLines> lines_;
};

}  // namespace cotune
