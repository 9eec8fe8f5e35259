#include "model/weights/gguf_weights.h"

#include <ATen/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <fmt/ranges.h>

#include <cstring>
#include <map>
#include <set>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/dequantize.h"
#include "model/config/families.h"
#include "model/weights/row_threads.h"

namespace cotune {
namespace {

bool is_dense(GgufType type) {
  return type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16;
}

class GgufWeights final : public WeightSource {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, const ModelConfig& config)
      : file_(std::move(file)), head_dim_(config.head_dim) {
    for (ModelTensor& tensor : model_tensors(config)) {
      const std::string name = tensor.name;
      tensors_.emplace(name, std::move(tensor));
    }
  }

  std::string content_hash() const override {
    std::string parts;
    for (const auto& [name, tensor] : file_->tensors()) {
      parts += fmt::format("{} {} {}\n", name, gguf_type_name(tensor.type),
                           checksum({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()}));
    }
    return checksum(parts);
  }

  bool is_quantised(const std::string& name) const override { return !is_dense(stored(find(name)).type); }

  at::ScalarType stored_dtype(const std::string& name) const override {
    switch (stored(find(name)).type) {
      case GgufType::F16:
        return at::kHalf;
      case GgufType::BF16:
        return at::kBFloat16;
      default:
        return at::kFloat;
    }
  }

  void drop_pages() const override { file_->drop_pages(); }

  at::Tensor load(const std::string& name, at::ScalarType dtype) const override {
    const ModelTensor& tensor = find(name);
    const GgufTensor& blocks = stored(tensor);
    if (is_dense(blocks.type) && stored_dtype(name) == dtype && tensor.gguf_rows == GgufRows::same)
      return view(blocks, dtype);

    at::Tensor result = at::empty(tensor.shape, at::TensorOptions(dtype));
    const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
    const int64_t columns = tensor.shape.back();
    COTUNE_CHECK(rows == 1 ? tensor.gguf_rows == GgufRows::same : true, "{} has its rows in another order",
                 name);
    const auto row_bytes = static_cast<int64_t>(blocks.bytes.size()) / rows;
    const auto fill = [&]<typename T>(T* values) {
      for_each_row_range(rows, columns, [&](int64_t begin, int64_t end) {
        std::vector<float> buffer(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
          const int64_t source = gguf_row(tensor.gguf_rows, row, head_dim_);
          dequantize(
              blocks.type,
              blocks.bytes.subspan(static_cast<size_t>(source * row_bytes), static_cast<size_t>(row_bytes)),
              buffer);
          T* out = values + row * columns;
          for (int64_t i = 0; i < columns; ++i) out[i] = static_cast<T>(buffer[static_cast<size_t>(i)]);
        }
      });
    };
    switch (dtype) {
      case at::kFloat:
        fill(result.mutable_data_ptr<float>());
        break;
      case at::kDouble:
        fill(result.mutable_data_ptr<double>());
        break;
      case at::kBFloat16:
        fill(result.mutable_data_ptr<at::BFloat16>());
        break;
      case at::kHalf:
        fill(result.mutable_data_ptr<at::Half>());
        break;
      default:
        COTUNE_CHECK(false, "{} is no dtype of weights", c10::toString(dtype));
    }
    return result;
  }

 private:
  const ModelTensor& find(const std::string& name) const {
    const auto found = tensors_.find(name);
    COTUNE_CHECK(found != tensors_.end(), "no tensor {}", name);
    return found->second;
  }

  const GgufTensor& stored(const ModelTensor& tensor) const { return *file_->find(tensor.gguf_name); }

  /// GGUF aligns tensors to at least the file's alignment, which may be 1; an unaligned one is dequantised
  /// instead.
  at::Tensor view(const GgufTensor& blocks, at::ScalarType dtype) const {
    void* data = const_cast<std::byte*>(blocks.bytes.data());
    if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) != 0) {
      const at::Tensor copy = at::empty(blocks.shape, at::TensorOptions(dtype));
      std::memcpy(copy.mutable_data_ptr(), data, blocks.bytes.size());
      return copy;
    }
    return at::from_blob(
        data, blocks.shape, [file = file_](void*) mutable { file.reset(); }, at::TensorOptions(dtype));
  }

  std::shared_ptr<const GgufFile> file_;
  int64_t head_dim_;
  std::map<std::string, ModelTensor, std::less<>> tensors_;
};

void check(const GgufFile& file, const ModelConfig& config) {
  Diagnostics mistakes;
  const std::string path = file.path().string();
  std::set<std::string, std::less<>> expected = {"rope_freqs.weight"};
  for (const ModelTensor& wanted : model_tensors(config)) {
    expected.insert(wanted.gguf_name);
    const GgufTensor* found = file.find(wanted.gguf_name);
    if (found == nullptr) {
      mistakes.add(path, 0, wanted.gguf_name, "missing");
      continue;
    }
    if (found->shape != wanted.shape) {
      mistakes.add(path, 0, wanted.gguf_name,
                   fmt::format("has shape [{}]; the metadata say [{}]", fmt::join(found->shape, ", "),
                               fmt::join(wanted.shape, ", ")));
    }
    if (!can_dequantize(found->type)) {
      mistakes.add(
          path, 0, wanted.gguf_name,
          fmt::format("has type {}; accepted: {}", gguf_type_name(found->type), dequantizable_types()));
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (!expected.contains(name))
      mistakes.add(path, 0, name, fmt::format("not a tensor of this {} model", config.family));
  }
  mistakes.throw_if_any();
}

}  // namespace

int64_t gguf_row(GgufRows rows, int64_t row, int64_t head_dim) {
  if (rows == GgufRows::same) return row;
  const int64_t head = row / head_dim, within = row % head_dim, half = head_dim / 2;
  return head * head_dim + 2 * (within % half) + within / half;
}

at::Tensor in_gguf_rows(const at::Tensor& canonical, GgufRows rows, int64_t head_dim) {
  if (rows == GgufRows::same) return canonical;
  at::Tensor result = at::empty_like(canonical);
  for (int64_t row = 0; row < canonical.size(0); ++row) result[gguf_row(rows, row, head_dim)].copy_(canonical[row]);
  return result;
}

std::shared_ptr<const WeightSource> open_gguf_weights(std::shared_ptr<const GgufFile> file,
                                                      const ModelConfig& config) {
  check(*file, config);
  return std::make_shared<GgufWeights>(std::move(file), config);
}

}  // namespace cotune
