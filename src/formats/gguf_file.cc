#include "base/error.h"
#include "formats/gguf.h"

namespace cotune {

GgufFile::GgufFile(const std::filesystem::path& path)
    : file_(path), content_(parse_gguf(file_.bytes(), path.string())) {}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = content_.tensors.find(name);
  return found == content_.tensors.end() ? nullptr : &found->second;
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto found = content_.metadata.find(key);
  return found == content_.metadata.end() ? nullptr : &found->second;
}

void GgufFile::throw_wrong_type(std::string_view key, std::string_view wanted) const {
  static constexpr const char* kNames[] = {
      "integer",           "integer",           "number",           "bool",           "string",
      "array of integers", "array of integers", "array of numbers", "array of bools", "array of strings"};
  static_assert(std::size(kNames) == std::variant_size_v<GgufValue>);
  throw_user_error("{}: {}: found {}, accepted: {}", path().string(), key, kNames[value(key)->index()],
                   wanted);
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(found)) return *number;
  if (const auto* number = std::get_if<uint64_t>(found); number && *number <= uint64_t{INT64_MAX}) {
    return static_cast<int64_t>(*number);
  }
  throw_wrong_type(key, "an integer below 2^63");
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(found)) return *number;
  if (const auto* number = std::get_if<int64_t>(found)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<uint64_t>(found)) return static_cast<double>(*number);
  throw_wrong_type(key, "a number");
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(found)) return *flag;
  throw_wrong_type(key, "a bool");
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(found)) return *text;
  throw_wrong_type(key, "a string");
}

std::optional<std::vector<std::string>> GgufFile::texts(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* texts = std::get_if<std::vector<std::string>>(found)) return *texts;
  throw_wrong_type(key, "an array of strings");
}

std::optional<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* integers = std::get_if<std::vector<int64_t>>(found)) return *integers;
  throw_wrong_type(key, "an array of integers of at most 63 bits");
}

}  // namespace cotune
