/// JSON Lines, one at a time.
#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "data/records/record_lines.h"

namespace cotune {

/// Reads lines of a stream in constant memory (one line). A byte order mark at the start and a carriage return at the
/// end of a line are dropped, lines of white space passed over, bytes that are not UTF-8 replaced by U+FFFD.
class JsonlReader : public RecordLines {
 public:
  /// The stream must outlive the reader.
  explicit JsonlReader(std::istream& stream) : stream_(stream), buffer_(1 << 16) {}

  bool next() override;

 private:
  bool read_line();

  std::istream& stream_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;
};

/// What is wrong with a text that is to be JSON.
class JsonError : public std::runtime_error {
 public:
  JsonError(size_t column, const std::string& reason);   ///< 0: of the whole
  size_t column() const { return column_; }              ///< in bytes from the text's beginning, from 1
  const std::string& reason() const { return reason_; }  ///< what() without the column

 private:
  size_t column_;
  std::string reason_;
};

/// What to say of a file whose first line begins with `[`: of its other lines nothing needs to be said.
inline constexpr std::string_view list_complaint = "expected an object on each line (JSONL), found a list; `jq -c '.[]'` makes lines of one";

/// Parses one line. Escapes of one half of a surrogate pair (`\ud800`), which name no character, become U+FFFD; is_repaired is set where
/// there were any, and left as it was otherwise. Throws JsonError: not JSON, nested deeper than 64 levels, or with an object of more than
/// 10,000 members.
nlohmann::ordered_json parse_json_line(std::string_view line, bool* is_repaired = nullptr);

}  // namespace cotune
