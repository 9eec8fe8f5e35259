/// A small run over random data and a random model: jobs of every method, as the trainer takes them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "base/file.h"
#include "base/random.h"
#include "data/example.h"
#include "engine/backbone.h"
#include "formats/safetensors.h"
#include "model/weights/model_files.h"
#include "support/on_device.h"
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

/// The part of the model that each of `count` ranks has which divide its layers.
inline std::vector<std::shared_ptr<const Backbone>> small_parts(int64_t count, at::ScalarType compute = at::kDouble) {
  std::vector<std::shared_ptr<const Backbone>> parts;
  for (int64_t index = 0; index < count; ++index) {
    parts.push_back(Backbone::load(random_model(small_config(), 5), compute, test_device(), {.shard = {index, count}}));
  }
  return parts;
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

/// What runs compute in whose results are compared with those of other company: f32, whose bits are equal on the CPU; on a
/// device, which promises agreement within rounding, f64.
inline at::ScalarType compared_dtype() { return test_device().is_cpu() ? at::kFloat : at::kDouble; }

/// A run on the device under test.
class SmallRun {
 public:
  explicit SmallRun(const std::string& name, at::ScalarType compute = at::kFloat)
      : folder(std::filesystem::temp_directory_path() / ("cotune-" + name + "-" + std::to_string(::getpid()))),
        compute_(compute) {
    std::filesystem::remove_all(folder);
    backbone = Backbone::load(random_model(small_config(), 5), compute, test_device());
  }
  ~SmallRun() { std::filesystem::remove_all(folder); }

  /// Jobs of the specs, each with its own data; `resume` takes up their checkpoints.
  std::unique_ptr<Trainer> trainer(const std::vector<JobSpec>& specs, TrainerOptions options, bool resume = false) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    for (size_t i = 0; i < specs.size(); ++i) jobs.push_back(job(i, specs[i], resume));
    options.device = test_compute_device();
    return std::make_unique<Trainer>(backbone, std::move(jobs), std::move(options));
  }

  std::unique_ptr<TrainingJob> job(size_t index, const JobSpec& spec, bool resume = false) const {
    JobData data;
    data.train = small_data(key_of(spec.name), 20, spec.name == "long" ? 600 : 40);
    data.eval = small_data(key_of(spec.name) + 1, 5, 30);
    if (change_data) change_data(spec, data);
    auto made = std::make_unique<TrainingJob>(static_cast<int32_t>(index), spec, std::move(data), small_config(), compute_,
                                              test_device(), "small", folder / "jobs" / spec.name);
    if (resume) made->resume();
    return made;
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

/// The values of an adapter's bytes, under f64, by name; no kept entries.
inline std::map<std::string, at::Tensor> values_in(const std::string& bytes) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, view] : parse_safetensors(std::as_bytes(std::span(bytes)), "adapter").tensors) {
    if (view.dtype != DataType::f64) continue;
    values[name] = at::empty({static_cast<int64_t>(view.bytes.size() / sizeof(double))}, at::kDouble);
    std::memcpy(values[name].mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  }
  return values;
}

/// Two adapters of f64 runs: to 1e-10 of each tensor's largest value.
inline void expect_close_adapter(const std::string& ours, const std::string& other, const std::string& job) {
  const auto left = values_in(ours), right = values_in(other);
  ASSERT_EQ(left.size(), right.size()) << job;
  ASSERT_FALSE(left.empty()) << job;
  for (const auto& [name, value] : left) {
    ASSERT_EQ(value.sizes(), right.at(name).sizes()) << job << " " << name;
    const double apart = (value - right.at(name)).abs().max().item<double>();
    EXPECT_LE(apart, 1e-10 * value.abs().max().item<double>()) << job << " " << name;
  }
}

/// Adapters of runs in compared_dtype(): equal on the CPU to the bit.
inline void expect_same_adapter(const std::string& ours, const std::string& other, const std::string& what = "") {
  if (test_device().is_cpu()) {
    EXPECT_EQ(ours, other) << what;
  } else {
    expect_close_adapter(ours, other, what);
  }
}
inline void expect_same_adapters(const std::vector<std::string>& ours, const std::vector<std::string>& others,
                                 const std::string& what = "") {
  ASSERT_EQ(ours.size(), others.size());
  for (size_t i = 0; i < ours.size(); ++i) expect_same_adapter(ours[i], others[i], fmt::format("{}, adapter {}", what, i));
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
