#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/diagnostics.h"

namespace cotune {

/// Mistakes in the records of one file: reports the first 20, of those with the same words the first 3, and counts the rest.
class RecordMistakes {
 public:
  /// unit: what a record is in the file.
  RecordMistakes(std::string file, Diagnostics& diagnostics, std::string_view unit = "line")
      : file_(std::move(file)), diagnostics_(diagnostics), unit_(unit) {}

  /// By ascending line.
  void add(int line, const std::string& field, const std::string& message);

  /// Once, after the last: says how many were not reported, and the line of the last of them.
  void finish();

  int64_t count() const { return count_; }

 private:
  std::string file_;
  Diagnostics& diagnostics_;
  std::string unit_;
  std::map<std::string, int64_t> alike_;  ///< at most as many messages as are reported are in it, and one more
  int64_t count_ = 0, reported_ = 0;
  int last_line_ = 0;
};

}  // namespace cotune
