#include <ATen/ops/empty.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "model/config/families.h"
#include "model/weights/model_files.h"
#include "model/weights/row_threads.h"

namespace cotune {
namespace {

class RandomWeights final : public WeightSource {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed) : seed_(seed) {
    for (const ModelTensor& tensor : model_tensors(config)) shapes_[tensor.name] = tensor.shape;
  }

  at::ScalarType stored_dtype(const std::string&) const override { return at::kFloat; }
  std::string content_hash() const override { return "random " + std::to_string(seed_); }
  void drop_pages() const override {}  // nothing is mapped

  at::Tensor load(const std::string& name, at::ScalarType dtype) const override {
    const auto found = shapes_.find(name);
    COTUNE_CHECK(found != shapes_.end(), "no tensor {}", name);
    const std::vector<int64_t>& shape = found->second;
    const bool vector = shape.size() == 1, bias = name.ends_with(".bias");
    const int64_t rows = vector ? 1 : shape[0], columns = shape.back();
    const double center = vector && !bias ? 1 : 0;
    const double range =
        vector ? 0.1 : std::sqrt(3.0 / static_cast<double>(columns));  // uniform ±r has variance r²/3
    const uint64_t key = mix_key(seed_, key_of(name));

    const bool draws_bf16 = dtype == at::kBFloat16;  // the largest models' dtype: without a tensor of f32 in between
    const at::Tensor values = at::empty(shape, at::TensorOptions(draws_bf16 ? dtype : at::kFloat));
    const auto draw = [&]<typename T>(T* data) {
      for_each_row_range(rows, columns, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * columns; i < end * columns; ++i) {
          data[i] = static_cast<T>(static_cast<float>(center + range * (2 * uniform(key, static_cast<uint64_t>(i)) - 1)));
        }
      });
    };
    if (draws_bf16) {
      draw(values.mutable_data_ptr<at::BFloat16>());
    } else {
      draw(values.mutable_data_ptr<float>());
    }
    return values.to(dtype);
  }

 private:
  uint64_t seed_;
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes_;
};

}  // namespace

ModelFiles random_model(const ModelConfig& config, uint64_t seed) {
  require_engine_support(config);
  return {.path = {},
          .config = config,
          .tokenizer = {},
          .weights = std::make_shared<RandomWeights>(config, seed)};
}

}  // namespace cotune
