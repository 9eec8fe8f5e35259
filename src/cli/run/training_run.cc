#include "cli/run/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/reporting/json_events.h"
#include "cli/reporting/progress.h"
#include "cli/reporting/run_prediction.h"
#include "cli/reporting/run_report.h"
#include "cli/reporting/run_trace.h"
#include "cli/run/live_run.h"
#include "cli/run/loaded_run.h"
#include "cli/run/rank_processes.h"
#include "cli/run/read_run.h"
#include "cli/run/run_control.h"
#include "cli/run/run_recorder.h"
#include "cli/run/sample_answers.h"
#include "cli/run/saved_progress.h"
#include "cli/run/start_check.h"
#include "cli/run/trainer_setup.h"
#include "cli/terminal/stop_signals.h"
#include "console/output.h"
#include "jobs/jobs_file.h"
#include "train/metrics_file.h"
#include "train/sweep_folder.h"
#include "train/tensorboard_log.h"
#include "train/trainer.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

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

/// Whether the other processes have the model that this one has. Adds what is wrong there to the mistakes.
void check_models_of_processes(ReadRun& read) {
  try {
    read.processes->set_up({.jobs_file = read.jobs_file(),
                            .compute_dtype = c10::toString(read.compute),
                            .on_cpu = read.device.is_cpu(),
                            .model_fingerprint =
                                [&files = read.files()] {
                                  std::string fingerprint = model_fingerprint(files);
                                  files.weights->drop_pages();
                                  return fingerprint;
                                },
                            .loads = false},
                           read.files());
    read.processes->wait_until_compared();
  } catch (const UserError& error) {
    read.mistakes.add(error);
  }
}

/// `--check`.
void report_check(ReadRun& read) {
  if (read.processes != nullptr && read.mistakes.empty()) check_models_of_processes(read);
  const RunStart start{.device = read.device,
                       .limit_bytes = read.limit_bytes,
                       .costs = read.costs,
                       .layouts = read.layouts,
                       .ranks_are_processes = read.processes != nullptr,
                       .resumes = read.arguments.resume};
  RoundPlanner planner(read.files().config, read.costs, read.run().fusion, read.followed ? read.followed->tasks : std::nullopt);
  check_run(read.inputs, start, std::move(planner), read.arguments.json, read.mistakes);
}

/// The jobs file that has this job alone, and its output beside the run's.
std::string configuration_alone(const JobsFile& jobs_file, const TrainingJob& job, const std::string& name) {
  JobsFile alone = jobs_file;
  alone.jobs = {job.spec()};
  alone.run.output = output_beside(alone.run.output, name);
  return to_yaml(alone);
}

ProgressLines lines_for(const std::vector<std::unique_ptr<TrainingJob>>& jobs) {
  std::vector<std::string> names;
  int64_t most_steps = 0;
  for (const auto& job : jobs) {
    names.push_back(job->spec().name);
    most_steps = std::max(most_steps, job->total_steps());
  }
  return ProgressLines(names, most_steps);
}

/// Who writes down, tells and draws what happens in a run.
class Observers {
 public:
  /// Both must outlive this.
  Observers(const ReadRun& read, LoadedRun& loaded)
      : sweeps(loaded.rungs),
        recorder(loaded.folder, loaded.record),
        lines(lines_for(loaded.jobs)),
        prediction(*loaded.backbone(), read.emulated  ? read.emulated->measured.get()
                                       : read.profile ? &read.profile->times
                                                      : nullptr,
                   read.profile ? read.profile->profile.process_bytes : 0, read.run().ranks),
        metrics_(loaded.folder.metrics_file(), read.arguments.resume),
        sweep_folder_(loaded.folder.sweeps_folder(), sweeps,
                      [&read](const TrainingJob& job) { return configuration_alone(read.jobs_file(), job, job.spec().sweep.of + "-best"); }),
        tensorboard_(loaded.folder.tensorboard_folder()),
        saved_progress_(read.arguments.supervised),
        trace_(read.arguments.trace) {
    all_ = {&metrics_, &recorder, &sweep_folder_, &prediction, &lines};
    if (read.arguments.json) {
      lines.print_with([](const std::string&) {}, [] { return false; });  // for those who watch alone
      all_.push_back(&json_events_);
    }
    if (read.run().tensorboard) all_.push_back(&tensorboard_);
    if (read.arguments.supervised != nullptr) all_.push_back(&saved_progress_);
    if (!read.arguments.trace.empty()) all_.push_back(&trace_);
    if (read.arguments.sample_tokens > 0) {
      samples_ = std::make_unique<SampleAnswers>(loaded.backbone(), *read.inputs.text, read.arguments.sample_tokens, all_);
      all_.push_back(samples_.get());
    }
  }
  const std::vector<RunObserver*>& all() const { return all_; }

  Sweeps sweeps;
  RunRecorder recorder;
  ProgressLines lines;
  RunPrediction prediction;

 private:
  MetricsFile metrics_;
  JsonEvents json_events_;
  SweepFolder sweep_folder_;
  TensorBoardLog tensorboard_;
  SavedProgress saved_progress_;
  RunTrace trace_;
  std::unique_ptr<SampleAnswers> samples_;
  std::vector<RunObserver*> all_;
};

ControlledRun controlled(const ReadRun& read, const LoadedRun& loaded, RunRecorder& recorder) {
  const auto allow_rows = [&read, &loaded](int64_t tokens) {
    for (const auto& [degree, own] : loaded.parts) {
      for (const auto& part : own) part->allow_rows(tokens + read.arguments.sample_tokens);
    }
  };
  return {.folder = loaded.folder.path(),
          .run = {read.jobs_file(), read.files(), *read.inputs.text, read.data_reading->in_background()},
          .compute = read.compute,
          .device = read.device,
          .recorder = recorder,
          .memory_limit_bytes = read.limit_bytes,
          .allow_rows = allow_rows};
}

/// Writes and prints how the run ended; returns the exit code.
int report(const RunSummary& summary, const Trainer& trainer, const Observers& observers, const ReadRun& read, RunFolder& folder) {
  std::vector<const TrainingJob*> jobs;
  bool all_well = true;
  for (const auto& job : trainer.jobs()) {
    jobs.push_back(job.get());
    const JobStatus status = job->state().status;
    all_well = all_well && status != JobStatus::failed && status != JobStatus::refused;
  }
  std::string text = summary_json(summary, jobs, standings_of(observers.sweeps), observers.prediction);
  if (summary.rounds == 0) text = with_figures_of(folder.earlier_summary(), text);
  folder.write_summary(text);
  if (read.arguments.json) {
    print_line(text);
  } else {
    print_run_report(summary, jobs, standings_of(observers.sweeps), folder.path(), observers.prediction);
  }
  if (summary.interrupted) return 130;
  return all_well && !output_failed() ? 0 : 1;
}

}  // namespace

int train(TrainArguments arguments, RankProcesses* processes, std::chrono::steady_clock::time_point program_start) {
  catch_stop_signals();
  const std::unique_ptr<ReadRun> read = read_run(std::move(arguments), processes);
  if (read->arguments.check) {
    report_check(*read);
    return 0;
  }
  read->mistakes.throw_if_any();
  survive_closed_pipes();
  const bool json = read->arguments.json;
  if (const std::string reused = reuse_text(read->inputs.data); !reused.empty() && !json) print_line(reused);
  if (const std::string dtype = chosen_dtype_text(read->jobs_file().model, read->device); !dtype.empty() && !json) print_line(dtype);

  const std::unique_ptr<LoadedRun> loaded = load_run(*read);
  begin_run(*read, *loaded);
  Observers observers(*read, *loaded);
  TrainerOptions options = trainer_options(*read, *loaded);
  options.observers = observers.all();
  options.sweeps = &observers.sweeps;
  options.program_start = program_start;
  options.before_writing = [&loaded] { loaded->folder.check_is_ours(); };
  options.effective_configuration = [&read](const TrainingJob& job) { return configuration_alone(read->jobs_file(), job, job.spec().name); };
  RunControl control(controlled(*read, *loaded, observers.recorder));
  if (read->arguments.resume) control.show_losses(logged_losses(loaded->folder.path()));
  observers.lines.tell_with([&control](const std::string& line) { control.tell(line); });
  control.attach(options);
  Trainer trainer(loaded->backbone(), std::move(loaded->jobs), std::move(options));
  const auto run_and_report = [&] {
    control.open(trainer);
    const bool is_live = !json && !read->arguments.plain && processes == nullptr && has_live_terminal();
    const std::unique_ptr<LiveView> live = is_live ? live_view_of_this_run(control, observers.lines, !read->emulated) : nullptr;
    const RunSummary summary = run_to_the_end(trainer);
    if (live != nullptr) live->end();
    control.close();
    return report(summary, trainer, observers, *read, loaded->folder);
  };
  return processes != nullptr ? processes->ending_all_with_code_of(run_and_report) : run_and_report();
}

}  // namespace cotune
