/// safetensors files (https://github.com/huggingface/safetensors, "Format"): u64 little-endian header length,
/// a JSON header {name: {dtype, shape, data_offsets}}, then the tensors' bytes without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/data_type.h"

namespace cotune {

/// A tensor in somebody else's memory, row-major.
struct TensorView {
  DataType dtype = DataType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte>
      bytes;  ///< product(shape) · element_bytes(dtype) bytes; maybe not aligned to the element
};

/// What a safetensors file holds, checked: every shape, offset and dtype agrees with the file's size; tensors
/// neither overlap nor leave gaps.
struct SafetensorsContent {
  std::map<std::string, TensorView, std::less<>> tensors;  ///< views into the bytes parsed
  std::map<std::string, std::string> metadata;             ///< the header's `__metadata__`
};

/// Parses a whole file. `file_name` is for messages. Throws UserError naming the file, and the tensor where
/// one is at fault: truncated file, header that is not such JSON, unknown dtype, negative or overflowing
/// shape, tensors that overlap, leave a gap, or do not fill their bytes, a name that occurs twice. Allocates
/// a small multiple of the header, which lies in `bytes`.
SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, const std::string& file_name);

/// One mapped safetensors file. Views stay valid while the object lives.
class SafetensorsFile {
 public:
  /// Throws UserError as parse_safetensors and MappedFile do.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  /// MappedFile::drop_pages.
  void drop_pages() const { file_.drop_pages(); }
  /// Throws UserError naming file and tensor when there is no such tensor.
  const TensorView& at(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

/// The tensors of a model folder: `model.safetensors`, or, where there is none, `model.safetensors.index.json` with the
/// files it names (the order of transformers).
class SafetensorsFolder {
 public:
  struct Location {
    std::shared_ptr<const SafetensorsFile> file;  ///< keeps the view's bytes mapped
    const TensorView* tensor = nullptr;
  };

  /// Throws UserError when neither file is there, when the index is malformed or names files outside the
  /// folder, or when files that it names cannot be read or lack a tensor that it gives for them (all are named).
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  /// Every tensor by name. With an index: exactly the tensors that it names.
  const std::map<std::string, Location, std::less<>>& tensors() const { return tensors_; }
  /// MappedFile::drop_pages of every file.
  void drop_pages() const;

 private:
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace cotune
