#include "formats/gguf.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "formats/byte_reader.h"
#include "formats/gguf_types.h"

namespace cotune {
namespace {

static_assert(std::endian::native == std::endian::little);

enum MetadataType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

constexpr uint32_t gguf_magic = 0x46554747;  // "GGUF"
constexpr int most_dimensions = 4;    // GGML_MAX_DIMS

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name), reader_(bytes, file_name) {}

  GgufContent parse() {
    read_version();
    const auto tensor_count = reader_.read<uint64_t>("tensor count");
    const auto pair_count = reader_.read<uint64_t>("metadata count");
    for (uint64_t i = 0; i < pair_count; ++i) read_pair();
    for (uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    place_tensors();
    return std::move(content_);
  }

 private:
  void read_version() {
    refuse_lfs_pointer({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}, file_name_);
    if (bytes_.size() < 4 || reader_.read<uint32_t>("magic") != gguf_magic) {
      throw_user_error("{}: not a GGUF file: it does not begin with 'GGUF'", file_name_);
    }
    content_.version = reader_.read<uint32_t>("version");
    if (content_.version >= 1 << 16)
      throw_user_error("{}: a big-endian GGUF file; accepted: little-endian", file_name_);
    if (content_.version != 2 && content_.version != 3) {
      throw_user_error("{}: GGUF version {}; accepted: 2, 3", file_name_, content_.version);
    }
  }

  std::string read_string(std::string_view what) {
    const auto length = reader_.read<uint64_t>(what);
    const auto text = reader_.take(length, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  void read_pair() {
    const size_t begin = reader_.position();
    const std::string key = read_string("metadata key");
    const auto type = reader_.read<uint32_t>(key);
    GgufValue value = type == array ? read_array(key) : read_scalar(type, key);
    if (!content_.metadata.emplace(key, std::move(value)).second) {
      throw_user_error("{}: metadata key '{}' occurs twice", file_name_, key);
    }
    content_.pairs.push_back({key, bytes_.subspan(begin, reader_.position() - begin)});
  }

  bool read_bool(const std::string& key) {
    const auto value = reader_.read<uint8_t>(key);
    if (value > 1) throw_user_error("{}: {}: found {} where 0 or 1 (bool) is wanted", file_name_, key, value);
    return value == 1;
  }

  GgufValue read_scalar(uint32_t type, const std::string& key) {
    switch (type) {
      case u8:
        return int64_t{reader_.read<uint8_t>(key)};
      case i8:
        return int64_t{reader_.read<int8_t>(key)};
      case u16:
        return int64_t{reader_.read<uint16_t>(key)};
      case i16:
        return int64_t{reader_.read<int16_t>(key)};
      case u32:
        return int64_t{reader_.read<uint32_t>(key)};
      case i32:
        return int64_t{reader_.read<int32_t>(key)};
      case f32:
        return double{reader_.read<float>(key)};
      case boolean:
        return read_bool(key);
      case string:
        return read_string(key);
      case u64:
        return reader_.read<uint64_t>(key);
      case i64:
        return reader_.read<int64_t>(key);
      case f64:
        return reader_.read<double>(key);
      default:
        throw_user_error("{}: {}: unknown metadata type {}", file_name_, key, type);
    }
  }

  /// Reserves for as many elements as the rest of the file could hold, no more.
  template <typename T, typename Read>
  GgufValue read_elements(uint64_t count, size_t least_bytes, const std::string& key, Read read) {
    if (count > reader_.remaining() / least_bytes) {
      throw_user_error(
          "{}: {}: an array of {} values does not fit in the {} bytes that are left: is the file truncated?",
          file_name_, key, count, reader_.remaining());
    }
    std::vector<T> values;
    values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) values.push_back(read());
    return values;
  }

  template <typename Stored, typename T>
  GgufValue read_numbers(uint64_t count, const std::string& key) {
    return read_elements<T>(count, sizeof(Stored), key,
                            [&] { return static_cast<T>(reader_.read<Stored>(key)); });
  }

  GgufValue read_array(const std::string& key) {
    const auto type = reader_.read<uint32_t>(key);
    const auto count = reader_.read<uint64_t>(key);
    switch (type) {
      case u8:
        return read_numbers<uint8_t, int64_t>(count, key);
      case i8:
        return read_numbers<int8_t, int64_t>(count, key);
      case u16:
        return read_numbers<uint16_t, int64_t>(count, key);
      case i16:
        return read_numbers<int16_t, int64_t>(count, key);
      case u32:
        return read_numbers<uint32_t, int64_t>(count, key);
      case i32:
        return read_numbers<int32_t, int64_t>(count, key);
      case f32:
        return read_numbers<float, double>(count, key);
      case boolean:
        return read_elements<bool>(count, 1, key, [&] { return read_bool(key); });
      case string:
        return read_elements<std::string>(count, 8, key, [&] { return read_string(key); });
      case u64:
        return read_numbers<uint64_t, uint64_t>(count, key);
      case i64:
        return read_numbers<int64_t, int64_t>(count, key);
      case f64:
        return read_numbers<double, double>(count, key);
      case array:
        throw_user_error("{}: {}: arrays of arrays are not supported", file_name_, key);
      default:
        throw_user_error("{}: {}: unknown metadata type {} of array elements", file_name_, key, type);
    }
  }

  [[noreturn]] void refuse(const std::string& tensor, const std::string& message) const {
    throw_user_error("{}: tensor '{}': {}", file_name_, tensor, message);
  }

  void read_tensor() {
    GgufTensor tensor;
    tensor.name = read_string("tensor name");
    const auto dimensions = reader_.read<uint32_t>(tensor.name);
    if (dimensions > most_dimensions) {
      refuse(tensor.name,
             fmt::format("has {} dimensions; accepted: up to {}", dimensions, most_dimensions));
    }
    uint64_t values = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto extent = reader_.read<uint64_t>(tensor.name);
      if (extent == 0 || __builtin_mul_overflow(values, extent, &values) || values > uint64_t{INT64_MAX}) {
        refuse(tensor.name, "its shape is empty or overflows");
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
    }
    const auto number = reader_.read<uint32_t>(tensor.name);
    const auto layout = gguf_type_layout(number);
    if (!layout) refuse(tensor.name, fmt::format("unknown tensor type {}", number));
    tensor.type = static_cast<GgufType>(number);
    const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (columns % layout->block_values != 0) {
      refuse(tensor.name, fmt::format("rows of {} values do not divide into {} blocks of {}", columns,
                                      layout->name, layout->block_values));
    }
    uint64_t size = values / static_cast<uint64_t>(layout->block_values);
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(layout->block_bytes), &size)) {
      refuse(tensor.name, "its shape overflows");
    }
    const auto offset = reader_.read<uint64_t>(tensor.name);
    places_.push_back({offset, size, tensor.name});
    const std::string name = tensor.name;
    if (!content_.tensors.emplace(name, std::move(tensor)).second) refuse(name, "occurs twice");
  }

  uint64_t alignment() const {
    const auto found = content_.metadata.find("general.alignment");
    if (found == content_.metadata.end()) return 32;
    const auto* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 1 || *value > 1 << 20 ||
        !std::has_single_bit(static_cast<uint64_t>(*value))) {
      throw_user_error("{}: general.alignment: must be a power of two up to 1048576", file_name_);
    }
    return static_cast<uint64_t>(*value);
  }

  void place_tensors() {
    const uint64_t step = content_.alignment = alignment();
    const uint64_t start = (reader_.position() + step - 1) / step * step;
    const uint64_t available = start <= bytes_.size() ? bytes_.size() - start : 0;
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return a.offset < b.offset; });
    uint64_t end = 0;
    for (const Place& place : places_) {
      if (place.offset % step != 0)
        refuse(place.name, fmt::format("offset {} is not a multiple of {}", place.offset, step));
      if (place.offset < end) refuse(place.name, "overlaps another tensor");
      if (place.offset > available || place.size > available - place.offset) {
        refuse(place.name,
               fmt::format(
                   "its {} bytes at offset {} lie past the end of the file ({} bytes of tensors): is the "
                   "file truncated?",
                   place.size, place.offset, available));
      }
      end = place.offset + place.size;
      content_.tensors.find(place.name)->second.bytes =
          bytes_.subspan(static_cast<size_t>(start + place.offset), static_cast<size_t>(place.size));
    }
  }

  struct Place {
    uint64_t offset, size;
    std::string name;
  };

  std::span<const std::byte> bytes_;
  const std::string& file_name_;
  ByteReader reader_;
  GgufContent content_;
  std::vector<Place> places_;
};

}  // namespace

std::string gguf_type_name(GgufType type) {
  const auto layout = gguf_type_layout(static_cast<uint32_t>(type));
  return layout ? std::string(layout->name) : fmt::format("type {}", static_cast<uint32_t>(type));
}

GgufContent parse_gguf(std::span<const std::byte> bytes, const std::string& file_name) {
  return GgufParser(bytes, file_name).parse();
}

}  // namespace cotune
