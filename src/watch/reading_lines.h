#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "data/dataset_reader.h"

namespace cotune {

/// What is said of data while they are tokenized: `tokenizing: 42%, 31s left, 1,240,000 tokens/s, 61,440 records of data/chats.jsonl`. Nothing about
/// what is done within two seconds. On a terminal that can draw one line that is written over four times a second and goes at the end, elsewhere a
/// line every ten seconds.
class ReadingLines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// columns: of the terminal; 0: it is none, or cannot draw. unicode: whether it shows more than ASCII. write: bytes for standard error.
  ReadingLines(int columns, bool unicode, std::function<void(const std::string&)> write)
      : columns_(columns), unicode_(unicode), write_(std::move(write)) {}
  /// Takes away the line that stands there.
  ~ReadingLines();
  ReadingLines(const ReadingLines&) = delete;
  ReadingLines& operator=(const ReadingLines&) = delete;

  void show(const ReadingProgress& progress, Time now);

 private:
  int columns_;
  bool unicode_;
  std::function<void(const std::string&)> write_;
  std::string file_;
  Time file_begin_{};
  std::optional<Time> begin_, shown_;
  bool has_line_ = false;
};

/// The line; seconds: since the file was begun.
std::string reading_line(const ReadingProgress& progress, double seconds);

}  // namespace cotune
