/// Records of a data file, one JSON text after the other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

class RecordLines {
 public:
  static constexpr size_t max_line_bytes = size_t{64} << 20;

  virtual ~RecordLines() = default;
  /// Moves to the next record; false at the end. Throws UserError where the file cannot be read on.
  virtual bool next() = 0;
  /// How many of all records there have been, [0, 1]; -1: their number is not known before the end.
  virtual double part_read() const { return -1; }
  /// What a record is in the file: `line`, or `row` of Parquet.
  virtual std::string_view unit() const { return "line"; }
  const std::string& text() const { return text_; }
  /// Columns that are null in this row of Parquet: text() has no such fields.
  const std::vector<std::string>& nulls() const { return nulls_; }
  int line() const { return line_; }            ///< from 1; of Parquet the row
  bool too_long() const { return too_long_; }   ///< longer than max_line_bytes: text() holds its beginning
  std::string too_long_complaint() const {
    return "the " + std::string(unit()) + " is longer than " + std::to_string(max_line_bytes >> 20) + " MiB";
  }
  bool repaired() const { return repaired_; }   ///< some bytes were not UTF-8

 protected:
  std::string text_;
  std::vector<std::string> nulls_;
  int line_ = 0;
  bool too_long_ = false;
  bool repaired_ = false;
};

}  // namespace cotune
