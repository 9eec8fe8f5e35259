#include "cli/run/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "engine/memory_facts.h"
#include "jobs/memory_size.h"
#include "jobs/parallel.h"
#include "ops/memory.h"
#include "schedule/adapter_shape.h"
#include "schedule/memory/peak_memory.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/smaller_rounds.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/pipeline/weight_copies.h"
#include "train/accepted_limit.h"
#include "train/divided_memory.h"
#include "train/process_memory.h"

namespace cotune {
namespace {

constexpr double mib = 1024.0 * 1024.0;

/// What a process and the blocks that it holds grow by from a check to when its jobs are admitted, beyond the weights themselves: pages of libraries
/// that are read when a model is loaded, threads, the ends of blocks. 15.3 MiB with two layers and a head of 12 MiB.
constexpr int64_t loading_growth_bytes = int64_t{20} << 20;

/// What the process holds beside its tensors now.
int64_t outside_bytes() { return resident_bytes() - memory_usage().held_bytes; }

/// What the limit will leave for tensors once the model is loaded.
int64_t expected_tensor_limit(int64_t memory_limit_bytes, const ComputeDevice& device) {
  return device.is_cpu() ? tensor_limit_within(memory_limit_bytes, outside_bytes() + loading_growth_bytes) : memory_limit_bytes;
}

/// In how many bf16 parts values of a type can be held exactly.
int exact_parts(at::ScalarType stored) {
  if (stored == at::kBFloat16) return 1;
  return stored == at::kHalf ? 2 : kernels::largest_part_count;
}

/// Predicts what jobs take, each alone and all at once.
class JobsOfRun {
 public:
  JobsOfRun(std::span<const std::unique_ptr<TrainingJob>> jobs, const RunSpec& run, const ModelFiles& model, at::ScalarType compute,
            const ComputeDevice& device, std::span<const PipelineLayout> process_layouts)
      : config_(model.config), policy_(packing_policy(run, model.config)), recompute_(run.recompute), facts_(memory_facts(compute, device.device)) {
    const Parallel parallel = parallel_of(run);
    set_division(facts_, parallel, run.pipeline_order, run.interleave, process_layouts);
    for (const auto& job : jobs) {
      footprints_.push_back(job->footprint());
      indices_.push_back(job->index());
    }
    MemoryFacts weight_facts = memory_facts(compute, device.device, exact_parts(stored_dtype(model)));
    const int64_t positions = positions_of(footprints_);
    facts_.weight_bytes = 0;
    for (size_t replica = 0; replica < process_layouts.size(); ++replica) {
      const PipelineLayout& layout = process_layouts[replica];
      weight_facts.process_stages = shapes_of_ranks(layout);
      weight_facts.tensor_parallel = layout.tensor_parallel();
      weight_facts.weight_copies = static_cast<int64_t>(replicas_with_weights_of(process_layouts, replica).size());
      facts_.weight_bytes = std::max(facts_.weight_bytes, predict_weight_bytes(config_, weight_facts, positions));
    }
    for (const int64_t degree : process_layouts.empty() ? parallel.tensor() : std::vector<int64_t>{}) {  // each has weights of its own
      weight_facts.tensor_parallel = degree;
      facts_.weight_bytes += predict_weight_bytes(config_, weight_facts, positions);
    }
  }

  const std::vector<JobFootprint>& footprints() const { return footprints_; }
  const PackingPolicy& policy() const { return policy_; }
  MemoryEstimate together() const { return predict_memory(config_, footprints_, policy_, facts_); }
  MemoryEstimate alone(size_t job, const PackingPolicy& under) const {
    return predict_memory(config_, std::array{footprints_[job]}, under, facts_);
  }
  /// Why the job can never run where tensors may take no more; always where they may take nothing.
  std::optional<AdmissionRefusal> refusal(size_t job, int64_t tensor_limit_bytes) const {
    return refuse_for_ever(indices_[job], tensor_limit_bytes, policy_, recompute_, [&](const PackingPolicy& under) { return alone(job, under); });
  }

 private:
  const ModelConfig& config_;
  PackingPolicy policy_;
  Recompute recompute_;
  MemoryFacts facts_;
  std::vector<JobFootprint> footprints_;
  std::vector<int32_t> indices_;
};

}  // namespace

int64_t memory_limit(const RunSpec& run, const ComputeDevice& device, int32_t processes) {
  const auto size = parse_memory_size(run.memory);
  COTUNE_CHECK(size.has_value());
  const MemorySize wish = size.value();
  if (device.is_cpu()) return wish.of((available_memory_bytes() + resident_bytes()) / processes);
  const int64_t sharing = (processes + device.plugin->device_count() - 1) / device.plugin->device_count();
  return wish.of(device.memory().free_bytes / sharing);
}

int64_t tensor_limit(int64_t memory_limit_bytes, const ComputeDevice& device) {
  if (!device.is_cpu()) return memory_limit_bytes;
  return tensor_limit_within(memory_limit_bytes, outside_bytes());
}

PackingPolicy packing_policy(const RunSpec& run, const ModelConfig& config) {
  PackingPolicy policy;
  policy.sharing = run.sharing;
  policy.layout = run.layout;
  policy.token_budget = run.token_budget;
  policy.chunk_size = run.chunk_size;
  policy.recompute = run.recompute == Recompute::always;
  policy.layer_count = config.layer_count;
  return policy;
}

at::ScalarType stored_dtype(const ModelFiles& model) { return model.weights->stored_dtype("model.layers.0.self_attn.q_proj.weight"); }

WeightForms weight_forms(at::ScalarType stored, at::ScalarType compute, const ComputeDevice& device) {
  const MemoryFacts facts = memory_facts(compute, device.device, exact_parts(stored));
  return {.element_size = facts.element_size, .packed = facts.packed, .parts = facts.parts};
}

void check_weights_fit(const std::string& asked, const OptionPlace& place, int64_t memory_limit_bytes, const ModelConfig& config,
                       at::ScalarType compute, size_t copies, const std::function<int64_t()>& needed_by_jobs, Diagnostics& mistakes) {
  const MemoryFacts facts = memory_facts(compute, ComputeDevice{}.device, 1);
  // While it is loaded the head's weight, the largest, stands as it is beside its packed forms.
  const int64_t unpacked = facts.packed ? config.vocabulary_size * config.hidden_size * facts.element_size : 0;
  const int64_t weights = static_cast<int64_t>(copies) * predict_weight_bytes(config, facts) + unpacked;
  const int64_t left = tensor_limit(memory_limit_bytes, {});
  if (weights <= left) return;
  const int64_t of_jobs = needed_by_jobs();
  const int64_t least = std::max(accepted_limit_mib(weights, outside_bytes()),
                                 accepted_limit_mib(of_jobs > 0 ? of_jobs : weights - unpacked, outside_bytes() + loading_growth_bytes));
  mistakes.add(place.file, place.line, place.field,
               fmt::format("{}: the model alone takes {:.1f} MiB while it is loaded; the limit of {:.0f} MiB leaves {:.0f} MiB beside the "
                           "program itself, {:.0f} MiB for what that grows by included; accepted are {} MiB{}",
                           asked, static_cast<double>(weights) / mib, static_cast<double>(memory_limit_bytes) / mib,
                           static_cast<double>(left) / mib, static_cast<double>(expected_growth_bytes()) / mib, least,
                           of_jobs > 0 ? " and more" : ", and what jobs take"));
}

void check_rank_weights_fit(const RunSpec& run, int64_t memory_limit_bytes, const ModelConfig& config, at::ScalarType compute,
                            const ComputeDevice& device, std::span<const PipelineLayout> layouts, std::span<const int32_t> ranks,
                            Diagnostics& mistakes) {
  const WeightForms forms = weight_forms(at::kBFloat16, compute, device);
  int64_t most = 0;
  int32_t dearest = 0;
  for (const int32_t rank : ranks) {
    const int64_t bytes = weight_bytes_of_rank(config, layouts, rank, forms);
    if (bytes > most) dearest = rank;
    most = std::max(most, bytes);
  }
  const int64_t left = tensor_limit(memory_limit_bytes, device);
  if (most <= left) return;
  mistakes.add(
      "", 0, "run.memory",
      fmt::format("{}: the weights of rank {} alone take {:.0f} MiB where ranks are divided as {}; the limit of {:.0f} MiB leaves {:.0f} MiB "
                  "beside the program itself",
                  run.memory, dearest, static_cast<double>(most) / mib, to_string(parallel_of(run)), static_cast<double>(memory_limit_bytes) / mib,
                  static_cast<double>(left) / mib));
}

PredictedMemory check_jobs_fit(std::span<const std::unique_ptr<TrainingJob>> jobs, const RunSpec& run,
                               const ModelFiles& model, at::ScalarType compute, const ComputeDevice& device,
                               int64_t memory_limit_bytes, std::span<const PipelineLayout> process_layouts,
                               Diagnostics& mistakes) {
  const JobsOfRun all(jobs, run, model, compute, device, process_layouts);
  PredictedMemory predicted;
  predicted.limit_bytes = expected_tensor_limit(memory_limit_bytes, device);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const JobFootprint& footprint = all.footprints()[i];
    PredictedMemory::Job& prediction = predicted.jobs.emplace_back();
    prediction.module_count = static_cast<int64_t>(footprint.adapters.size());
    for (const AdapterShape& adapter : footprint.adapters)
      prediction.value_count += parameter_count(model.config, adapter);
    prediction.alone_bytes = all.alone(i, all.policy()).total();
    if (const auto refusal = all.refusal(i, predicted.limit_bytes)) {
      const JobSpec& spec = jobs[i]->spec();
      mistakes.add(spec.file, spec.line, "jobs." + spec.name,
                   "can never run within run.memory: it " + refusal->to_string(memory_limit_bytes) +
                       (device.is_cpu() ? accepted_limit_text(refusal->needed_bytes, outside_bytes() + loading_growth_bytes) : ""));
    }
  }
  predicted.together_bytes = all.together().total();
  return predicted;
}

int64_t needed_by_any_job(std::span<const std::unique_ptr<TrainingJob>> jobs, const RunSpec& run, const ModelFiles& model,
                          at::ScalarType compute, const ComputeDevice& device) {
  const JobsOfRun all(jobs, run, model, compute, device, {});
  int64_t most = 0;
  for (size_t i = 0; i < jobs.size(); ++i) most = std::max(most, all.refusal(i, 0)->needed_bytes);
  return most;
}

}  // namespace cotune
