#include "cli/run/training_run.h"

#include <fmt/format.h>
#include <omp.h>

#include <chrono>
#include <cstdio>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "cli/inputs/backbone_parts.h"
#include "cli/inputs/run_setup.h"
#include "cli/planning/profile_fingerprint.h"
#include "cli/run/emulated_run.h"
#include "cli/run/hung_ranks.h"
#include "cli/run/memory_check.h"
#include "cli/run/overwritten_inputs.h"
#include "cli/run/plan_to_follow.h"
#include "cli/run/planned_division.h"
#include "cli/run/rank_checks.h"
#include "cli/run/rank_processes.h"
#include "cli/run/resumed_jobs.h"
#include "cli/run/run_control.h"
#include "cli/run/run_prediction.h"
#include "cli/run/run_recorder.h"
#include "cli/run/run_report.h"
#include "cli/run/run_trace.h"
#include "cli/run/sample_answers.h"
#include "cli/run/saved_progress.h"
#include "cli/run/start_check.h"
#include "cli/run/supervised_run.h"
#include "cli/terminal/json_events.h"
#include "cli/terminal/live_run.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/stop_signals.h"
#include "console/output.h"
#include "console/output_file.h"
#include "engine/backbone.h"
#include "engine/rank_leader.h"
#include "engine/rank_progress.h"
#include "jobs/emulated_file.h"
#include "jobs/found_chunk_size.h"
#include "jobs/jobs_file.h"
#include "jobs/parallel.h"
#include "model/config/tensor_shard.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/chunk_size.h"
#include "train/checkpoint.h"
#include "train/emulated_times.h"
#include "train/metrics_file.h"
#include "train/run_folder.h"
#include "train/sweep_folder.h"
#include "train/tensorboard_log.h"
#include "train/trainer.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// A profile of this very device, with its fits.
struct CheckedProfile {
  Profile profile;
  MeasuredTimes times;
};

std::unique_ptr<CheckedProfile> profile_for(const std::string& file, const ModelConfig& config, at::ScalarType compute,
                                            const ComputeDevice& device, const RanksHere& ranks) {
  if (file.empty()) return nullptr;
  Profile profile = read_profile(file);
  check_fingerprint(profile, fingerprint_here(config, compute, device, ranks), file);
  MeasuredTimes times(profile, config, file);
  return std::make_unique<CheckedProfile>(CheckedProfile{std::move(profile), std::move(times)});
}

RanksHere ranks_here(const RunSpec& run, const RankProcesses* processes) {
  if (processes != nullptr) return {.ranks = processes->on_host_of(0)};  // each has its threads already
  return {.ranks = run.ranks, .threads = std::max<int64_t>(1, omp_get_max_threads() / run.ranks)};
}

/// run.chunk_size as the run has it from now on, where it is auto. Bits depend on it, so it is found once: a job that joins or leaves
/// changes nothing, and it stands in the configuration that is recorded.
void find_chunk_size(RunSpec& run, const std::vector<JobData>& data) {
  std::vector<int64_t> longest;
  for (const JobData& job : data) longest.push_back(lengths_of(job.train).max);
  run.chunk_size = chunk_size_for(longest, run.token_budget);
  fmt::print(stderr, "run.chunk_size: {}, by the longest {} of {}\n", run.chunk_size, longest.size() == 1 ? "row" : "rows",
             counted(std::ssize(longest), "job"));
}

/// Those whose memory limit is the first one's.
std::vector<int32_t> ranks_on_first_host(const RankProcesses& processes) {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < processes.process().size; ++rank) {
    if (processes.ranks()[static_cast<size_t>(rank)].host == processes.ranks().front().host) ranks.push_back(rank);
  }
  return ranks;
}

constexpr const char* ends_here =
    "{}\nThe run ends here. Once that is mended, --resume goes on from every job's last checkpoint.";

RunSummary run_to_the_end(Trainer& trainer) {
  try {
    return trainer.run();
  } catch (const CommunicationEnded& error) {
    throw SystemError(fmt::format(ends_here, error.what()));
  } catch (const SystemError& error) {
    throw SystemError(fmt::format(ends_here, error.what()));
  }
}

/// Options that mean nothing where nothing is computed, and a launcher, whose processes do not share a clock.
void check_emulated(const TrainArguments& arguments, const std::map<std::string, OptionPlace>& run_places, const JobsFile& jobs_file,
                    bool is_launched, Diagnostics& mistakes) {
  const auto refuse = [&](const char* option, const char* why) { mistakes.add(option, 0, "", fmt::format("{}, and run.device is emulated", why)); };
  if (arguments.sample_tokens > 0) refuse("--sample-tokens", "answers are those of a trained adapter");
  if (arguments.resume) refuse("--resume", "a run is resumed from checkpoints");
  if (arguments.restarts > 0) refuse("--restarts", "a run is started again from checkpoints");
  if (arguments.check) refuse("--check", "says what a run takes of this machine's memory");
  if (!arguments.profile.empty()) refuse("--profile", "times are those of the file of run.device");
  if (is_launched) refuse("run.device", "ranks are processes of a launcher; accepted are threads of one program (run.ranks)");
  if (jobs_file.run.parallel == parallel_as_planned) refuse("run.parallel", "is auto, for which the planner would choose among divisions of this machine; accepted are stages, and degrees");
  if (parallel_of(jobs_file.run).shards_weights()) refuse("run.parallel", "has shard, and there are no weights; `cotune plan` says what they would take");
  check_emulated_run(run_places, mistakes);
  for (const JobSpec& job : jobs_file.jobs) check_emulated_job(job, mistakes);
}

/// For the other ranks, where there are some.
RankTask task_of(const RankProcesses* processes, const char* text) { return {processes != nullptr ? processes->progress() : nullptr, text}; }

RunFolder::Start start_of(const TrainArguments& arguments) {
  using Start = RunFolder::Start;
  return arguments.resume ? Start::resume : arguments.overwrite ? Start::overwrite : Start::fresh;
}

bool holds_run(const fs::path& output) { return fs::exists(output / "run.json"); }

/// The run in the folder was begun by this start, or one before it, of those that `--restarts` makes. A start that was to be the first has
/// found that there was none before its own.
bool own_start_began(const TrainArguments& arguments, const fs::path& output) {
  const SupervisedRun* supervised = arguments.supervised;
  return supervised != nullptr && (supervised->resumes() || (supervised->restart() > 0 && !arguments.overwrite && holds_run(output)));
}

/// A launcher has started the run again that is in the folder.
bool is_started_again(const TrainArguments& arguments, const fs::path& output) {
  return arguments.is_restart && !own_start_began(arguments, output) && !arguments.resume && holds_run(output);
}

ComputeDevice device_for(const RunSpec& run, int32_t local_rank, Diagnostics& mistakes) {
  try {
    return choose_device(run.device, "run.device", {}, local_rank);
  } catch (const UserError& error) {
    mistakes.add(error);
    return {};
  }
}

std::optional<EmulatedTimes> times_for(const RunSpec& run, const ModelSpec& model, const ModelConfig& config, Diagnostics& mistakes) {
  try {
    return read_emulated_times(emulated_file(run.device), config, model.dtype, parallel_of(run));
  } catch (const UserError& error) {
    mistakes.add("", 0, "", error.what());
    return std::nullopt;
  }
}

}  // namespace

int train(TrainArguments arguments, RankProcesses* processes, std::chrono::steady_clock::time_point program_start) {
  catch_stop_signals();
  Diagnostics mistakes;
  const HasCheckpoint has_checkpoint_here = [&arguments](const std::string& output, const std::string& job) {
    const bool resumes = arguments.resume || own_start_began(arguments, output) || is_started_again(arguments, output);
    return resumes && has_checkpoint(fs::path(output) / "jobs" / job);
  };
  JobsFileReading reading = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::train, mistakes, has_checkpoint_here);
  const int32_t processes_here = processes != nullptr ? processes->on_host_of(0) : 1;
  ComputeDevice device =
      device_for(reading.jobs_file.run, processes != nullptr ? processes->process().local_rank : 0, mistakes);
  if (!device.notice.empty()) fmt::print(stderr, "{}\n", device.notice);
  if (processes != nullptr || reading.jobs_file.run.threads > 0) {
    omp_set_num_threads(threads_of_process(reading.jobs_file.run, processes != nullptr ? processes->on_cores_of(0) : 1));
  }
  std::unique_ptr<PortableKernels> portable;
  if (reading.jobs_file.run.portable_kernels) portable = std::make_unique<PortableKernels>();

  const bool goes_on = is_started_again(arguments, reading.jobs_file.run.output);
  if (goes_on) {
    fmt::print(stderr, "{}: was started again, and goes on from every job's last checkpoint\n", reading.jobs_file.run.output);
  }
  if (goes_on || own_start_began(arguments, reading.jobs_file.run.output)) {
    arguments.resume = true;
    arguments.overwrite = false;
  }
  if (reading.run) RunFolder::look(reading.jobs_file.run.output, start_of(arguments), mistakes);
  if (reading.run && start_of(arguments) == RunFolder::Start::overwrite) {
    check_overwritten_inputs(reading, arguments.jobs_file, {{"--plan", arguments.plan}, {"--profile", arguments.profile}}, mistakes);
  }
  const bool run_is_sound = reading.run;
  const size_t own_jobs = reading.jobs_file.jobs.size();
  if (arguments.resume && reading.run) take_up_job_changes(reading, mistakes);
  const std::map<std::string, OptionPlace> run_places = reading.run_places;
  const DataReading data_reading(reading.jobs_file.run);
  RunInputs inputs = read_inputs(std::move(reading), data_reading, mistakes);
  const JobsFile& jobs_file = inputs.jobs_file;
  const RunSpec& run = jobs_file.run;
  const ModelFiles& files = inputs.model.files;
  if (arguments.sample_tokens > 0 && inputs.text != nullptr && !inputs.text->has_tokenizer()) {
    mistakes.add("--sample-tokens", 0, "", "needs a model with a tokenizer, to read the prompt and the answer");
  }
  if (arguments.sample_tokens > 0 && processes != nullptr) {
    mistakes.add("--sample-tokens", 0, "", "needs the whole model in one process: `cotune generate` answers when the run is over");
  }
  std::optional<EmulatedTimes> emulated;
  if (device.is_emulated()) {
    check_emulated(arguments, run_places, jobs_file, processes != nullptr, mistakes);
    if (inputs.model.has_config) emulated = times_for(run, jobs_file.model, files.config, mistakes);
    if (emulated) device.name = emulated->device->name;
  }
  at::ScalarType compute = emulated ? torch_dtype(emulated->dtype) : compute_dtype(jobs_file.model, device);
  std::optional<FollowedRun> followed;
  if (!arguments.plan.empty() && run_is_sound) {
    const Parallel asked = parallel_of(run);
    std::map<std::string, OptionPlace> places = run_places;
    if (processes != nullptr) places.erase("run.ranks");  // the launcher's; check_ranks compares it
    followed = follow_plan(arguments.plan, inputs.jobs_file, own_jobs, places, inputs.model.has_config ? &files.config : nullptr,
                           !emulated && jobs_file.model.dtype == "auto" ? "" : dtype_name(compute), mistakes);
    if (!emulated) compute = compute_dtype(jobs_file.model, device);  // that of the plan where there was a choice
    if (device.is_emulated() && parallel_of(run) != asked) {
      mistakes.add("--plan", 0, "", fmt::format("is for ranks {}, and run.device is emulated: give them by run.parallel too", run.parallel));
    }
  }
  if (arguments.hang_timeout_s && run_is_sound && (arguments.plan.empty() || followed) && run.ranks == 1) {
    mistakes.add("--hang-timeout", 0, "", "is of ranks that watch each other, and there is one alone");
  }
  if (run.chunk_size == chunk_size_as_found && mistakes.empty()) find_chunk_size(inputs.jobs_file.run, inputs.data);
  if (run_is_sound && parallel_of(run).divides_layers()) {
    const auto refuse = [&](const char* option, const char* why) {
      mistakes.add(option, 0, "", fmt::format("{}, but run.parallel is {}: take it away, or let ranks have whole layers", why, run.parallel));
    };
    if (arguments.sample_tokens > 0) refuse("--sample-tokens", "answers are written by one rank that has the whole model");
    if (!arguments.profile.empty()) refuse("--profile", "profiles are of whole layers");
  }
  if (!arguments.trace.empty()) check_output("--trace", arguments.trace, trace_output, mistakes);
  if (inputs.model.has_config && run_is_sound) {
    check_ranks(run, run_places, files.config, {.count = processes != nullptr ? processes->process().size : 0, .on_cpu = device.is_cpu()},
                arguments.plan, mistakes);
  }
  const int64_t limit = device.is_emulated() ? 0 : memory_limit(run, device, processes_here);
  if (inputs.model.has_config && device.is_cpu() && !device.is_emulated() && processes == nullptr) {
    check_weights_fit(run.memory, limit, files.config, compute, parallel_of(run).tensor().size(), mistakes);
  }
  std::unique_ptr<CheckedProfile> profile;
  if (inputs.model.has_config && !device.is_emulated()) {
    try {
      profile = profile_for(arguments.profile, files.config, compute, device, ranks_here(run, processes));
    } catch (const UserError& error) {
      mistakes.add("", 0, "", error.what());
    }
  }
  const int64_t sharing_ranks = !device.is_cpu() ? 1 : processes != nullptr ? processes->on_cores_of(0) : run.ranks;
  DeviceCosts costs = emulated  ? emulated->costs
                      : profile ? measured_costs(compute, device, profile->times, arguments.profile, sharing_ranks)
                                : roofline_costs(compute, device, sharing_ranks);
  std::vector<PipelineLayout> layouts = followed ? followed->layouts : std::vector<PipelineLayout>{};
  const bool is_planned = run.parallel == parallel_as_planned;
  const auto division_question = [&] {
    WeightForms weights = weight_forms(stored_dtype(files), compute, device);
    weights.are_shared = processes == nullptr;
    return DivisionQuestion{.run = run,
                            .model = files.config,
                            .costs = costs,
                            .memory_bytes = tensor_limit(limit, device),
                            .weights = weights,
                            .hosts = processes != nullptr ? processes->host_count() : 1,
                            .dtype = costs.machine.dtype,
                            .may_divide_layers = arguments.sample_tokens == 0 && arguments.profile.empty(),
                            .may_divide_tokens = run.interleave != Interleave::always,
                            .may_shard_weights = processes != nullptr && device.is_cpu()};
  };
  if (is_planned && run.ranks > 1 && mistakes.empty() && inputs.text != nullptr) {
    layouts = divide_as_planned(inputs.jobs_file.run, division_question(), shapes_of(jobs_file, inputs.data, files.config));
  }
  if (arguments.check) {
    const RunStart start{.device = device, .limit_bytes = limit, .costs = costs, .layouts = layouts, .ranks_are_processes = processes != nullptr, .resumes = arguments.resume};
    check_run(inputs, start, RoundPlanner(files.config, costs, run.fusion, followed ? followed->tasks : std::nullopt), arguments.json, mistakes);
    return 0;
  }
  mistakes.throw_if_any();
  survive_closed_pipes();
  if (const std::string reused = reuse_text(inputs.data); !reused.empty() && !arguments.json) print_line(reused);

  RunFolder folder(run.output, start_of(arguments));
  remove_when_stopped(folder.made());
  RunRecord record = [&] {
    const RankTask task = task_of(processes, "reading the model");
    return make_record(inputs, compute, device, limit);
  }();
  if (const std::optional<RunRecord> before = folder.record()) {
    compare_with(*before, record, folder.path(), mistakes);
    mistakes.throw_if_any();
    record.relief = before->relief;
    record.changes = before->changes;
    record.initial_adapters.insert(before->initial_adapters.begin(), before->initial_adapters.end());  // of jobs that go on from checkpoints
  }
  if (files.weights != nullptr) files.weights->drop_pages();  // the fingerprint has read them all
  if (limit > 0 && device.is_cpu()) set_memory_limit(tensor_limit(limit, device));
  BackboneUse use{.positions = longest_row(inputs.data) + arguments.sample_tokens};
  std::vector<std::unique_ptr<TrainingJob>> jobs = make_jobs(inputs, compute, device);
  check_rungs(jobs, mistakes);
  mistakes.throw_if_any();
  const PackingPolicy policy = packing_policy(run, files.config);
  std::vector<PipelineLayout> process_layouts;
  const Parallel parallel = parallel_of(run);
  std::vector<TensorShard> shards;
  if (processes != nullptr) {
    process_layouts = !layouts.empty() ? layouts : balanced_layouts(files.config, shapes_of(jobs), costs, policy, parallel);
    if (device.is_cpu()) {
      check_rank_weights_fit(run, limit, files.config, compute, device, process_layouts, ranks_on_first_host(*processes), mistakes);
    }
    mistakes.throw_if_any();
    processes->set_up({jobs_file, c10::toString(compute), device.is_cpu(), use.positions, process_layouts, record.model_fingerprint});
    use = backbone_use_of(process_layouts, 0, use.positions);
    shards = {use.shard};
  } else {
    for (const int64_t degree : parallel.tensor()) {
      for (int64_t index = 0; index < degree; ++index) shards.push_back({index, degree});
    }
  }
  const BackboneParts parts = [&] {
    const RankTask task = task_of(processes, "loading its part of the model");
    return emulated ? emulated_backbone(files.config, compute, *emulated, shards)
                    : load_backbone(files, compute, device, use, shards, run.memory);
  }();
  const std::shared_ptr<Backbone>& backbone = parts.at(parallel.replicas.front().tensor).front();

  std::map<std::string, JobProgress> progress;
  for (const auto& job : jobs) {
    if (arguments.resume) job->resume();
    progress[job->spec().name] = {job->state().step, job->state().last_eval_step};
  }
  const RungRecords rungs = arguments.resume ? read_rung_records(folder.path()) : RungRecords{};
  leave_as_they_were(jobs, rungs, record.changes, run.stay);

  finish_before_stopping();
  folder.begin(record);
  if (arguments.supervised != nullptr) arguments.supervised->has_begun();
  if (arguments.resume) {
    trim_metrics(folder.metrics_file(), progress);
    trim_tensorboard(folder.tensorboard_folder(), progress);
  }
  MetricsFile metrics(folder.metrics_file(), arguments.resume);
  std::vector<std::string> names;
  int64_t most_steps = 0;
  for (const auto& job : jobs) {
    names.push_back(job->spec().name);
    most_steps = std::max(most_steps, job->total_steps());
  }
  ProgressLines lines(names, most_steps);
  JsonEvents json_events;
  TrainerOptions options;
  if (processes != nullptr) {
    const auto leader = std::make_shared<RankLeader>(backbone, process_layouts, processes->take_links(*backbone, device));
    leader->change_weights = [backbone, &files](const BackboneUse& use_now) { backbone->use_for(files, use_now); };
    options.rank_group = leader;
    options.rank_link = processes->measured_link();
    options.gpu_messages = processes->gpu_messages();
    for (const RankProcess& rank : processes->ranks()) {
      options.rank_hosts.push_back(rank.host);
      options.largest_rank_weight_bytes = std::max(options.largest_rank_weight_bytes, rank.weight_bytes);
      if (rank.tensor_limit_bytes > 0) options.rank_tensor_limits.push_back(rank.tensor_limit_bytes);
    }
  }
  if (emulated) {
    options.rank_link = emulated->device->link;
    options.exchange_link = emulated->device->exchange_link;
  }
  if (processes == nullptr) {  // processes watch each other
    options.host = host_name();
    // Ten times a guess of what an action takes may be too little on a slow machine.
    options.hang_timeout_s = arguments.hang_timeout_s.value_or(profile || emulated ? default_hang_timeout_s : 20 * default_hang_timeout_s);
    options.at_hang = end_soon;
  }
  options.policy = policy;
  options.recompute = run.recompute;
  options.ranks = run.ranks;
  options.parallel = parallel;
  options.dispatch = run.dispatch;
  options.length_buckets = run.length_buckets;
  for (const auto& [degree, own] : parts) options.parts[degree].assign(own.begin(), own.end());
  options.pipeline_order = run.pipeline_order;
  options.rounds_at_once = run.rounds_at_once;
  options.interleave = run.interleave;
  options.fusion = run.fusion;
  options.device = device;
  options.costs = costs;
  options.refits_prices = options.learns_peaks = arguments.replan != "never";
  if (is_planned && arguments.replan == "auto") {
    options.plan_division = [question = division_question()](const DivisionRequest& request) { return plan_division_anew(question, request); };
  }
  if (followed) {
    options.followed = std::move(followed->tasks);
    options.packing = std::move(followed->packing);
  }
  options.layouts = std::move(layouts);
  options.memory_limit_bytes = limit;
  options.relief = record.relief;
  RunRecorder recorder(folder, record);
  const MeasuredTimes* times = emulated ? emulated->measured.get() : profile ? &profile->times : nullptr;
  RunPrediction prediction(*backbone, times, profile ? profile->profile.process_bytes : 0,
                           run.ranks);
  Sweeps sweeps(rungs);
  const auto configuration_alone = [&jobs_file](const TrainingJob& job, const std::string& name) {
    JobsFile alone = jobs_file;
    alone.jobs = {job.spec()};
    alone.run.output = output_beside(alone.run.output, name);
    return to_yaml(alone);
  };
  SweepFolder sweep_folder(folder.sweeps_folder(), sweeps, [configuration_alone](const TrainingJob& job) {
    return configuration_alone(job, job.spec().sweep.of + "-best");
  });
  options.observers = {&metrics, &recorder, &sweep_folder, &prediction, &lines};
  if (arguments.json) {
    lines.print_with([](const std::string&) {}, [] { return false; });  // for those who watch alone
    options.observers.push_back(&json_events);
  }
  TensorBoardLog tensorboard(folder.tensorboard_folder());
  if (run.tensorboard) options.observers.push_back(&tensorboard);
  SavedProgress saved_progress(arguments.supervised);
  if (arguments.supervised != nullptr) options.observers.push_back(&saved_progress);
  RunTrace trace(arguments.trace);
  if (!arguments.trace.empty()) options.observers.push_back(&trace);
  std::unique_ptr<SampleAnswers> samples;
  if (arguments.sample_tokens > 0) {
    samples = std::make_unique<SampleAnswers>(backbone, *inputs.text, arguments.sample_tokens, options.observers);
    options.observers.push_back(samples.get());
  }
  options.stop = &stop_requested();
  options.program_start = program_start;
  options.effective_configuration = [configuration_alone](const TrainingJob& job) { return configuration_alone(job, job.spec().name); };
  RunControl control({.folder = folder.path(),
                      .run = {jobs_file, files, *inputs.text, data_reading.in_background()},
                      .compute = compute,
                      .device = device,
                      .recorder = recorder,
                      .memory_limit_bytes = limit,
                      .allow_rows = [&](int64_t tokens) {
                        for (const auto& [degree, own] : parts) {
                          for (const auto& part : own) part->allow_rows(tokens + arguments.sample_tokens);
                        }
                      }});
  if (arguments.resume) control.show_losses(logged_losses(folder.path()));
  lines.tell_with([&control](const std::string& line) { control.tell(line); });
  control.attach(options);
  options.sweeps = &sweeps;
  Trainer trainer(backbone, std::move(jobs), std::move(options));
  control.open(trainer);
  const bool is_live = !arguments.json && !arguments.plain && processes == nullptr && has_live_terminal();
  const std::unique_ptr<LiveView> live = is_live ? live_view_of_this_run(control, lines) : nullptr;
  const RunSummary summary = run_to_the_end(trainer);
  if (live != nullptr) live->end();
  control.close();

  std::vector<const TrainingJob*> all;
  bool all_well = true;
  for (const auto& job : trainer.jobs()) {
    all.push_back(job.get());
    const JobStatus status = job->state().status;
    all_well = all_well && status != JobStatus::failed && status != JobStatus::refused;
  }
  std::string summary_text = summary_json(summary, all, standings_of(sweeps), prediction);
  if (summary.rounds == 0) summary_text = with_figures_of(folder.earlier_summary(), summary_text);
  folder.write_summary(summary_text);
  if (arguments.json) {
    print_line(summary_text);
  } else {
    print_run_report(summary, all, standings_of(sweeps), folder.path(), prediction);
  }
  if (summary.interrupted) return 130;
  return all_well && !output_failed() ? 0 : 1;
}

}  // namespace cotune
