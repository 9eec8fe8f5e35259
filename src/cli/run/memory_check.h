#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/diagnostics.h"
#include "device/compute_device.h"
#include "jobs/job.h"
#include "model/weights/model_files.h"
#include "plan/shapes/weight_forms.h"
#include "schedule/pipeline/rank_plan.h"
#include "schedule/step_plan.h"
#include "train/training_job.h"

namespace cotune {

/// The most bytes that the run may take: of the whole process, or of what it holds on its device. processes: of this run on this
/// machine, which divide what is free.
int64_t memory_limit(const RunSpec& run, const ComputeDevice& device, int32_t processes = 1);

/// What of the limit is left for tensors now.
int64_t tensor_limit(int64_t memory_limit_bytes, const ComputeDevice& device);

/// How the run's rounds are packed, before memory runs short. Its layers are the model's.
PackingPolicy packing_policy(const RunSpec& run, const ModelConfig& config);

/// The type in which the file has the products of the layers.
at::ScalarType stored_dtype(const ModelFiles& model);

/// How frozen weights of that type are held here when they are computed with in `compute`. Float32 products on bf16 parts may take
/// fewer parts than the type says.
WeightForms weight_forms(at::ScalarType stored, at::ScalarType compute, const ComputeDevice& device);

/// Adds a mistake where the model alone exceeds what the limit leaves for tensors. asked: as run.memory says
/// it, at that place. copies: one for each degree to which layers are divided. needed_by_jobs: needed_by_any_job, for the limit that the
/// mistake names; 0 where the jobs are not known.
void check_weights_fit(const std::string& asked, const OptionPlace& place, int64_t memory_limit_bytes, const ModelConfig& config,
                       at::ScalarType compute, size_t copies, const std::function<int64_t()>& needed_by_jobs, Diagnostics& mistakes);

/// The same of ranks that are processes, each with its stages: adds a mistake where the weights of one are more than the limit leaves, were they
/// held in as few parts as can be. layouts: of the replicas. ranks: whose limit it is.
void check_rank_weights_fit(const RunSpec& run, int64_t memory_limit_bytes, const ModelConfig& config, at::ScalarType compute,
                            const ComputeDevice& device, std::span<const PipelineLayout> layouts, std::span<const int32_t> ranks,
                            Diagnostics& mistakes);

/// What jobs will take, predicted before anything is loaded.
struct PredictedMemory {
  struct Job {
    int64_t module_count = 0;
    int64_t value_count = 0;  ///< trained
    int64_t alone_bytes = 0;  ///< peak with this job and no other
  };
  int64_t limit_bytes = 0;     ///< for tensors, as it is expected to be when the model is loaded
  int64_t together_bytes = 0;  ///< peak of all jobs at once
  std::vector<Job> jobs;
};

/// Predicts what admission will (schedule/memory/peak_memory.h), and adds a mistake for every job that can never fit,
/// with the kind of memory that overflows. The weights count as their type in the file says, which for
/// float32 products on bf16 parts may be more than they will take, with rotary tables for the longest row. process_layouts: as set_division has them.
PredictedMemory check_jobs_fit(std::span<const std::unique_ptr<TrainingJob>> jobs, const RunSpec& run,
                               const ModelFiles& model, at::ScalarType compute, const ComputeDevice& device,
                               int64_t memory_limit_bytes, std::span<const PipelineLayout> process_layouts,
                               Diagnostics& mistakes);

/// What tensors take at least where each of the jobs, of a run in one process, can run, be it alone and in the smallest rounds.
int64_t needed_by_any_job(std::span<const std::unique_ptr<TrainingJob>> jobs, const RunSpec& run, const ModelFiles& model,
                          at::ScalarType compute, const ComputeDevice& device);

}  // namespace cotune
