// An adapter merged into the weights gives the logits of the adapter beside them (ML-1).

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model_logits.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "support/on_device.h"

namespace cotune::testing {
namespace {

/// The weights of a model with an additive adapter's changes: W + scale·(A·B)ᵀ, W + Δᵀ; formed in f64, rounded once.
class MergedWeights : public WeightSource {
 public:
  MergedWeights(std::shared_ptr<const WeightSource> base, const Adapter& adapter) : base_(std::move(base)) {
    const std::vector<Adapter::NamedTensor> structure = adapter.structure();
    size_t site = 0;
    for (const AdaptedModule& module : adapter.setup().modules) {
      const ProjectionShape shape = adapter.projection_shape_of(module.projection);
      at::Tensor& change = changes_[module_name(module.layer, module.projection) + ".weight"];
      if (adapter.method() == AdapterMethod::lora) {
        const at::Tensor a = exact(adapter.parameters()[2 * site].value),
                         b = exact(adapter.parameters()[2 * site + 1].value);
        const auto r = static_cast<double>(module.r);
        change = module.alpha / (adapter.setup().spec.use_rslora ? std::sqrt(r) : r) * at::mm(b.t(), a);
      } else {
        change = at::zeros({shape.out, shape.in}, at::kDouble);
        const at::Tensor rows = on_host(structure[2 * site].tensor), offsets = on_host(structure[2 * site + 1].tensor),
                         values = on_host(adapter.parameters()[site].value);
        for (int64_t column = 0; column < shape.out; ++column) {
          for (int64_t i = offsets[column].item<int64_t>(); i < offsets[column + 1].item<int64_t>(); ++i) {
            change[column][rows[i].item<int64_t>()] = values[i].item<double>();
          }
        }
      }
      ++site;
    }
  }
  at::Tensor load(const std::string& name, at::ScalarType dtype) const override {
    const auto found = changes_.find(name);
    if (found == changes_.end()) return base_->load(name, dtype);
    return (base_->load(name, at::kDouble) + found->second).to(dtype).contiguous();
  }
  at::ScalarType stored_dtype(const std::string& name) const override { return base_->stored_dtype(name); }
  std::string content_hash() const override { return "merged into " + base_->content_hash(); }
  void drop_pages() const override { base_->drop_pages(); }

 private:
  std::shared_ptr<const WeightSource> base_;
  std::map<std::string, at::Tensor> changes_;
};

TEST(MergedWeights, GiveTheLogitsOfTheAdapterBesideThem) {
  RandomJob scaled = lora_job("lora", 1, 5, 0.5, {"all-linear"}, {20, 1, 9});
  scaled.adapter.use_rslora = true;
  scaled.adapter.rank_pattern = {{"o_proj", 40}};
  for (const std::string family : {"llama2", "llama3", "mistral", "qwen2", "smollm2"}) {
    for (const RandomJob& job : {scaled, diff_pruning_job("diff pruning", 2, 0.05, {20, 1, 9})}) {
      for (const auto& [compute, allowed] : std::vector<std::pair<at::ScalarType, double>>{{at::kDouble, 1e-12}, {at::kFloat, 1e-5}}) {
        const auto backbone = tiny_backbone(family, compute);
        Interpreter interpreter(backbone);
        const auto adapter = job.make_adapter(backbone->config(), compute);
        select_alone(interpreter, job, *adapter);
        randomise(*adapter, job.seed, 0.1);
        ModelFiles files = open_model(tiny_model_folder(family));
        files.weights = std::make_shared<MergedWeights>(files.weights, *adapter);
        const std::vector<BatchRow> rows = job.batch(0, backbone->config().vocabulary_size).rows;
        const at::Tensor merged = model_logits(Backbone::load(files, compute, test_device()), nullptr, rows);
        EXPECT_LE(relative_difference(model_logits(backbone, adapter.get(), rows), merged), allowed)
            << family << ", " << job.name << ", " << compute;
        EXPECT_GT(relative_difference(model_logits(backbone, nullptr, rows), merged), 1e-2) << "the adapter changes nothing";
      }
    }
  }
}

}  // namespace
}  // namespace cotune::testing
