/// Event files of TensorBoard: records of TFRecord framing (length, masked CRC-32C, protocol buffer, masked CRC-32C), each a
/// `tensorflow.Event` of which this reads and writes what scalars and texts need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cotune {

/// A number, or a text in Markdown.
struct TensorBoardValue {
  std::string tag;
  std::optional<float> scalar;
  std::string text;
  bool operator==(const TensorBoardValue&) const = default;
};

struct TensorBoardEvent {
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::string file_version;    ///< of the first event of a file: `brain.Event:2`
  bool session_start = false;  ///< whoever has read events of this step and later ones forgets them
  std::vector<TensorBoardValue> values;
  bool operator==(const TensorBoardEvent&) const = default;
};

inline constexpr const char* tensorboard_file_version = "brain.Event:2";

/// CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

/// With its frame.
std::string to_record(const TensorBoardEvent& event);

/// The records at the beginning of a file, with their frames: up to the first that is cut off or whose checksums are wrong, as a
/// process that was killed leaves it. They are parts of `file`.
std::vector<std::string_view> whole_records(std::string_view file);

/// Of a record that whole_records gives; fields that this does not know are left out. Throws UserError: it is no event.
TensorBoardEvent parse_record(std::string_view record);

}  // namespace cotune
