#include "cli/run/start_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/reporting/sweep_table.h"
#include "cli/run/check_report.h"
#include "cli/run/memory_check.h"
#include "cli/run/resumed_jobs.h"
#include "jobs/emulated_file.h"
#include "jobs/parallel.h"
#include "ops/backend.h"
#include "train/balanced_layout.h"
#include "train/lost_checkpoints.h"
#include "train/sweep_folder.h"
#include "train/trainer.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// What only a start in this folder would find out about inputs without a mistake: whether every job can ever
/// fit, and whether the run that is there can go on with them.
void check_start(RunInputs& inputs, const RunStart& start, CheckReport& report, Diagnostics& mistakes) {
  const JobsFile& jobs_file = inputs.jobs_file;
  const at::ScalarType compute = compute_dtype(jobs_file.model, start.device);
  const fs::path folder = jobs_file.run.output;
  JobChanges changes;
  if (start.resumes) {
    const RunRecord record = make_record(inputs, compute, start.device, start.limit_bytes);
    const fs::path file = folder / "run.json";
    const RunRecord before = RunRecord::from_json(read_file(file), file.string());
    compare_with(before, record, folder, mistakes);
    changes = before.changes;
    inputs.model.files.weights->drop_pages();
  }
  report.jobs = make_jobs(inputs, compute, start.device);
  report.chosen_dtype = chosen_dtype_text(jobs_file.model, start.device);
  check_rungs(report.jobs, mistakes);
  const bool goes_on = start.resumes && mistakes.empty();
  if (goes_on) check_lost_checkpoints(folder, names_of_jobs_to_go_on(report.jobs, changes), mistakes);
  for (const auto& job : report.jobs) {
    if (!goes_on) continue;
    try {
      job->resume();
    } catch (const UserError& error) {
      mistakes.add(error);
    }
  }
  if (start.resumes) {
    try {
      read_rung_records(folder);
    } catch (const UserError& error) {
      mistakes.add(error);
    }
  }
  std::vector<PipelineLayout> process_layouts;
  if (start.ranks_are_processes) process_layouts.assign(start.layouts.begin(), start.layouts.end());
  if (start.ranks_are_processes && start.layouts.empty()) {
    process_layouts = balanced_layouts(inputs.model.files.config, shapes_of(report.jobs), start.costs,
                                       packing_policy(jobs_file.run, inputs.model.files.config), parallel_of(jobs_file.run));
  }
  report.memory = check_jobs_fit(report.jobs, jobs_file.run, inputs.model.files, compute, start.device, start.limit_bytes, process_layouts,
                                 mistakes);
}

/// Hybrid tasks as all jobs together will have them, before memory runs short; nothing under other sharing.
std::optional<PlannedRound> plan_of_all(const std::vector<std::unique_ptr<TrainingJob>>& jobs, const RunInputs& inputs,
                                        RoundPlanner& planner) {
  const PackingPolicy policy = packing_policy(inputs.jobs_file.run, inputs.model.files.config);
  if (policy.sharing != Sharing::hybrid) return std::nullopt;
  std::vector<TrainingJob*> all;
  for (const auto& job : jobs) all.push_back(job.get());
  PlannedRound round = planner.plan(all, policy, parallel_of(inputs.jobs_file.run)).round;
  round.cause = "all jobs together";
  return round;
}

}  // namespace

RunRecord make_record(const RunInputs& inputs, at::ScalarType compute, const ComputeDevice& device, int64_t limit_bytes) {
  const JobsFile& jobs_file = inputs.jobs_file;
  const ModelFiles& files = inputs.model.files;
  RunRecord record;
  record.configuration = jobs_file;
  record.emulated = emulated_file(jobs_file.run.device);
  record.model_fingerprint = record.emulated.empty() ? model_fingerprint(files) : "no weights: " + model_shape_text(files.config);
  record.compute_dtype = c10::toString(compute);
  record.instruction_set = device.is_cpu() && record.emulated.empty() ? to_string(kernel_isa(compute, at::kCPU)) : device.name;
  record.memory_limit_bytes = limit_bytes;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const std::string& name = jobs_file.jobs[i].name;
    record.data_hashes[name] = content_hash(inputs.data[i]);
    record.file_hashes[name] = file_hashes(inputs.data[i]);
  }
  record.initial_adapters = inputs.initial_adapters;
  return record;
}

void compare_with(const RunRecord& before, const RunRecord& now, const fs::path& folder,
                  Diagnostics& mistakes) {
  const std::vector<std::string> lines = differences(before, now);
  if (!lines.empty()) {
    mistakes.add((folder / "run.json").string(), 0, "",
                 fmt::format("this run cannot be resumed with other settings (its own first):\n  {}",
                             fmt::join(lines, "\n  ")));
  }
  if (lines.empty() && before.instruction_set != now.instruction_set) {
    write_to_standard_error(fmt::format("{}: was computed with {} kernels so far and goes on with {}: the last bits will differ\n",
                                        folder.string(), before.instruction_set, now.instruction_set));
  }
}

std::vector<std::unique_ptr<TrainingJob>> make_jobs(RunInputs& inputs, at::ScalarType compute,
                                                    const ComputeDevice& device) {
  const JobsFile& jobs_file = inputs.jobs_file;
  std::vector<std::unique_ptr<TrainingJob>> jobs;
  for (size_t i = 0; i < jobs_file.jobs.size(); ++i) {
    jobs.push_back(make_job(i, jobs_file.jobs[i], std::move(inputs.data[i]), jobs_file.run.output, inputs.model.files, compute, device));
    const auto initial = inputs.initial_adapters.find(jobs_file.jobs[i].name);
    if (initial != inputs.initial_adapters.end()) jobs.back()->expect_initial_adapter(initial->second);
  }
  return jobs;
}

void check_run(RunInputs& inputs, const RunStart& start, RoundPlanner planner, bool as_json, Diagnostics& mistakes) {
  CheckReport report;
  try {
    if (mistakes.empty()) check_start(inputs, start, report, mistakes);
    if (mistakes.empty()) report.plan = plan_of_all(report.jobs, inputs, planner);
  } catch (const UserError& error) {
    mistakes.add(error);
    report.jobs.clear();
  }
  report.mistakes = mistakes.in_order();
  if (as_json) fmt::print("{}\n", check_json(report));
  mistakes.throw_if_any();
  if (!as_json) print_check(report);
}

}  // namespace cotune
