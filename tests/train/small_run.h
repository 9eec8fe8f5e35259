/// A small run over random data and a random model: jobs of every method, as the trainer takes them.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

#include "base/file.h"
#include "base/random.h"
#include "data/example.h"
#include "engine/backbone.h"
#include "model/weights/model_files.h"
#include "train/trainer.h"

namespace cotune::testing {

inline ModelConfig small_config() {
  ModelConfig config;
  config.family = "llama";
  config.layer_count = 2;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.head_count = 2;
  config.kv_head_count = 1;
  config.head_dim = 32;
  config.vocabulary_size = 160;
  config.context_length = 1024;
  config.tied_embeddings = true;
  return config;
}

/// Rows of random lengths over a few tokens, so that there is something to learn.
inline Dataset small_data(uint64_t key, int64_t rows, int64_t longest) {
  Dataset dataset("random");
  for (int64_t row = 0; row < rows; ++row) {
    Example example;
    const auto length = 4 + static_cast<int64_t>(uniform_below(key, static_cast<uint64_t>(row), static_cast<uint64_t>(longest - 3)));
    for (int64_t i = 0; i < length; ++i) {
      const uint64_t drawn = uniform_below(mix_key(key, static_cast<uint64_t>(row)), static_cast<uint64_t>(i), 12);
      example.tokens.push_back(static_cast<int32_t>(drawn + 3));
      example.learned.push_back(i > 1);
    }
    example.line = static_cast<int>(row + 1);
    dataset.add(example);
  }
  return dataset;
}

inline JobSpec small_job(const std::string& name, AdapterMethod method, uint64_t seed, int64_t steps) {
  JobSpec spec;
  spec.name = name;
  spec.adapter.method = method;
  if (method != AdapterMethod::bottleneck) spec.adapter.target_modules = {"all-linear"};
  spec.adapter.r = 4;
  spec.adapter.bottleneck_size = 8;
  spec.adapter.density = 0.02;
  spec.adapter.selection_batches = 2;
  spec.train.batch_size = 3;
  spec.train.steps = steps;
  spec.train.learning_rate = 3e-3;
  spec.train.seed = seed;
  return spec;
}

class SmallRun {
 public:
  explicit SmallRun(const std::string& name, at::ScalarType compute = at::kFloat)
      : folder(std::filesystem::temp_directory_path() / ("cotune-" + name + "-" + std::to_string(::getpid()))),
        compute_(compute) {
    std::filesystem::remove_all(folder);
    backbone = Backbone::load(random_model(small_config(), 5), compute, at::kCPU);
  }
  ~SmallRun() { std::filesystem::remove_all(folder); }

  /// Jobs of the specs, each with its own data; `resume` takes up their checkpoints.
  std::unique_ptr<Trainer> trainer(const std::vector<JobSpec>& specs, TrainerOptions options, bool resume = false) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    for (size_t i = 0; i < specs.size(); ++i) {
      JobData data;
      data.train = small_data(key_of(specs[i].name), 20, specs[i].name == "long" ? 600 : 40);
      data.eval = small_data(key_of(specs[i].name) + 1, 5, 30);
      if (change_data) change_data(specs[i], data);
      jobs.push_back(std::make_unique<TrainingJob>(static_cast<int32_t>(i), specs[i], std::move(data), small_config(),
                                                   compute_, at::kCPU, "small", folder / "jobs" / specs[i].name));
      if (resume) jobs.back()->resume();
    }
    return std::make_unique<Trainer>(backbone, std::move(jobs), std::move(options));
  }

  std::filesystem::path folder;
  std::shared_ptr<const Backbone> backbone;
  std::function<void(const JobSpec&, JobData&)> change_data;

 private:
  at::ScalarType compute_;
};

/// The bytes of a finished job's adapter.
inline std::string adapter_bytes(const SmallRun& run, const std::string& job) {
  return read_file(run.folder / "jobs" / job / "adapter" / "adapter_model.safetensors");
}

/// Jobs of every method, with dropout, shuffling, clipping, a schedule and rows longer than an atom.
inline std::vector<JobSpec> mixed_jobs(int64_t steps) {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, steps),
                             small_job("bottleneck", AdapterMethod::bottleneck, 2, steps),
                             small_job("sparse", AdapterMethod::diff_pruning, 3, steps),
                             small_job("long", AdapterMethod::lora, 4, steps)};
  specs[0].adapter.dropout = 0.2;
  specs[3].adapter.use_rslora = true;
  specs[3].train.schedule = ScheduleKind::cosine;
  specs[3].train.warmup_steps = 2;
  specs[3].train.max_grad_norm = 0.5;
  return specs;
}

/// The adapters of finished jobs.
inline std::vector<std::string> finished_adapters(const SmallRun& run, const std::vector<JobSpec>& specs) {
  std::vector<std::string> bytes;
  for (const JobSpec& spec : specs) bytes.push_back(adapter_bytes(run, spec.name));
  return bytes;
}

/// Calls a function at every step, and another after every checkpoint.
class AtStep : public RunObserver {
 public:
  explicit AtStep(std::function<void(const StepEvent&)> call,
                  std::function<void(const TrainingJob&)> saved = [](const TrainingJob&) {})
      : call_(std::move(call)), saved_(std::move(saved)) {}
  void on_step(const StepEvent& event) override { call_(event); }
  void on_checkpoint(const TrainingJob& job) override { saved_(job); }

 private:
  std::function<void(const StepEvent&)> call_;
  std::function<void(const TrainingJob&)> saved_;
};

}  // namespace cotune::testing
