/// The committed runs of HF PEFT (tests/engine/data/peft, made by scripts/reference/peft_reference.py) as jobs that the
/// engine can train.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "engine/backbone.h"
#include "engine/interpreter.h"
#include "jobs/job.h"

namespace cotune::testing {

std::filesystem::path tiny_model_folder(const std::string& family);
/// The families whose tiny models are committed.
inline const std::vector<std::string> tiny_families{"llama2", "llama3", "mistral", "qwen2", "smollm2"};
/// positions: above 0, in place of the model's own context.
std::shared_ptr<Backbone> tiny_backbone(const std::string& family, at::ScalarType compute, int64_t positions = 0);

/// One job of the reference data.
struct ReferenceJob {
  std::filesystem::path folder;
  std::string name;
  JobSpec spec;
  std::vector<BatchRow> rows;
  struct Step {
    std::vector<int64_t> batch;
    double loss = 0, learning_rate = 0, gradient_norm = 0;
  };
  std::vector<Step> steps;

  Batch batch_of(int64_t step) const;
  /// With the reference's initial values.
  std::unique_ptr<Adapter> make_adapter(const ModelConfig& config, at::ScalarType compute) const;
  OptimizerSettings optimizer_of(int64_t step) const;
};

/// Every job of a family, in the order of their names.
std::vector<ReferenceJob> reference_jobs(const std::string& family);

/// One training round of some jobs, planned and interpreted.
struct TrainedRound {
  std::vector<JobRound> rounds;
  StepPlan plan;
};
TrainedRound train_round(Interpreter& interpreter, const std::vector<const ReferenceJob*>& jobs,
                         const std::vector<Adapter*>& adapters, int64_t step, PackingPolicy policy);

/// max |ours − reference| of logits, of a parameter's values or of its gradients.
double largest_difference(const at::Tensor& ours, const at::Tensor& reference);
/// The same over max |reference|.
double relative_difference(const at::Tensor& ours, const at::Tensor& reference);
/// A tensor of a safetensors file, f64.
at::Tensor read_tensor(const std::filesystem::path& file, const std::string& name);

}  // namespace cotune::testing
