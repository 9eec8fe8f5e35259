#include "model/weights/safetensors_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstring>
#include <set>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "model/config/families.h"
#include "model/weights/data_type_conversion.h"

namespace cotune {
namespace {

/// The tensor in the mapping, which lives as long as it; a copy where the file's offsets leave it unaligned.
at::Tensor view(const SafetensorsFolder::Location& location) {
  const TensorView& tensor = *location.tensor;
  const at::TensorOptions options(scalar_type_of(tensor.dtype));
  if (reinterpret_cast<uintptr_t>(tensor.bytes.data()) % element_bytes(tensor.dtype) != 0) {
    const at::Tensor copy = at::empty(tensor.shape, options);
    std::memcpy(copy.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
    return copy;
  }
  void* data = const_cast<std::byte*>(tensor.bytes.data());
  return at::from_blob(
      data, tensor.shape, [file = location.file](void*) mutable { file.reset(); }, options);
}

class SafetensorsWeights final : public WeightSource {
 public:
  explicit SafetensorsWeights(SafetensorsFolder folder) : folder_(std::move(folder)) {}

  at::Tensor load(const std::string& name, at::ScalarType dtype) const override {
    const SafetensorsFolder::Location& location = find(name);
    const at::Tensor stored = view(location);
    return stored.scalar_type() == dtype ? stored : stored.to(dtype);
  }

  void drop_pages() const override { folder_.drop_pages(); }

  at::ScalarType stored_dtype(const std::string& name) const override {
    return scalar_type_of(find(name).tensor->dtype);
  }

  std::string content_hash() const override {
    std::string parts;
    for (const auto& [name, location] : folder_.tensors()) {
      const std::span<const std::byte> bytes = location.tensor->bytes;
      parts += fmt::format("{} {} {}\n", name, safetensors_name(location.tensor->dtype),
                           checksum({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    return checksum(parts);
  }

 private:
  const SafetensorsFolder::Location& find(const std::string& name) const {
    const auto found = folder_.tensors().find(name);
    COTUNE_CHECK(found != folder_.tensors().end(), "no tensor {}", name);
    return found->second;
  }

  SafetensorsFolder folder_;
};

bool is_ignored(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight");
}

bool have_equal_values(const SafetensorsFolder::Location& a, const SafetensorsFolder::Location& b) {
  if (a.tensor->shape != b.tensor->shape) return false;
  const at::Tensor left = view(a), right = view(b);
  if (!is_weight_type(left.scalar_type()) || !is_weight_type(right.scalar_type())) return false;
  const at::ScalarType dtype = at::promote_types(left.scalar_type(), right.scalar_type());
  return at::equal(left.to(dtype), right.to(dtype));
}

/// transformers ties a stored head only where it equals the embedding, and else computes with both.
void check_tied_head(const SafetensorsFolder& tensors, const ModelConfig& config, Diagnostics& mistakes) {
  const auto head = tensors.tensors().find("lm_head.weight"), embedding = tensors.tensors().find("model.embed_tokens.weight");
  if (!config.tied_embeddings || head == tensors.tensors().end() || embedding == tensors.tensors().end()) return;
  if (have_equal_values(head->second, embedding->second)) return;
  mistakes.add(head->second.file->path().string(), 0, head->first,
               fmt::format("differs from {}, which config.json ties it to (tie_word_embeddings: true); with false both are used, as "
                           "transformers does with such a file",
                           embedding->first));
}

void check(const std::filesystem::path& folder, const SafetensorsFolder& tensors, const ModelConfig& config) {
  Diagnostics mistakes;
  std::set<std::string, std::less<>> expected;
  for (const ModelTensor& wanted : model_tensors(config)) {
    expected.insert(wanted.name);
    const auto found = tensors.tensors().find(wanted.name);
    if (found == tensors.tensors().end()) {
      mistakes.add(folder.string(), 0, wanted.name, "missing");
      continue;
    }
    const SafetensorsFolder::Location& location = found->second;
    const std::string file = location.file->path().string();
    if (location.tensor->shape != wanted.shape) {
      mistakes.add(file, 0, wanted.name,
                   fmt::format("has shape [{}]; config.json says [{}]",
                               fmt::join(location.tensor->shape, ", "), fmt::join(wanted.shape, ", ")));
    }
    if (!is_weight_type(scalar_type_of(location.tensor->dtype))) {
      mistakes.add(file, 0, wanted.name,
                   fmt::format("has type {}; accepted: F64, F32, F16, BF16",
                               safetensors_name(location.tensor->dtype)));
    }
  }
  for (const auto& [name, location] : tensors.tensors()) {
    if (!expected.contains(name) && !is_ignored(name, config)) {
      mistakes.add(location.file->path().string(), 0, name,
                   fmt::format("not a tensor of this {} model", config.family));
    }
  }
  check_tied_head(tensors, config, mistakes);
  mistakes.throw_if_any();
}

}  // namespace

std::shared_ptr<const WeightSource> open_safetensors_weights(const std::filesystem::path& folder,
                                                             const ModelConfig& config) {
  SafetensorsFolder tensors(folder);
  check(folder, tensors, config);
  return std::make_shared<SafetensorsWeights>(std::move(tensors));
}

}  // namespace cotune
