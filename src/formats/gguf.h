/// GGUF files, versions 2 and 3, little-endian (ggml's docs/gguf.md): metadata pairs, a table of tensors, and
/// their bytes, each aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"

namespace cotune {

/// Integers of every width are widened; u64 values above the range of i64 are refused when read as integers.
using GgufValue =
    std::variant<int64_t, uint64_t, double, bool, std::string, std::vector<int64_t>, std::vector<uint64_t>,
                 std::vector<double>, std::vector<bool>, std::vector<std::string>>;

/// The tensor types of ggml, by their numbers in the file.
enum class GgufType : uint32_t {
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
  Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30
};

/// "Q4_1"; also for types that cannot be dequantised ("IQ4_NL"), and "type 99" for an unknown number.
std::string gguf_type_name(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;     ///< may be a known type outside the enum's names: see dequantize.h
  std::vector<int64_t> shape;        ///< row-major, outermost first (the file stores the reverse)
  std::span<const std::byte> bytes;  ///< blocks along the innermost dimension
};

/// A metadata pair as a file has it, to be written to another one with its own types.
struct GgufStoredPair {
  std::string key;
  std::span<const std::byte> bytes;  ///< of key, type and value
};

struct GgufContent {
  uint32_t version = 0;
  uint64_t alignment = 32;              ///< of tensors, in bytes
  std::vector<GgufStoredPair> pairs;    ///< the metadata in the file's order; views into the bytes parsed
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;  ///< views into the bytes parsed
};

/// Parses a whole file. `file_name` is for messages. Throws UserError naming the file and the key or tensor
/// at fault: not GGUF, other versions, big-endian, truncated, counts or lengths beyond the file, nested
/// arrays, unknown types, names that occur twice, shapes that overflow or do not divide into blocks, offsets
/// that are unaligned, overlap or lie outside the file. Allocates at most a small multiple of the file's
/// size, whatever the counts in it say.
GgufContent parse_gguf(std::span<const std::byte> bytes, const std::string& file_name);

/// One mapped GGUF file, or the parts that llama-gguf-split cut one into (`split.count` of them, NAME-00001-of-00003.gguf and so on in one
/// folder), opened by the first. Views stay valid while the object lives.
class GgufFile {
 public:
  /// Throws UserError as parse_gguf and MappedFile do, and with every part that is missing, of another file or broken, for another part
  /// than the first, and for parts that do not hold as many tensors as the first says.
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  uint32_t version() const { return content_.version; }
  uint64_t alignment() const { return content_.alignment; }
  /// Of parts: without what says that they are.
  const std::vector<GgufStoredPair>& pairs() const { return content_.pairs; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return content_.metadata; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return content_.tensors; }
  /// The tensors in the order of the parts' bytes.
  std::vector<const GgufTensor*> tensors_as_stored() const;
  /// MappedFile::drop_pages.
  void drop_pages() const;
  /// nullptr when there is no such tensor.
  const GgufTensor* find(std::string_view name) const;

  /// Metadata by type; nothing when the key is absent. Throw UserError naming file, key, the type found and
  /// the type wanted when it is there with another type. `number` also takes integers.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;  ///< of floating point

 private:
  const GgufValue* value(std::string_view key) const;
  [[noreturn]] void throw_wrong_type(std::string_view key, std::string_view wanted) const;
  void add_other_parts();

  MappedFile file_;
  GgufContent content_;
  std::vector<MappedFile> other_parts_;
};

}  // namespace cotune
