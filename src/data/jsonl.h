/// JSON Lines, one at a time.
#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

/// Reads lines of a stream in constant memory (one line). A byte order mark at the start and a carriage return at the
/// end of a line are dropped, lines of white space passed over, bytes that are not UTF-8 replaced by U+FFFD.
class JsonlReader {
 public:
  static constexpr size_t max_line_bytes = size_t{64} << 20;

  /// The stream must outlive the reader.
  explicit JsonlReader(std::istream& stream) : stream_(stream), buffer_(1 << 16) {}

  /// Moves to the next line that holds something; false at the end.
  bool next();
  const std::string& text() const { return text_; }
  int line() const { return line_; }            ///< from 1
  bool too_long() const { return too_long_; }   ///< longer than max_line_bytes: text() holds its beginning
  bool repaired() const { return repaired_; }   ///< some bytes were not UTF-8

 private:
  bool read_line();

  std::istream& stream_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;
  std::string text_;
  int line_ = 0;
  bool too_long_ = false;
  bool repaired_ = false;
};

/// Parses one line. Throws std::runtime_error with the column and the reason: not JSON, or nested deeper than 64 levels.
nlohmann::ordered_json parse_json_line(std::string_view line);

}  // namespace cotune
