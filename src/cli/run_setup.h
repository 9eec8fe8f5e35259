#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/model_text.h"
#include "device/compute_device.h"
#include "jobs/job.h"
#include "train/training_job.h"

namespace cotune {

/// The job's data as tokens, with every mistake of every file in `diagnostics`.
JobData read_data(const JobSpec& job, const ModelText& text, const ModelConfig& config, Diagnostics& diagnostics);

/// Data of every job; throws UserError with all mistakes of all jobs together.
std::vector<JobData> read_all_data(const JobsFile& jobs_file, const ModelText& text, const ModelConfig& config);

/// The compute dtype that the model section asks for: `auto` is bfloat16 where the device multiplies it natively,
/// float32 elsewhere.
at::ScalarType compute_dtype(const ModelSpec& model, const ComputeDevice& device);

/// Checks that do not need weights: every job's modules, its adapter to start from, and the shapes. All at once.
void check_adapters(const JobsFile& jobs_file, const ModelConfig& config);

}  // namespace cotune
