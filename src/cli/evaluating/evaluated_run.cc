#include "cli/evaluating/evaluated_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/abrupt_exit.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/data_reading.h"
#include "cli/inputs/run_setup.h"
#include "control/no_run.h"
#include "train/adapter_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

const JobSpec& job_of(const EvaluatedRun& run, const std::string& name) {
  const auto found = std::ranges::find(run.record.configuration.jobs, name, &JobSpec::name);
  COTUNE_CHECK(found != run.record.configuration.jobs.end());
  return *found;
}

}  // namespace

EvaluatedRun open_evaluated_run(const fs::path& folder, bool with_base) {
  const fs::path file = folder / "run.json";
  if (!fs::exists(file)) throw_no_run(folder);
  EvaluatedRun run{folder, RunRecord::from_json(read_file(file), file.string()), {}};
  if (with_base) run.adapters.push_back({base_name, {}});
  const size_t before = run.adapters.size();
  for (const JobSpec& job : run.record.configuration.jobs) {
    if (!holds_out_examples(job.data) || !fs::is_directory(folder / "jobs" / job.name)) continue;
    if (job.name == base_name) {
      write_to_standard_error(
          fmt::format("{0}: this job of the run is left out, because {0} is the model without an adapter; --data FILE --adapter NAME={1} "
                      "evaluates it\n",
                      base_name, (folder / "jobs" / job.name).string()));
      continue;
    }
    fs::path adapter;
    try {
      adapter = find_adapter_folder(folder / "jobs" / job.name);
    } catch (const UserError&) {
      write_to_standard_error(fmt::format("{}: has no adapter yet\n", job.name));
      continue;
    }
    if (is_choosing_entries(adapter)) {
      write_to_standard_error(fmt::format("{}: has no adapter yet: it is still choosing its entries\n", job.name));
      continue;
    }
    run.adapters.push_back({job.name, adapter});
  }
  if (run.adapters.size() == before) {
    throw_user_error(
        "--run: {}: no job has both an adapter and held-out examples (data.eval or data.eval_fraction); --data names a file to "
        "evaluate on",
        folder.string());
  }
  return run;
}

ModelFiles model_of_run(const EvaluatedRun& run, const ModelOptions& options) {
  if (!options.model.empty()) return open_cached_model(model_of_adapters(options.model, run.adapters));
  Diagnostics mistakes;
  ModelParts parts = find_model(run.record.configuration.model, mistakes);
  mistakes.throw_if_any();
  return std::move(parts.files);
}

std::string dtype_of_run(const EvaluatedRun& run, const ModelOptions& options) {
  if (options.dtype != "auto") return options.dtype;
  for (const char* name : {"bfloat16", "float32", "float64"}) {
    if (run.record.compute_dtype == c10::toString(torch_dtype(name))) return name;
  }
  return "auto";
}

std::vector<EvaluatedData> read_held_out(const EvaluatedRun& run, const EvaluateOptions& options, const AdaptedModel& model) {
  std::vector<EvaluatedData> all;
  std::map<std::string, size_t> by_content;
  Diagnostics mistakes;
  RunSpec spec = run.record.configuration.run;
  if (options.model.threads > 0) spec.threads = options.model.threads;
  const DataReading reading(spec);
  for (size_t i = 0; i < model.adapter_count(); ++i) {
    if (model.name(i) == base_name) continue;
    const JobSpec& job = job_of(run, model.name(i));
    JobData read = read_data(job, model.text(), model.files().config, reading, mistakes);
    Dataset answered = answered_examples(job, read, &JobData::eval, options, model, reading, mistakes);
    if (mistakes.size() > 0) continue;
    const auto hash = run.record.data_hashes.find(model.name(i));
    if (hash != run.record.data_hashes.end() && hash->second != content_hash(read)) {
      write_to_standard_error(fmt::format("{}: its data have changed since the run\n", model.name(i)));
    }
    const auto [place, is_new] = by_content.try_emplace(read.eval.content_hash(), all.size());
    if (is_new) {
      EvaluatedData& data = all.emplace_back();
      data.examples = std::move(read.eval);
      data.answered = std::move(answered);
      if (run.adapters.front().folder.empty()) data.adapters.push_back(0);
    }
    EvaluatedData& data = all[place->second];
    data.name += (data.name.empty() ? "held-out examples of " : ", ") + model.name(i);
    data.adapters.push_back(i);
  }
  mistakes.throw_if_any();
  for (EvaluatedData& data : all) {
    if (!options.choices.empty()) data.questions = questions_of(data.answered, options, model, mistakes);
  }
  mistakes.throw_if_any();
  return all;
}

}  // namespace cotune
