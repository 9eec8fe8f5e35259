#include "engine/reference_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "jobs/target_modules.h"
#include "model/weights/data_type_conversion.h"
#include "model/weights/model_files.h"
#include "schedule/step_plan.h"
#include "support/source_folder.h"
#include "support/test_device.h"

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;

template <typename T>
void take(const nlohmann::json& json, const char* name, T& target) {
  if (json.contains(name)) target = json.at(name).get<T>();
}

template <typename T>
void take_pattern(const nlohmann::json& json, const char* name, ModulePattern<T>& target) {
  if (!json.contains(name)) return;
  for (const auto& [key, value] : json.at(name).items()) target.emplace_back(key, value.template get<T>());
}

JobSpec spec_of(const nlohmann::json& json) {
  JobSpec spec;
  const nlohmann::json& adapter = json.at("adapter");
  take(adapter, "r", spec.adapter.r);
  take(adapter, "alpha", spec.adapter.alpha);
  take(adapter, "use_rslora", spec.adapter.use_rslora);
  take(adapter, "lora_plus_ratio", spec.adapter.lora_plus_ratio);
  take(adapter, "layers_to_transform", spec.adapter.layers_to_transform);
  take_pattern(adapter, "rank_pattern", spec.adapter.rank_pattern);
  take_pattern(adapter, "alpha_pattern", spec.adapter.alpha_pattern);
  if (adapter.at("target_modules").is_string()) {
    spec.adapter.target_modules = {adapter.at("target_modules").get<std::string>()};
  } else {
    take(adapter, "target_modules", spec.adapter.target_modules);
  }
  const nlohmann::json& train = json.at("train");
  take(train, "weight_decay", spec.train.weight_decay);
  take(train, "max_grad_norm", spec.train.max_grad_norm);
  take(train, "momentum", spec.train.momentum);
  take(train, "learning_rate", spec.train.learning_rate);
  if (train.contains("betas")) {
    spec.train.beta1 = train["betas"][0];
    spec.train.beta2 = train["betas"][1];
  }
  take(train, "beta1", spec.train.beta1);
  take(train, "beta2", spec.train.beta2);
  take(train, "epsilon", spec.train.epsilon);
  if (train.value("optimizer", "adamw") == "sgd") spec.train.optimizer = OptimizerKind::sgd;
  return spec;
}

}  // namespace

fs::path tiny_model_folder(const std::string& family) {
  return source_folder() / "tests/model_weights/data" / family;
}

std::shared_ptr<Backbone> tiny_backbone(const std::string& family, at::ScalarType compute, int64_t positions) {
  ModelFiles files = open_model(tiny_model_folder(family));
  if (positions > 0) files.config.context_length = positions;
  return Backbone::load(files, compute, test_device());
}

std::vector<ReferenceJob> reference_jobs(const std::string& family) {
  std::vector<ReferenceJob> jobs;
  for (const auto& entry : fs::directory_iterator(source_folder() / "tests/engine/data/peft" / family)) {
    ReferenceJob job;
    job.folder = entry.path();
    job.name = entry.path().filename();
    const nlohmann::json json = nlohmann::json::parse(read_file(job.folder / "job.json"));
    job.spec = spec_of(json);
    for (const nlohmann::json& row : json.at("rows")) {
      BatchRow batch_row;
      batch_row.tokens = row.at("input_ids").get<std::vector<int32_t>>();
      for (const int64_t label : row.at("labels").get<std::vector<int64_t>>()) {
        batch_row.learned.push_back(label != -100);
      }
      job.rows.push_back(std::move(batch_row));
    }
    for (const nlohmann::json& step : json.at("steps")) {
      job.steps.push_back({step.at("batch").get<std::vector<int64_t>>(), step.at("loss").get<double>(),
                           step.at("learning_rate").get<double>(), step.at("gradient_norm").get<double>()});
    }
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return jobs;
}

Batch ReferenceJob::batch_of(int64_t step) const {
  Batch batch{step, {}};
  for (const int64_t row : steps[static_cast<size_t>(step)].batch) {
    batch.rows.push_back(rows[static_cast<size_t>(row)]);
    batch.rows.back().key = static_cast<uint64_t>(row);
  }
  return batch;
}

std::unique_ptr<Adapter> ReferenceJob::make_adapter(const ModelConfig& config, at::ScalarType compute) const {
  AdapterSetup setup;
  setup.spec = spec.adapter;
  setup.modules = resolve_target_modules(spec, config.layer_count);
  setup.optimizer = spec.train.optimizer;
  setup.momentum = spec.train.momentum;
  setup.compute = compute;
  setup.device = test_device();
  auto adapter = cotune::make_adapter(config, setup);
  load_adapter(*adapter, folder);
  return adapter;
}

OptimizerSettings ReferenceJob::optimizer_of(int64_t step) const {
  const TrainSpec& train = spec.train;
  return {train.optimizer, step + 1, steps[static_cast<size_t>(step)].learning_rate, train.weight_decay,
          train.beta1,     train.beta2, train.epsilon, train.momentum, train.max_grad_norm};
}

TrainedRound train_round(Interpreter& interpreter, const std::vector<const ReferenceJob*>& jobs,
                         const std::vector<Adapter*>& adapters, int64_t step, PackingPolicy policy) {
  policy.layer_count = interpreter.stage().backbone().config().layer_count;
  std::vector<Batch> batches;
  for (const ReferenceJob* job : jobs) batches.push_back(job->batch_of(step));
  TrainedRound result;
  std::vector<BatchShape> shapes;
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobRound round;
    round.job = static_cast<int32_t>(i);
    round.adapter = adapters[i];
    round.batch = &batches[i];
    round.optimizer = jobs[i]->optimizer_of(step);
    result.rounds.push_back(round);
    shapes.push_back(batches[i].shape(round.job, adapters[i]->lowest_layer()));
  }
  result.plan = plan_step(shapes, policy);
  interpreter.run(result.plan, result.rounds);
  for (JobRound& round : result.rounds) round.batch = nullptr;
  return result;
}

double largest_difference(const at::Tensor& ours, const at::Tensor& reference) {
  return (ours.to(at::kCPU, at::kDouble) - reference.to(at::kDouble)).abs().max().item<double>();
}

double relative_difference(const at::Tensor& ours, const at::Tensor& reference) {
  return largest_difference(ours, reference) / std::max(1e-300, reference.abs().max().item<double>());
}

at::Tensor read_tensor(const fs::path& path, const std::string& name) {
  const SafetensorsFile file(path);
  const TensorView& view = file.at(name);
  at::Tensor tensor = at::empty(view.shape, at::TensorOptions().dtype(scalar_type_of(view.dtype)));
  std::copy(view.bytes.begin(), view.bytes.end(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
  return tensor.to(at::kDouble);
}

}  // namespace cotune::testing
