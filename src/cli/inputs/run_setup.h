#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/inputs/data_reading.h"
#include "cli/inputs/model_text.h"
#include "device/compute_device.h"
#include "jobs/job.h"
#include "jobs/jobs_file.h"
#include "train/training_job.h"

namespace cotune {

/// All that a run reads before it computes.
struct RunInputs {
  JobsFile jobs_file;
  ModelParts model;
  std::unique_ptr<ModelText> text;  ///< null where it cannot be read
  std::vector<JobData> data;        ///< of every job
  std::map<std::string, std::string> initial_adapters;  ///< RunRecord::initial_adapters; none where there are mistakes
};

/// A model.config that is neither a file, nor in the Hugging Face cache, nor a preset is a mistake at its place,
/// and then no model that is looked for.
void check_preset(JobsFileReading& reading, Diagnostics& mistakes);

/// Reads model, adapters and data of a jobs file and adds every mistake to `mistakes`. What is mistaken does
/// not keep the rest from being looked at: without a tokenizer, or where the job's data section holds a mistake, data are checked as far as
/// their fields.
RunInputs read_inputs(JobsFileReading reading, const DataReading& data, Diagnostics& mistakes);

/// Its part for the jobs: checks their adapters, and reads the data of each. text: null where it cannot be read. config: null
/// where it is not known.
std::vector<JobData> read_jobs(const JobsFileReading& reading, const ModelConfig* config, const ModelText* text,
                               const DataReading& data, Diagnostics& mistakes);

/// RunRecord::initial_adapters of the jobs. Throws UserError where one cannot be read.
std::map<std::string, std::string> initial_adapters(const JobsFileReading& reading);

/// The run's job of that index. Throws as TrainingJob does.
std::unique_ptr<TrainingJob> make_job(size_t index, const JobSpec& spec, JobData data, const std::filesystem::path& run_folder,
                                      const ModelFiles& model, at::ScalarType compute, const ComputeDevice& device);

/// A sweep with halving of which no candidate has so many steps that it comes to a rung is a mistake.
void check_rungs(const std::vector<std::unique_ptr<TrainingJob>>& jobs, Diagnostics& mistakes);

/// The job's data as tokens, with every mistake of every file in `mistakes`, and options of the job that
/// would have no effect on them. A job without held-out rows has an empty `eval`. Texts for a model without a tokenizer are one mistake,
/// at model_place, and then data are checked as far as their fields.
JobData read_data(const JobSpec& job, const ModelText& text, const ModelConfig& config, const DataReading& reading,
                  Diagnostics& mistakes, const OptionPlace& model_place = {});

/// Where the jobs file names the model; no place where it names none.
OptionPlace place_of_model(const JobsFileReading& reading);

}  // namespace cotune
