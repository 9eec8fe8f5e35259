#include "cli/run/read_run.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/inputs/emulated_run.h"
#include "cli/inputs/profile_fingerprint.h"
#include "cli/inputs/usable_threads.h"
#include "cli/run/memory_check.h"
#include "cli/run/overwritten_inputs.h"
#include "cli/run/rank_checks.h"
#include "cli/run/rank_processes.h"
#include "cli/run/resumed_jobs.h"
#include "cli/run/supervised_run.h"
#include "console/output_file.h"
#include "jobs/emulated_file.h"
#include "jobs/found_chunk_size.h"
#include "jobs/jobs_file.h"
#include "jobs/parallel.h"
#include "ops/threads.h"
#include "schedule/chunk_size.h"
#include "train/checkpoint.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

bool has_record(const fs::path& output) { return fs::exists(output / "run.json"); }

/// The run in the folder was begun by this start, or one before it, of those that `--restarts` makes. A start that was to be the first has
/// found that there was none before its own.
bool own_start_began(const TrainArguments& arguments, const fs::path& output) {
  const SupervisedRun* supervised = arguments.supervised;
  return supervised != nullptr && (supervised->resumes() || (supervised->restart() > 0 && !arguments.overwrite && has_record(output)));
}

/// A launcher has started the run again that is in the folder, and that it had begun itself.
bool is_started_again(const TrainArguments& arguments, const fs::path& output) {
  return arguments.launch.restart > 0 && !own_start_began(arguments, output) && !arguments.resume && has_record(output) &&
         recorded_launch(output / "run.json") == arguments.launch.name;
}

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

/// Where an option of the run was given; its name alone where it was not.
OptionPlace place_in(const std::map<std::string, OptionPlace>& places, const std::string& option) {
  const auto given = places.find(option);
  return given != places.end() ? given->second : OptionPlace{.field = option};
}

/// Fills in a ReadRun, in the order of its functions. Mistakes of one keep the others from as little as can be.
class RunReader {
 public:
  explicit RunReader(ReadRun& read) : read_(read), arguments_(read.arguments), processes_(read.processes), mistakes_(read.mistakes) {}

  void read_jobs_file() {
    const HasCheckpoint has_checkpoint_here = [this](const std::string& output, const std::string& job) {
      const bool resumes = arguments_.resume || own_start_began(arguments_, output) || is_started_again(arguments_, output);
      return resumes && has_checkpoint(fs::path(output) / "jobs" / job);
    };
    reading_ = cotune::read_jobs_file(arguments_.jobs_file, arguments_.overrides, Purpose::train, mistakes_, has_checkpoint_here);
    is_sound_ = reading_.run;
    own_jobs_ = reading_.jobs_file.jobs.size();
  }

  void prepare_device() {
    const RunSpec& run = reading_.jobs_file.run;
    const std::string field = "run.device";
    try {
      read_.device = choose_device(run.device, field, {}, processes_ != nullptr ? processes_->process().local_rank : 0);
    } catch (const UserError& error) {
      const OptionPlace place = place_in(reading_.run_places, field);
      const std::string message = error.what(), prefix = field + ": ";
      mistakes_.add(place.file, place.line, place.field, message.starts_with(prefix) ? message.substr(prefix.size()) : message);
    }
    if (!read_.device.notice.empty()) fmt::print(stderr, "{}\n", read_.device.notice);
    usable_threads(run.threads, "run.threads");  // says where they are fewer
    if (processes_ != nullptr || run.threads > 0) {
      set_thread_count(threads_of_process(run, processes_ != nullptr ? processes_->on_cores_of(0) : 1));
    }
    if (run.portable_kernels) read_.portable = std::make_unique<PortableKernels>();
  }

  /// Whether the run begins or goes on, and what its folder has against it.
  void look_at_folder() {
    const std::string& output = reading_.jobs_file.run.output;
    const bool goes_on = is_started_again(arguments_, output);
    if (goes_on) fmt::print(stderr, "{}: was started again, and goes on from every job's last checkpoint\n", output);
    if (goes_on || own_start_began(arguments_, output)) {
      arguments_.resume = true;
      arguments_.overwrite = false;
    }
    if (!is_sound_) return;
    RunFolder::look(output, read_.start(), mistakes_);
    if (read_.start() == RunFolder::Start::overwrite) {
      check_overwritten_inputs(reading_, arguments_.jobs_file, {{"--plan", arguments_.plan}, {"--profile", arguments_.profile}}, mistakes_);
    }
    if (arguments_.resume) take_up_job_changes(reading_, mistakes_);
  }

  void read_inputs() {
    run_places_ = reading_.run_places;
    read_.data_reading.emplace(reading_.jobs_file.run);
    read_.inputs = cotune::read_inputs(std::move(reading_), *read_.data_reading, mistakes_);
    check_sample_tokens();
  }

  void read_emulated_times() {
    read_.compute = compute_dtype(read_.jobs_file().model, read_.device);
    if (!read_.device.is_emulated()) return;
    check_emulated();
    if (!has_config()) return;
    try {
      read_.emulated = cotune::read_emulated_times(emulated_file(run().device), config(), read_.jobs_file().model.dtype, parallel_of(run()));
      read_.device.name = read_.emulated->device->name;
      read_.compute = torch_dtype(read_.emulated->dtype);
    } catch (const UserError& error) {
      mistakes_.add("", 0, "", error.what());
    }
  }

  void follow_plan() {
    if (arguments_.plan.empty() || !is_sound_) return;
    const Parallel asked = parallel_of(run());
    std::map<std::string, OptionPlace> places = run_places_;
    if (processes_ != nullptr) places.erase("run.ranks");  // the launcher's; check_ranks compares it
    const bool may_choose_dtype = !read_.emulated && read_.jobs_file().model.dtype == "auto";
    read_.followed = cotune::follow_plan(arguments_.plan, read_.inputs.jobs_file, own_jobs_, places, has_config() ? &config() : nullptr,
                                         may_choose_dtype ? "" : dtype_name(read_.compute), mistakes_);
    if (!read_.emulated) read_.compute = compute_dtype(read_.jobs_file().model, read_.device);  // that of the plan where there was a choice
    if (read_.device.is_emulated() && parallel_of(run()) != asked) {
      mistakes_.add("--plan", 0, "", fmt::format("is for ranks {}, and run.device is emulated: give them by run.parallel too", run().parallel));
    }
    if (read_.followed) read_.layouts = read_.followed->layouts;
  }

  /// What the options ask of this model and these ranks.
  void check_options() {
    if (arguments_.hang_timeout_s && is_sound_ && (arguments_.plan.empty() || read_.followed) && run().ranks == 1) {
      mistakes_.add("--hang-timeout", 0, "", "is of ranks that watch each other, and there is one alone");
    }
    if (run().parallel == parallel_as_planned && run().ranks == 1 && is_sound_ && !read_.device.is_emulated()) {
      const OptionPlace place = place_in(run_places_, "run.parallel");
      mistakes_.add(place.file, place.line, place.field, "`auto` belongs to several ranks; run.ranks is 1");
    }
    if (run().chunk_size == chunk_size_as_found && mistakes_.empty()) find_chunk_size(read_.inputs.jobs_file.run, read_.inputs.data);
    if (is_sound_ && parallel_of(run()).divides_layers()) refuse_with_divided_layers();
    if (!arguments_.trace.empty()) check_output("--trace", arguments_.trace, trace_output, mistakes_);
    if (has_config() && is_sound_) {
      check_ranks(run(), run_places_, config(), {.count = processes_ != nullptr ? processes_->process().size : 0, .on_cpu = read_.device.is_cpu()},
                  arguments_.plan, mistakes_);
    }
  }

  void limit_memory() {
    if (read_.device.is_emulated()) return;
    read_.limit_bytes = memory_limit(run(), read_.device, processes_ != nullptr ? processes_->on_host_of(0) : 1);
    if (has_config() && read_.device.is_cpu() && processes_ == nullptr) {
      check_weights_fit(run().memory, place_in(run_places_, "run.memory"), read_.limit_bytes, config(), read_.compute,
                        parallel_of(run()).tensor().size(), [this] { return needed_by_jobs(); }, mistakes_);
    }
  }

  void find_costs() {
    if (has_config() && !read_.device.is_emulated()) {
      try {
        read_.profile = profile_for(arguments_.profile, config(), read_.compute, read_.device, ranks_here(run(), processes_));
      } catch (const UserError& error) {
        mistakes_.add("", 0, "", error.what());
      }
    }
    const int64_t sharing_ranks = !read_.device.is_cpu() ? 1 : processes_ != nullptr ? processes_->on_cores_of(0) : run().ranks;
    read_.costs = read_.emulated  ? read_.emulated->costs
                  : read_.profile ? measured_costs(read_.compute, read_.device, read_.profile->times, arguments_.profile, sharing_ranks)
                                  : roofline_costs(read_.compute, read_.device, sharing_ranks);
  }

  void divide() {
    read_.is_planned = run().parallel == parallel_as_planned;
    if (!read_.is_planned || !mistakes_.empty() || read_.inputs.text == nullptr) return;
    read_.layouts =
        divide_as_planned(read_.inputs.jobs_file.run, read_.division_question(), shapes_of(read_.jobs_file(), read_.inputs.data, config()));
  }

 private:
  const RunSpec& run() const { return read_.run(); }
  const ModelConfig& config() const { return read_.files().config; }
  bool has_config() const { return read_.inputs.model.has_config; }

  /// 0 where mistakes leave open what the jobs are.
  int64_t needed_by_jobs() const {
    if (!mistakes_.empty()) return 0;
    try {
      std::vector<std::unique_ptr<TrainingJob>> jobs;
      for (size_t i = 0; i < read_.inputs.data.size(); ++i) {
        jobs.push_back(make_job(i, read_.jobs_file().jobs[i], read_.inputs.data[i], run().output, read_.files(), read_.compute, read_.device));
      }
      return needed_by_any_job(jobs, run(), read_.files(), read_.compute, read_.device);
    } catch (const UserError&) {  // of a job, which a larger limit would show
      return 0;
    }
  }

  void check_sample_tokens() {
    if (arguments_.sample_tokens == 0) return;
    if (read_.inputs.text != nullptr && !read_.inputs.text->has_tokenizer()) {
      mistakes_.add("--sample-tokens", 0, "", "needs a model with a tokenizer, to read the prompt and the answer");
    }
    if (processes_ != nullptr) {
      mistakes_.add("--sample-tokens", 0, "", "needs the whole model in one process: `cotune generate` answers when the run is over");
    }
  }

  void refuse_with_divided_layers() {
    const auto refuse = [&](const char* option, const char* why) {
      mistakes_.add(option, 0, "", fmt::format("{}, but run.parallel is {}: take it away, or let ranks have whole layers", why, run().parallel));
    };
    if (arguments_.sample_tokens > 0) refuse("--sample-tokens", "answers are written by one rank that has the whole model");
    if (!arguments_.profile.empty()) refuse("--profile", "profiles are of whole layers");
  }

  /// Options that mean nothing where nothing is computed, and a launcher, whose processes do not share a clock.
  void check_emulated() {
    const auto refuse = [&](const char* option, const char* why) {
      mistakes_.add(option, 0, "", fmt::format("{}, and run.device is emulated", why));
    };
    if (arguments_.sample_tokens > 0) refuse("--sample-tokens", "answers are those of a trained adapter");
    if (arguments_.resume) refuse("--resume", "a run is resumed from checkpoints");
    if (arguments_.restarts > 0) refuse("--restarts", "a run is started again from checkpoints");
    if (arguments_.check) refuse("--check", "says what a run takes of this machine's memory");
    if (!arguments_.profile.empty()) refuse("--profile", "times are those of the file of run.device");
    if (processes_ != nullptr) refuse("run.device", "ranks are processes of a launcher; accepted are threads of one program (run.ranks)");
    if (run().parallel == parallel_as_planned) {
      refuse("run.parallel", "is auto, for which the planner would choose among divisions of this machine; accepted are stages, and degrees");
    }
    if (parallel_of(run()).shards_weights()) refuse("run.parallel", "has shard, and there are no weights; `cotune plan` says what they would take");
    check_emulated_run(run_places_, mistakes_);
    for (const JobSpec& job : read_.jobs_file().jobs) check_emulated_job(job, mistakes_);
  }

  ReadRun& read_;
  TrainArguments& arguments_;
  RankProcesses* const processes_;
  Diagnostics& mistakes_;
  JobsFileReading reading_;
  bool is_sound_ = false;  ///< the section `run`
  size_t own_jobs_ = 0;    ///< those of the jobs file
  std::map<std::string, OptionPlace> run_places_;
};

}  // namespace

RunFolder::Start ReadRun::start() const {
  using Start = RunFolder::Start;
  return arguments.resume ? Start::resume : arguments.overwrite ? Start::overwrite : Start::fresh;
}

DivisionQuestion ReadRun::division_question() const {
  WeightForms weights = weight_forms(stored_dtype(files()), compute, device);
  weights.are_shared = processes == nullptr;
  return {.run = run(),
          .model = files().config,
          .costs = costs,
          .memory_bytes = tensor_limit(limit_bytes, device),
          .weights = weights,
          .hosts = processes != nullptr ? processes->host_count() : 1,
          .dtype = costs.machine.dtype,
          .may_divide_layers = arguments.sample_tokens == 0 && arguments.profile.empty(),
          .may_be_sequence_parallel = run().interleave != Interleave::always,
          .may_shard_weights = processes != nullptr && device.is_cpu()};
}

std::unique_ptr<ReadRun> read_run(TrainArguments arguments, RankProcesses* processes) {
  auto read = std::make_unique<ReadRun>();
  read->arguments = std::move(arguments);
  read->processes = processes;
  RunReader reader(*read);
  reader.read_jobs_file();
  reader.prepare_device();
  reader.look_at_folder();
  reader.read_inputs();
  reader.read_emulated_times();
  reader.follow_plan();
  reader.check_options();
  reader.limit_memory();
  reader.find_costs();
  reader.divide();
  return read;
}

}  // namespace cotune
