// An adapter merged into the weights gives the logits of the adapter beside them (ML-1).

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "adapter/weight_changes.h"
#include "engine/model_logits.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "support/on_device.h"

namespace cotune::testing {
namespace {

/// The weights of a model with an adapter's changes, formed in f64, rounded once.
class MergedWeights : public WeightSource {
 public:
  MergedWeights(std::shared_ptr<const WeightSource> base, const Adapter& adapter) : base_(std::move(base)), changes_(adapter) {}
  at::Tensor load(const std::string& name, at::ScalarType dtype) const override {
    if (!changes_.changes(name)) return base_->load(name, dtype);
    const at::Tensor weight = base_->load(name, at::kDouble);
    const int64_t half = weight.size(0) / 2;
    const at::Tensor change = at::cat({changes_.rows(name, 0, half), changes_.rows(name, half, weight.size(0) - half)});
    return (weight + change).to(dtype).contiguous();
  }
  at::ScalarType stored_dtype(const std::string& name) const override { return base_->stored_dtype(name); }
  std::string content_hash() const override { return "merged into " + base_->content_hash(); }
  void drop_pages() const override { base_->drop_pages(); }

 private:
  std::shared_ptr<const WeightSource> base_;
  WeightChanges changes_;
};

TEST(MergedWeights, GiveTheLogitsOfTheAdapterBesideThem) {
  RandomJob scaled = lora_job("lora", 1, 5, 0.5, {"all-linear"}, {20, 1, 9});
  scaled.adapter.use_rslora = true;
  scaled.adapter.rank_pattern = {{"o_proj", 40}};
  for (const std::string& family : tiny_families) {
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
