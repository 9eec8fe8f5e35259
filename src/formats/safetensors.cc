#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_mistake.h"
#include "base/lfs_pointer.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

constexpr uint64_t maximum_header_bytes = 100'000'000;  // as the reference implementation
constexpr int maximum_depth = 4;

/// Parses JSON, refusing what nlohmann accepts silently: names that occur twice, and nesting deeper than any
/// header's.
Json parse_header_json(std::string_view text, const std::string& file_name) {
  std::vector<std::set<std::string>> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > maximum_depth) throw_user_error("{}: the safetensors header is nested too deeply", file_name);
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
      throw_user_error("{}: the safetensors header names '{}' twice", file_name, parsed.get<std::string>());
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw_user_error("{}: the safetensors header is not JSON: {}", file_name, json_reason(error));
  }
}

/// The file's mistakes about one tensor.
class TensorParser {
 public:
  TensorParser(const std::string& file_name, const std::string& name, std::span<const std::byte> data)
      : file_name_(file_name), name_(name), data_(data) {}

  TensorView parse(const Json& entry) const {
    if (!entry.is_object()) refuse("its entry must be an object");
    TensorView view;
    view.dtype = dtype_of(field(entry, "dtype"));
    const uint64_t bytes = read_shape(field(entry, "shape"), view);
    const Json& offsets = field(entry, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      refuse("data_offsets must be two whole numbers");
    }
    const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
    if (begin > end) refuse(fmt::format("data_offsets {}..{} run backwards", begin, end));
    if (end > data_.size()) {
      refuse(fmt::format(
          "its bytes {}..{} lie past the end of the file ({} bytes of tensors): is the file truncated?",
          begin, end, data_.size()));
    }
    if (end - begin != bytes) {
      refuse(fmt::format("shape and dtype need {} bytes, data_offsets give {}", bytes, end - begin));
    }
    view.bytes = data_.subspan(begin, bytes);
    return view;
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    throw_user_error("{}: tensor '{}': {}", file_name_, name_, message);
  }

  const Json& field(const Json& entry, const char* name) const {
    const auto found = entry.find(name);
    if (found == entry.end()) refuse(fmt::format("has no {}", name));
    return *found;
  }

  DataType dtype_of(const Json& value) const {
    const std::optional<DataType> type =
        value.is_string() ? data_type_of(value.get_ref<const std::string&>()) : std::nullopt;
    if (!type) {
      refuse(fmt::format("dtype {}: accepted are F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL",
                         value.dump(-1, ' ', true, Json::error_handler_t::replace)));
    }
    return *type;
  }

  uint64_t read_shape(const Json& value, TensorView& view) const {
    if (!value.is_array()) refuse("shape must be a list");
    uint64_t bytes = element_bytes(view.dtype);
    bool empty = false;
    for (const Json& size : value) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t{INT64_MAX}) {
        refuse("shape must be a list of whole numbers, none negative");
      }
      const auto extent = size.get<uint64_t>();
      view.shape.push_back(static_cast<int64_t>(extent));
      if (extent == 0) {
        empty = true;
      } else if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > uint64_t{INT64_MAX}) {
        refuse("the shape overflows");
      }
    }
    return empty ? 0 : bytes;
  }

  const std::string& file_name_;
  const std::string& name_;
  std::span<const std::byte> data_;
};

void refuse_overlaps_and_gaps(const SafetensorsContent& content, std::span<const std::byte> data,
                              const std::string& file_name) {
  struct Range {
    size_t begin, end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, view] : content.tensors) {
    const auto begin = static_cast<size_t>(view.bytes.data() - data.data());
    ranges.push_back({begin, begin + view.bytes.size(), &name});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t position = 0;
  for (const Range& range : ranges) {
    if (range.begin < position)
      throw_user_error("{}: tensor '{}': overlaps another tensor", file_name, *range.name);
    if (range.begin > position) {
      throw_user_error("{}: tensor '{}': {} bytes before it belong to no tensor", file_name, *range.name,
                       range.begin - position);
    }
    position = range.end;
  }
  if (position != data.size()) {
    throw_user_error("{}: {} bytes after the last tensor belong to no tensor", file_name,
                     data.size() - position);
  }
}

}  // namespace

SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, const std::string& file_name) {
  refuse_lfs_pointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file_name);
  if (bytes.size() < 8)
    throw_user_error("{}: not a safetensors file: {} bytes, too short for a header", file_name, bytes.size());
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | std::to_integer<uint64_t>(bytes[static_cast<size_t>(i)]);
  if (header_bytes > maximum_header_bytes) {
    throw_user_error("{}: not a safetensors file: its header would have {} bytes", file_name, header_bytes);
  }
  if (header_bytes > bytes.size() - 8) {
    throw_user_error("{}: the header has {} bytes, the file only {}: is the file truncated?", file_name,
                     header_bytes, bytes.size());
  }
  const Json header = parse_header_json(
      {reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<size_t>(header_bytes)}, file_name);
  if (!header.is_object()) throw_user_error("{}: the safetensors header must be a JSON object", file_name);
  const std::span<const std::byte> data = bytes.subspan(8 + static_cast<size_t>(header_bytes));

  SafetensorsContent content;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) throw_user_error("{}: __metadata__ must be an object", file_name);
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) throw_user_error("{}: __metadata__.{} must be a string", file_name, key);
        content.metadata[key] = value.get<std::string>();
      }
    } else {
      content.tensors[name] = TensorParser(file_name, name, data).parse(entry);
    }
  }
  refuse_overlaps_and_gaps(content, data, file_name);
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(parse_safetensors(file_.bytes(), path.string())) {}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const auto found = content_.tensors.find(name);
  if (found == content_.tensors.end()) throw_user_error("{}: has no tensor '{}'", path().string(), name);
  return found->second;
}

}  // namespace cotune
