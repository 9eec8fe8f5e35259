/// Jobs on random data, for tests that compare the engine with itself: one job alone, in company, cut in other ways.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "engine/backbone.h"
#include "engine/interpreter.h"
#include "jobs/job.h"
#include "support/test_device.h"

namespace cotune::testing {

/// A model whose sizes all suit our kernels: hidden 96, 3 query and 1 kv head of 32, intermediate 160, vocabulary 256,
/// 1,024 positions, biases on q, k and v. Weights from random_model.
ModelConfig kernel_friendly_config(int64_t layer_count = 2);
std::shared_ptr<Backbone> random_backbone(const ModelConfig& config, at::ScalarType compute,
                                          at::Device device = test_device());

/// What a job is; its data and initial values follow from the seed.
struct RandomJob {
  std::string name;
  AdapterSpec adapter;
  OptimizerSettings optimizer{.kind = OptimizerKind::adamw, .learning_rate = 2e-3};
  uint64_t seed = 1;
  std::vector<int64_t> row_lengths;  ///< of the first batch; later batches have them rotated and shortened
  int64_t steps = 2;

  /// held: AdapterSetup::held.
  std::unique_ptr<Adapter> make_adapter(const ModelConfig& config, at::ScalarType compute,
                                        at::Device device = test_device(), std::vector<LayerRange> held = {}) const;
  Batch batch(int64_t step, int64_t vocabulary) const;
  uint64_t dropout_key(int64_t step) const;
};

RandomJob lora_job(const std::string& name, uint64_t seed, int64_t r, double dropout,
                   std::vector<std::string> target_modules, std::vector<int64_t> row_lengths);
RandomJob bottleneck_job(const std::string& name, uint64_t seed, int64_t size, Activation activation,
                         std::vector<int64_t> row_lengths);
RandomJob diff_pruning_job(const std::string& name, uint64_t seed, double density, std::vector<int64_t> row_lengths);
/// Every method on all its modules, on those of one operator alone, and in the upper layer alone.
std::vector<RandomJob> one_job_of_every_kind();

/// A job on its way from selection over its steps to the end.
class JobLife {
 public:
  JobLife(int32_t id, const RandomJob& job, const Backbone& backbone);

  bool done() const { return finished_; }
  Adapter& adapter() { return *adapter_; }
  JobRound next_round();
  /// Takes what the round wrote; a job that failed is done.
  void finish_round(const JobRound& round);
  const std::string& failure() const { return failure_; }
  const std::vector<double>& losses() const { return losses_; }

 private:
  int32_t id_;
  RandomJob job_;
  std::unique_ptr<Adapter> adapter_;
  int64_t vocabulary_;
  Batch batch_;
  int64_t selection_passes_ = 0, selection_pass_ = 0, selection_batch_ = 0, step_ = 0;
  bool finished_ = false;
  std::string failure_;
  std::vector<double> losses_;
};

/// One round of these jobs. segment_tokens 0: plan_step; else plan_step_with_segments.
std::vector<JobRound> run_round(Interpreter& interpreter, const std::vector<JobRound>& rounds, PackingPolicy policy,
                                int64_t segment_tokens = 0);

/// Runs jobs to their ends; job i joins in round arrivals[i] (0 where the list is shorter).
void run_lives(Interpreter& interpreter, const std::vector<JobLife*>& lives, const PackingPolicy& policy,
               const std::vector<int64_t>& arrivals = {});

/// Copies of every parameter's value, and of diff pruning's kept entries.
std::vector<at::Tensor> values_of(const Adapter& adapter);
/// "" where all tensors are equal to the bit; else what differs.
std::string difference_in_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// Gradients of each job, after forward and backward of one batch without a step; zeroed again in the adapters.
struct GradientRun {
  std::vector<double> losses;
  std::vector<std::vector<at::Tensor>> gradients;  ///< per job, in the order of its parameters
};
/// Jobs whose adapters are ready (selected); ids follow the order.
GradientRun gradients_of(Interpreter& interpreter, const std::vector<const RandomJob*>& jobs,
                         const std::vector<Adapter*>& adapters, const PackingPolicy& policy, int64_t segment_tokens = 0,
                         int64_t step = 0);
/// Values as after long training: every parameter uniform in ±scale, from the key; refreshed.
void randomise(Adapter& adapter, uint64_t key, double scale);
/// Runs the selection of an adapter that needs one, alone.
void select_alone(Interpreter& interpreter, const RandomJob& job, Adapter& adapter);
/// max over tensors of max |a − b| / max |b|, where b is not all zero.
double largest_relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace cotune::testing
