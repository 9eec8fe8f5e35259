#include <algorithm>
#include <functional>
#include <utility>

#include "base/diagnostics.h"
#include "base/error.h"
#include "formats/gguf.h"

namespace cotune {

namespace {

constexpr const char *part_count_key = "split.count", *part_number_key = "split.no", *tensor_count_key = "split.tensors.count";
constexpr const char* way_out = "`llama-gguf-split --merge FIRST_PART OUTPUT` makes one file of the parts";

std::string part_ending(int64_t number, int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

int64_t whole_number(const GgufContent& content, const char* key) {
  const auto found = content.metadata.find(key);
  const auto* number = found == content.metadata.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return number == nullptr ? -1 : *number;
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path), content_(parse_gguf(file_.bytes(), path.string())) {
  if (integer(part_count_key).value_or(0) > 1) add_other_parts();
}

void GgufFile::add_other_parts() {
  const int64_t count = *integer(part_count_key), number = integer(part_number_key).value_or(-1);
  const std::string file = path().string(), name = path().filename().string(), ending = part_ending(number, count);
  constexpr int64_t most_parts = 10'000;
  if (count > most_parts || number < 0 || number >= count) {
    throw_user_error("{}: {}: found part {} (counted from 0) of {}; accepted: at most {} parts", file, part_number_key, number, count,
                     most_parts);
  }
  if (!name.ends_with(ending)) {
    throw_user_error("{}: {}: is part {} of {}, and its name must end in {} for the others to be found; {}", file, part_count_key,
                     number + 1, count, ending, way_out);
  }
  const std::string stem = name.substr(0, name.size() - ending.size());
  if (number > 0) {
    throw_user_error("{}: {}: is part {} of {}; give the first, {}", file, part_number_key, number + 1, count,
                     stem + part_ending(0, count));
  }
  Diagnostics mistakes;
  for (int64_t i = 1; i < count; ++i) {
    const std::filesystem::path part = path().parent_path() / (stem + part_ending(i, count));
    try {
      const MappedFile& opened = other_parts_.emplace_back(part);
      const GgufContent content = parse_gguf(opened.bytes(), part.string());
      if (whole_number(content, part_count_key) != count || whole_number(content, part_number_key) != i) {
        mistakes.add(part.string(), 0, part_number_key, fmt::format("is not part {} of {}", i + 1, count));
      }
      for (const auto& [tensor, view] : content.tensors) {
        if (!content_.tensors.emplace(tensor, view).second) mistakes.add(part.string(), 0, tensor, "is in an earlier part too");
      }
    } catch (const UserError& error) {
      mistakes.add(error);
    }
  }
  const int64_t tensors = integer(tensor_count_key).value_or(-1);
  if (mistakes.empty() && tensors >= 0 && tensors != static_cast<int64_t>(content_.tensors.size())) {
    mistakes.add(file, 0, tensor_count_key, fmt::format("found {}; the parts hold {}", tensors, content_.tensors.size()));
  }
  if (!mistakes.empty()) {
    mistakes.add(file, 0, part_count_key, fmt::format("is the first of {} parts, which must all be in its folder; {}", count, way_out));
  }
  mistakes.throw_if_any();
  std::erase_if(content_.pairs, [](const GgufStoredPair& pair) { return pair.key.starts_with("split."); });
  std::erase_if(content_.metadata, [](const auto& pair) { return pair.first.starts_with("split."); });
}

std::vector<const GgufTensor*> GgufFile::tensors_as_stored() const {
  const auto place = [&](const GgufTensor* tensor) {  // −1: the first part
    const auto begins_within = [&](const MappedFile& part) {
      const std::byte *begin = part.bytes().data(), *end = begin + part.bytes().size();
      return std::greater_equal<>()(tensor->bytes.data(), begin) && std::less<>()(tensor->bytes.data(), end);
    };
    const auto part = std::ranges::find_if(other_parts_, begins_within);
    return std::pair(part == other_parts_.end() ? -1 : part - other_parts_.begin(), tensor->bytes.data());
  };
  std::vector<const GgufTensor*> tensors;
  for (const auto& [name, tensor] : content_.tensors) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, place);
  return tensors;
}

void GgufFile::drop_pages() const {
  file_.drop_pages();
  for (const MappedFile& part : other_parts_) part.drop_pages();
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = content_.tensors.find(name);
  return found == content_.tensors.end() ? nullptr : &found->second;
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto found = content_.metadata.find(key);
  return found == content_.metadata.end() ? nullptr : &found->second;
}

void GgufFile::throw_wrong_type(std::string_view key, std::string_view wanted) const {
  static constexpr const char* type_names[] = {
      "integer",           "integer",           "number",           "bool",           "string",
      "array of integers", "array of integers", "array of numbers", "array of bools", "array of strings"};
  static_assert(std::size(type_names) == std::variant_size_v<GgufValue>);
  throw_user_error("{}: {}: found {}, accepted: {}", path().string(), key, type_names[value(key)->index()],
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

std::optional<std::vector<double>> GgufFile::numbers(std::string_view key) const {
  const GgufValue* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<std::vector<double>>(found)) return *numbers;
  throw_wrong_type(key, "an array of floating-point numbers");
}

}  // namespace cotune
