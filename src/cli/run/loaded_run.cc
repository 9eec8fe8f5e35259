#include "cli/run/loaded_run.h"

#include <optional>
#include <span>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/visible_text.h"
#include "cli/run/memory_check.h"
#include "cli/run/rank_processes.h"
#include "cli/run/resumed_jobs.h"
#include "cli/run/start_check.h"
#include "cli/run/supervised_run.h"
#include "cli/terminal/stop_signals.h"
#include "engine/process_rank.h"
#include "engine/rank_progress.h"
#include "jobs/parallel.h"
#include "model/config/tensor_shard.h"
#include "ops/memory.h"
#include "train/balanced_layout.h"
#include "train/lost_checkpoints.h"
#include "train/metrics_file.h"
#include "train/sweep_folder.h"
#include "train/tensorboard_log.h"

namespace cotune {
namespace {

/// For the other ranks, where there are some.
RankTask task_of(const RankProcesses* processes, const char* text) { return {processes != nullptr ? processes->progress() : nullptr, text}; }

/// Those whose memory limit is the first one's.
std::vector<int32_t> ranks_on_first_host(const RankProcesses& processes) {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < processes.process().size; ++rank) {
    if (processes.ranks()[static_cast<size_t>(rank)].host == processes.ranks().front().host) ranks.push_back(rank);
  }
  return ranks;
}

/// As the run goes on with it, where it does.
RunRecord record_of(ReadRun& read, const RunFolder& folder) {
  RunRecord record = [&] {
    const RankTask task = task_of(read.processes, "reading the model");
    return make_record(read.inputs, read.compute, read.device, read.limit_bytes);
  }();
  record.launch = read.arguments.launch.name;
  if (read.files().weights != nullptr) read.files().weights->drop_pages();  // the fingerprint has read them all
  const std::optional<RunRecord> before = folder.record();
  if (!before) return record;
  compare_with(*before, record, folder.path(), read.mistakes);
  read.mistakes.throw_if_any();
  record.relief = before->relief;
  record.changes = before->changes;
  record.initial_adapters.insert(before->initial_adapters.begin(), before->initial_adapters.end());  // of jobs that go on from checkpoints
  return record;
}

/// The other processes begin to load their parts, which are balanced where no plan says them. Returns what this one has.
BackboneUse set_up_processes(ReadRun& read, LoadedRun& loaded, int64_t positions) {
  const ModelConfig& config = read.files().config;
  loaded.process_layouts =
      !read.layouts.empty() ? read.layouts : balanced_layouts(config, shapes_of(loaded.jobs), read.costs, loaded.policy, loaded.parallel);
  if (read.device.is_cpu()) {
    check_rank_weights_fit(read.run(), read.limit_bytes, config, read.compute, read.device, loaded.process_layouts,
                           ranks_on_first_host(*read.processes), read.mistakes);
  }
  read.mistakes.throw_if_any();
  read.processes->set_up({.jobs_file = read.jobs_file(),
                          .compute_dtype = c10::toString(read.compute),
                          .on_cpu = read.device.is_cpu(),
                          .positions = positions,
                          .layouts = loaded.process_layouts,
                          .model_fingerprint = [&loaded] { return loaded.record.model_fingerprint; }},
                         read.files());
  return backbone_use_of(loaded.process_layouts, 0, positions);
}

/// One of every part that ranks which are threads compute with.
std::vector<TensorShard> shards_of(const Parallel& parallel) {
  std::vector<TensorShard> shards;
  for (const int64_t degree : parallel.tensor()) {
    for (int64_t index = 0; index < degree; ++index) shards.push_back({index, degree});
  }
  return shards;
}

}  // namespace

std::unique_ptr<LoadedRun> load_run(ReadRun& read) {
  const RunSpec& run = read.run();
  const ModelFiles& files = read.files();
  std::unique_ptr<LoadedRun> loaded(new LoadedRun{.folder = {run.output, read.start()}});  // the folder can neither be copied nor moved
  remove_when_stopped(loaded->folder.made());
  loaded->record = record_of(read, loaded->folder);
  if (read.limit_bytes > 0 && read.device.is_cpu()) set_memory_limit(tensor_limit(read.limit_bytes, read.device));
  BackboneUse use{.positions = longest_row(read.inputs.data) + read.arguments.sample_tokens};
  loaded->jobs = make_jobs(read.inputs, read.compute, read.device);
  check_rungs(loaded->jobs, read.mistakes);
  read.mistakes.throw_if_any();
  loaded->policy = packing_policy(run, files.config);
  loaded->parallel = parallel_of(run);
  std::vector<TensorShard> shards = shards_of(loaded->parallel);
  if (read.processes != nullptr) {
    use = set_up_processes(read, *loaded, use.positions);
    shards = {use.shard};
  }
  {
    const RankTask task = task_of(read.processes, "loading its part of the model");
    loaded->parts = read.emulated ? emulated_backbone(files.config, read.compute, *read.emulated, shards)
                                  : load_backbone(files, read.compute, read.device, use, shards, run.memory);
  }
  if (read.processes != nullptr) read.processes->wait_until_loaded(*loaded->backbone(), read.device);
  return loaded;
}

void begin_run(const ReadRun& read, LoadedRun& loaded) {
  const bool resumes = read.arguments.resume;
  std::map<std::string, JobProgress> progress;
  if (resumes) {
    Diagnostics mistakes;
    check_lost_checkpoints(loaded.folder.path(), names_of_jobs_to_go_on(loaded.jobs, loaded.record.changes), mistakes);
    mistakes.throw_if_any();
  }
  for (const auto& job : loaded.jobs) {
    if (resumes) job->resume();
    progress[job->spec().name] = {job->state().step, job->state().last_eval_step};
  }
  if (resumes) loaded.rungs = read_rung_records(loaded.folder.path());
  leave_as_they_were(loaded.jobs, loaded.rungs, loaded.record.changes, read.run().stay);
  finish_before_stopping(!read.emulated);
  loaded.folder.begin(loaded.record);
  if (read.arguments.supervised != nullptr) read.arguments.supervised->has_begun();
  if (!resumes) return;
  const std::string damage = trim_metrics(loaded.folder.metrics_file(), progress);
  if (!damage.empty()) write_to_standard_error(visible_text(damage) + "\n");
  trim_tensorboard(loaded.folder.tensorboard_folder(), progress);
}

}  // namespace cotune
