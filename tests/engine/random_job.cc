#include "engine/random_job.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "jobs/target_modules.h"
#include "model/weights/model_files.h"
#include "schedule/verify_step_plan.h"

namespace cotune::testing {

ModelConfig kernel_friendly_config(int64_t layer_count) {
  return {.family = "qwen2",
          .layer_count = layer_count,
          .hidden_size = 96,
          .intermediate_size = 160,
          .head_count = 3,
          .kv_head_count = 1,
          .head_dim = 32,
          .vocabulary_size = 256,
          .context_length = 1024,
          .tied_embeddings = true,
          .qkv_bias = true};
}

std::shared_ptr<Backbone> random_backbone(const ModelConfig& config, at::ScalarType compute, at::Device device) {
  return Backbone::load(random_model(config, 5), compute, device);
}

std::unique_ptr<Adapter> RandomJob::make_adapter(const ModelConfig& config, at::ScalarType compute,
                                                 at::Device device, std::vector<LayerRange> held) const {
  JobSpec spec;
  spec.name = name;
  spec.adapter = adapter;
  AdapterSetup setup;
  setup.spec = adapter;
  setup.modules = resolve_target_modules(spec, config.layer_count);
  setup.seed = seed;
  setup.optimizer = optimizer.kind;
  setup.momentum = optimizer.momentum;
  setup.compute = compute;
  setup.device = device;
  setup.held = std::move(held);
  return cotune::make_adapter(config, std::move(setup));
}

Batch RandomJob::batch(int64_t step, int64_t vocabulary) const {
  Batch batch{step, {}};
  const auto count = static_cast<int64_t>(row_lengths.size());
  for (int64_t row = 0; row < count; ++row) {
    const int64_t longest = row_lengths[static_cast<size_t>((row + step) % count)];
    const uint64_t key = mix_key(mix_key(mix64(seed), static_cast<uint64_t>(step)), static_cast<uint64_t>(row));
    const int64_t length = std::max<int64_t>(1, longest - static_cast<int64_t>(uniform_below(key, 0, 1 + static_cast<uint64_t>(step) * 3)));
    BatchRow line;
    line.key = key;
    for (int64_t i = 0; i < length; ++i) {
      line.tokens.push_back(static_cast<int32_t>(uniform_below(key, static_cast<uint64_t>(2 * i + 1), static_cast<uint64_t>(vocabulary))));
      line.learned.push_back(uniform(key, static_cast<uint64_t>(2 * i + 2)) < 0.7);
    }
    batch.rows.push_back(std::move(line));
  }
  return batch;
}

uint64_t RandomJob::dropout_key(int64_t step) const { return mix_key(mix64(seed), static_cast<uint64_t>(step)); }

RandomJob lora_job(const std::string& name, uint64_t seed, int64_t r, double dropout,
                   std::vector<std::string> target_modules, std::vector<int64_t> row_lengths) {
  RandomJob job{.name = name, .adapter = {}, .seed = seed, .row_lengths = std::move(row_lengths)};
  job.adapter.target_modules = std::move(target_modules);
  job.adapter.r = r;
  job.adapter.alpha = 2.0 * static_cast<double>(r);
  job.adapter.dropout = dropout;
  return job;
}

RandomJob bottleneck_job(const std::string& name, uint64_t seed, int64_t size, Activation activation,
                         std::vector<int64_t> row_lengths) {
  RandomJob job{.name = name, .adapter = {}, .seed = seed, .row_lengths = std::move(row_lengths)};
  job.adapter.method = AdapterMethod::bottleneck;
  job.adapter.bottleneck_size = size;
  job.adapter.activation = activation;
  return job;
}

RandomJob diff_pruning_job(const std::string& name, uint64_t seed, double density, std::vector<int64_t> row_lengths) {
  RandomJob job{.name = name, .adapter = {}, .seed = seed, .row_lengths = std::move(row_lengths)};
  job.adapter.method = AdapterMethod::diff_pruning;
  job.adapter.density = density;
  job.adapter.selection_batches = 2;
  return job;
}

std::vector<RandomJob> one_job_of_every_kind() {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 4, 0.2, {"all-linear"}, {9, 4}),
                              bottleneck_job("bottleneck", 2, 5, Activation::relu, {9, 4}),
                              diff_pruning_job("diff", 3, 0.02, {9, 4})};
  for (const char* target : {"k_proj", "o_proj", "up_proj", "down_proj"}) {
    jobs.push_back(lora_job(target, 4, 3, 0.0, {target}, {6}));
    jobs.push_back(lora_job(std::string("upper ") + target, 4, 3, 0.1, {target}, {6}));
    jobs.back().adapter.layers_to_transform = {1};
    jobs.push_back(diff_pruning_job(std::string("diff ") + target, 5, 0.02, {6}));
    jobs.back().adapter.target_modules = {target};
  }
  jobs.push_back(bottleneck_job("upper bottleneck", 2, 5, Activation::relu, {9, 4}));
  jobs.back().adapter.layers_to_transform = {1};
  return jobs;
}

JobLife::JobLife(int32_t id, const RandomJob& job, const Backbone& backbone)
    : id_(id), job_(job), adapter_(job.make_adapter(backbone.config(), backbone.compute(), backbone.device())),
      vocabulary_(backbone.config().vocabulary_size), selection_passes_(adapter_->selection_passes()) {}

JobRound JobLife::next_round() {
  const bool selecting = selection_pass_ < selection_passes_;
  const int64_t step = selecting ? selection_batch_ : step_;
  if (selecting && selection_batch_ == 0) adapter_->begin_selection(selection_pass_);
  batch_ = job_.batch(step, vocabulary_);
  JobRound round;
  round.job = id_;
  round.adapter = adapter_.get();
  round.batch = &batch_;
  round.purpose = selecting ? RoundPurpose::select : RoundPurpose::train;
  round.selection_pass = selecting ? selection_pass_ : 0;
  round.dropout_key = job_.dropout_key(step);
  round.optimizer = job_.optimizer;
  round.optimizer.step = step + 1;
  return round;
}

void JobLife::finish_round(const JobRound& round) {
  if (round.purpose == RoundPurpose::select) {
    if (++selection_batch_ < job_.adapter.selection_batches) return;
    selection_batch_ = 0;
    adapter_->end_selection(selection_pass_++);
    return;
  }
  losses_.push_back(round.loss());
  failure_ = round.failure;
  finished_ = !failure_.empty() || ++step_ == job_.steps;
}

std::vector<JobRound> run_round(Interpreter& interpreter, const std::vector<JobRound>& rounds, PackingPolicy policy,
                                int64_t segment_tokens) {
  policy.layer_count = interpreter.stage().backbone().config().layer_count;
  std::vector<BatchShape> shapes;
  for (const JobRound& round : rounds) {
    shapes.push_back(round.batch->shape(round.job, round.adapter ? round.adapter->lowest_layer() : 0));
  }
  const StepPlan plan = segment_tokens > 0 ? plan_step_with_segments(shapes, policy, segment_tokens)
                                           : plan_step(shapes, policy);
  verify(plan, policy.layer_count);
  std::vector<JobRound> results = rounds;
  interpreter.run(plan, results);
  return results;
}

void run_lives(Interpreter& interpreter, const std::vector<JobLife*>& lives, const PackingPolicy& policy,
               const std::vector<int64_t>& arrivals) {
  for (int64_t round_index = 0;; ++round_index) {
    std::vector<JobLife*> present;
    std::vector<JobRound> rounds;
    bool awaited = false;
    for (size_t i = 0; i < lives.size(); ++i) {
      if (lives[i]->done()) continue;
      if (i < arrivals.size() && arrivals[i] > round_index) {
        awaited = true;
        continue;
      }
      present.push_back(lives[i]);
      rounds.push_back(lives[i]->next_round());
    }
    if (present.empty() && !awaited) return;
    if (present.empty()) continue;
    const std::vector<JobRound> results = run_round(interpreter, rounds, policy);
    for (size_t i = 0; i < present.size(); ++i) present[i]->finish_round(results[i]);
  }
}

std::vector<at::Tensor> values_of(const Adapter& adapter) {
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : adapter.parameters()) values.push_back(parameter.value.clone());
  for (const Adapter::NamedTensor& item : adapter.structure()) values.push_back(item.tensor.clone());
  return values;
}

std::string difference_in_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return fmt::format("{} tensors and {}", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return fmt::format("the shapes of tensor {}", i);
    if (!at::equal(a[i], b[i])) {
      const at::Tensor apart = a[i].ne(b[i]);
      return fmt::format("tensor {} in {} of {} values, by at most {:.3g}", i, apart.sum().item<int64_t>(),
                         a[i].numel(), (a[i] - b[i]).abs().max().item<double>());
    }
  }
  return "";
}

GradientRun gradients_of(Interpreter& interpreter, const std::vector<const RandomJob*>& jobs,
                         const std::vector<Adapter*>& adapters, const PackingPolicy& policy, int64_t segment_tokens,
                         int64_t step) {
  std::vector<Batch> batches;
  for (const RandomJob* job : jobs) {
    batches.push_back(job->batch(step, interpreter.stage().backbone().config().vocabulary_size));
  }
  std::vector<JobRound> rounds;
  for (size_t i = 0; i < jobs.size(); ++i) {
    JobRound round;
    round.job = static_cast<int32_t>(i);
    round.adapter = adapters[i];
    round.batch = &batches[i];
    round.purpose = RoundPurpose::select;  // forward and backward, and no step
    round.dropout_key = jobs[i]->dropout_key(step);
    rounds.push_back(round);
  }
  GradientRun run;
  for (const JobRound& round : run_round(interpreter, rounds, policy, segment_tokens)) {
    run.losses.push_back(round.loss());
    run.gradients.emplace_back();
    for (Parameter& parameter : round.adapter->parameters()) {
      run.gradients.back().push_back(parameter.gradient.clone());
      parameter.gradient.zero_();
    }
  }
  return run;
}

void randomise(Adapter& adapter, uint64_t key, double scale) {
  for (size_t index = 0; index < adapter.parameters().size(); ++index) {
    at::Tensor& value = adapter.parameters()[index].value;
    at::Tensor drawn = at::empty(value.sizes(), at::kDouble);
    double* values = drawn.mutable_data_ptr<double>();
    const uint64_t own = mix_key(key, index);
    for (int64_t i = 0; i < drawn.numel(); ++i) values[i] = scale * (2 * uniform(own, static_cast<uint64_t>(i)) - 1);
    value.copy_(drawn);
  }
  adapter.refresh();
}

void select_alone(Interpreter& interpreter, const RandomJob& job, Adapter& adapter) {
  const int64_t passes = adapter.selection_passes();
  for (int64_t pass = 0; pass < passes; ++pass) {
    adapter.begin_selection(pass);
    for (int64_t batch = 0; batch < job.adapter.selection_batches; ++batch) {
      gradients_of(interpreter, {&job}, {&adapter}, {}, 0, batch);
    }
    adapter.end_selection(pass);
  }
}

double largest_relative_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double size = b[i].abs().max().item<double>();
    const double apart = (a[i] - b[i]).abs().max().item<double>();
    if (apart == 0) continue;
    const double relative = size > 0 ? apart / size : INFINITY;
    if (!(relative <= worst)) worst = relative;  // what is not a number stays, and fails every comparison
    if (std::isnan(worst)) break;
  }
  return worst;
}

}  // namespace cotune::testing
