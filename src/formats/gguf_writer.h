/// GGUF files of version 3 (gguf.h has the layout).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/atomic_file.h"
#include "formats/gguf.h"

namespace cotune {

/// A key and its value, in the types that are written anew; pairs of another file are copied (GgufStoredPair).
using GgufPair = std::pair<std::string, std::variant<std::string, uint32_t, float>>;

/// Key, type and value.
std::string gguf_pair_bytes(const GgufPair& pair);

/// What general.file_type says of a file whose matrices are mostly of `type` (llama.h, enum llama_ftype). Throws InternalError for
/// types other than F32, F16 and BF16.
uint32_t gguf_file_type(GgufType type);

/// A tensor that a file will hold.
struct GgufTensorPlan {
  std::string name;
  GgufType type = GgufType::F32;
  std::vector<int64_t> shape;  ///< outermost first
  size_t byte_count() const;
};

/// A file written tensor by tensor: no more than one need be in memory.
class GgufWriter {
 public:
  /// pairs: gguf_pair_bytes() or GgufStoredPair::bytes of each; alignment: what general.alignment among them says, 32 without it.
  /// Throws SystemError as AtomicFile does.
  GgufWriter(const std::filesystem::path& path, std::span<const std::string> pairs, std::vector<GgufTensorPlan> tensors, uint64_t alignment = 32);

  /// Bytes of the tensors, one after the other in the order given, each in as many pieces as one likes. Throws InternalError where
  /// they are more than the tensors'.
  void append(std::span<const std::byte> bytes);
  /// The file is there. Throws InternalError where bytes are missing.
  void commit();

 private:
  std::vector<GgufTensorPlan> tensors_;
  uint64_t alignment_;
  AtomicFile file_;
  size_t tensor_ = 0, left_bytes_ = 0;  ///< the tensor under way, and what is missing of it
};

}  // namespace cotune
