#include "formats/tensorboard_events.h"

#include <array>
#include <bit>
#include <cstring>
#include <functional>

#include "base/error.h"

namespace cotune {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

template <typename Number>
Number number_at(std::string_view bytes) {
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8u; }

// Fields of the messages, by their numbers in tensorflow/core/util/event.proto, summary.proto and tensor.proto.
enum WireType { varint = 0, eight_bytes = 1, counted = 2, four_bytes = 5 };
namespace event_field { constexpr int wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7; }
namespace summary_field { constexpr int value = 1; }
namespace value_field { constexpr int tag = 1, simple_value = 2, tensor = 8, metadata = 9; }
namespace metadata_field { constexpr int plugin_data = 1; }
namespace plugin_field { constexpr int plugin_name = 1; }
namespace tensor_field { constexpr int dtype = 1, shape = 2, string_val = 8; }
namespace shape_field { constexpr int dim = 2; }
namespace dim_field { constexpr int size = 1; }
namespace session_field { constexpr int status = 1; }
constexpr uint64_t dtype_string = 7, session_started = 1;

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int field, WireType type) { put_varint(out, static_cast<uint64_t>(field) << 3 | type); }

void put_number(std::string& out, int field, uint64_t value) {
  put_key(out, field, varint);
  put_varint(out, value);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, counted);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string message(const std::function<void(std::string&)>& fill) {
  std::string out;
  fill(out);
  return out;
}

std::string encoded(const TensorBoardValue& value) {
  std::string out;
  put_bytes(out, value_field::tag, value.tag);
  if (value.scalar) {
    put_key(out, value_field::simple_value, four_bytes);
    return out + bytes_of(*value.scalar);
  }
  put_bytes(out, value_field::tensor, message([&](std::string& tensor) {
    put_number(tensor, tensor_field::dtype, dtype_string);
    put_bytes(tensor, tensor_field::shape, message([](std::string& shape) {
      put_bytes(shape, shape_field::dim, message([](std::string& dim) { put_number(dim, dim_field::size, 1); }));
    }));
    put_bytes(tensor, tensor_field::string_val, value.text);
  }));
  put_bytes(out, value_field::metadata, message([](std::string& metadata) {
              put_bytes(metadata, metadata_field::plugin_data,
                        message([](std::string& plugin) { put_bytes(plugin, plugin_field::plugin_name, "text"); }));
            }));
  return out;
}

[[noreturn]] void throw_damaged() { throw UserError("is no event of TensorBoard"); }

/// One field of a message.
struct Field {
  int number = 0;
  WireType type = varint;
  uint64_t value = 0;       ///< of a varint
  std::string_view bytes;   ///< of the others
};

uint64_t take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(rest.front());
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  throw_damaged();
}

std::string_view take_bytes(std::string_view& rest, uint64_t count) {
  if (count > rest.size()) throw_damaged();
  const std::string_view bytes = rest.substr(0, count);
  rest.remove_prefix(count);
  return bytes;
}

template <typename Take>
void for_each_field(std::string_view bytes, Take take) {
  while (!bytes.empty()) {
    const uint64_t key = take_varint(bytes);
    Field field{.number = static_cast<int>(key >> 3), .type = static_cast<WireType>(key & 7), .value = 0, .bytes = {}};
    switch (field.type) {
      case varint: field.value = take_varint(bytes); break;
      case eight_bytes: field.bytes = take_bytes(bytes, 8); break;
      case four_bytes: field.bytes = take_bytes(bytes, 4); break;
      case counted: field.bytes = take_bytes(bytes, take_varint(bytes)); break;
      default: throw_damaged();
    }
    take(field);
  }
}

TensorBoardValue decoded_value(std::string_view bytes) {
  TensorBoardValue value;
  for_each_field(bytes, [&](const Field& field) {
    if (field.number == value_field::tag && field.type == counted) value.tag = field.bytes;
    if (field.number == value_field::simple_value && field.type == four_bytes) value.scalar = number_at<float>(field.bytes);
    if (field.number != value_field::tensor || field.type != counted) return;
    for_each_field(field.bytes, [&](const Field& of_tensor) {
      if (of_tensor.number == tensor_field::string_val && of_tensor.type == counted) value.text = of_tensor.bytes;
    });
  });
  return value;
}

constexpr size_t length_bytes = 8, crc_bytes = 4, head_bytes = length_bytes + crc_bytes;

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < entries.size(); ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
      entries[i] = crc;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::string to_record(const TensorBoardEvent& event) {
  std::string data;
  put_key(data, event_field::wall_time, eight_bytes);
  data += bytes_of(event.wall_time);
  if (event.step != 0) put_number(data, event_field::step, static_cast<uint64_t>(event.step));
  if (!event.file_version.empty()) put_bytes(data, event_field::file_version, event.file_version);
  if (!event.values.empty()) {
    put_bytes(data, event_field::summary, message([&](std::string& summary) {
      for (const TensorBoardValue& value : event.values) put_bytes(summary, summary_field::value, encoded(value));
    }));
  }
  if (event.session_start) {
    put_bytes(data, event_field::session_log, message([](std::string& log) { put_number(log, session_field::status, session_started); }));
  }
  const std::string length = bytes_of(static_cast<uint64_t>(data.size()));
  return length + bytes_of(masked(crc32c(length))) + data + bytes_of(masked(crc32c(data)));
}

std::vector<std::string_view> whole_records(std::string_view file) {
  std::vector<std::string_view> records;
  while (file.size() >= head_bytes + crc_bytes) {
    const std::string_view length = file.substr(0, length_bytes);
    const auto size = number_at<uint64_t>(length);
    if (number_at<uint32_t>(file.substr(length_bytes)) != masked(crc32c(length)) || size > file.size() - head_bytes - crc_bytes) break;
    const std::string_view data = file.substr(head_bytes, size);
    if (number_at<uint32_t>(file.substr(head_bytes + size)) != masked(crc32c(data))) break;
    records.push_back(file.substr(0, head_bytes + size + crc_bytes));
    file.remove_prefix(records.back().size());
  }
  return records;
}

TensorBoardEvent parse_record(std::string_view record) {
  if (record.size() < head_bytes + crc_bytes) throw_damaged();
  TensorBoardEvent event;
  for_each_field(record.substr(head_bytes, record.size() - head_bytes - crc_bytes), [&](const Field& field) {
    if (field.number == event_field::wall_time && field.type == eight_bytes) event.wall_time = number_at<double>(field.bytes);
    if (field.number == event_field::step && field.type == varint) event.step = static_cast<int64_t>(field.value);
    if (field.type != counted) return;
    if (field.number == event_field::file_version) event.file_version = field.bytes;
    if (field.number == event_field::session_log) {
      for_each_field(field.bytes, [&](const Field& of_log) {
        if (of_log.number == session_field::status && of_log.type == varint) event.session_start = of_log.value == session_started;
      });
    }
    if (field.number != event_field::summary) return;
    for_each_field(field.bytes, [&](const Field& of_summary) {
      if (of_summary.number == summary_field::value && of_summary.type == counted) event.values.push_back(decoded_value(of_summary.bytes));
    });
  });
  return event;
}

}  // namespace cotune
