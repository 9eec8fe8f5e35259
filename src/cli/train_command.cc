#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/run_setup.h"
#include "cli/sample_answers.h"
#include "engine/backbone.h"
#include "jobs/enum_names.h"
#include "jobs/jobs_file.h"
#include "jobs/memory_size.h"
#include "jobs/option_table.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"
#include "train/trainer.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

struct TrainArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  int64_t sample_tokens = 0;
  bool check = false, json = false, resume = false, overwrite = false;
};

std::atomic<bool> stop_requested{false};

extern "C" void request_stop(int) { stop_requested = true; }

void catch_signals() {
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESETHAND;  // a second Ctrl-C ends the program at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int64_t memory_limit(const RunSpec& run) {
  const auto size = parse_memory_size(run.memory);
  COTUNE_CHECK(size.has_value());
  const MemorySize wish = size.value();
  return wish.of(available_memory_bytes() + resident_bytes());
}

/// Refuses to mix two runs in one folder.
void prepare_folder(const fs::path& folder, const TrainArguments& arguments) {
  const fs::path run_file = folder / "run.json";
  if (fs::exists(run_file) && !arguments.resume && !arguments.overwrite) {
    throw_user_error("{}: holds a run already: pass --resume to go on with it, --overwrite to start again, or choose "
                     "another --output-dir", folder.string());
  }
  if (arguments.resume && !fs::exists(run_file)) throw_user_error("{}: holds no run to resume", folder.string());
  try {
    if (arguments.overwrite) fs::remove_all(folder / "jobs");
    fs::create_directories(folder / "jobs");
  } catch (const fs::filesystem_error& error) {
    throw SystemError(fmt::format("{}: cannot be prepared: {}", folder.string(), error.what()));
  }
}

void write_run_file(const fs::path& folder, const JobsFile& jobs_file, at::ScalarType compute, int64_t limit) {
  nlohmann::ordered_json json;
  json["cotune"] = 1;
  json["configuration"] = to_yaml(jobs_file);
  json["compute_dtype"] = c10::toString(compute);
  json["token_budget"] = jobs_file.run.token_budget;
  json["sharing"] = std::string(name_of(jobs_file.run.sharing));
  json["layout"] = std::string(name_of(jobs_file.run.layout));
  json["recompute"] = std::string(name_of(jobs_file.run.recompute));
  json["memory_limit_bytes"] = limit;
  write_file_atomically(folder / "run.json", json.dump(2) + "\n");
}

void report_check(const JobsFile& jobs_file, const std::vector<JobData>& data) {
  for (size_t i = 0; i < data.size(); ++i) {
    fmt::print("{:<16} {}\n", jobs_file.jobs[i].name, lengths_of(data[i].train).to_string());
    for (const FileReport& file : data[i].files) fmt::print("{:<16} {}\n", "", file.to_string());
  }
  fmt::print("{} jobs are ready to train\n", jobs_file.jobs.size());
}

void report_outputs(const fs::path& folder, const Trainer& trainer) {
  fmt::print("\n{:<16} {:<14} {:>19} {:>21}\n", "job", "ended", "held-out loss", "rows right");
  for (const auto& job : trainer.jobs()) {
    const JobState& state = job->state();
    const auto arrow = [](double before, double after, const char* format) {
      return std::isnan(after) ? std::string("-")
                               : fmt::format(fmt::runtime(std::string(format) + " -> " + format), before, after);
    };
    fmt::print("{:<16} {:<14} {:>19} {:>21}\n", job->spec().name, to_string(state.status),
               arrow(state.start_eval_loss, state.last_eval_loss, "{:.4f}"),
               arrow(100 * state.start_eval_accuracy, 100 * state.last_eval_accuracy, "{:.1f}%"));
  }
  fmt::print("\nadapters: {}/jobs/NAME/adapter   log: {}/metrics.jsonl\n", folder.string(), folder.string());
}

int train(const TrainArguments& arguments, std::chrono::steady_clock::time_point program_start) {
  install_counting_allocator();
  const JobsFile jobs_file = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::train);
  const RunSpec& run = jobs_file.run;
  if (run.device == "cuda") throw_user_error("run.device: cuda: this build has no CUDA plugin; cpu and auto are available");
  if (run.threads > 0) omp_set_num_threads(static_cast<int>(run.threads));
  std::unique_ptr<PortableKernels> portable;
  if (run.portable_kernels) portable = std::make_unique<PortableKernels>();

  const ModelFiles files = find_model(jobs_file.model);
  const ModelText text(files);
  check_adapters(jobs_file, files.config);
  std::vector<JobData> data = read_all_data(jobs_file, text, files.config);
  if (arguments.check) {
    report_check(jobs_file, data);
    return 0;
  }

  const fs::path folder = run.output;
  prepare_folder(folder, arguments);
  const at::ScalarType compute = compute_dtype(jobs_file.model);
  const int64_t limit = memory_limit(run);
  write_run_file(folder, jobs_file, compute, limit);
  const auto backbone = Backbone::load(files, compute, at::kCPU);
  release_unused_memory();

  std::vector<std::unique_ptr<TrainingJob>> jobs;
  for (size_t i = 0; i < jobs_file.jobs.size(); ++i) {
    const JobSpec& spec = jobs_file.jobs[i];
    jobs.push_back(std::make_unique<TrainingJob>(static_cast<int32_t>(i), spec, std::move(data[i]), files.config, compute,
                                                 at::kCPU, files.path.string(), folder / "jobs" / spec.name));
    if (arguments.resume) jobs.back()->resume();
  }

  MetricsFile metrics(folder / "metrics.jsonl", arguments.resume);
  ProgressLines lines;
  JsonLines json_lines;
  TrainerOptions options;
  options.policy.sharing = run.sharing;
  options.policy.layout = run.layout;
  options.policy.token_budget = run.token_budget;
  options.policy.chunk_size = run.chunk_size;
  options.recompute = run.recompute;
  options.memory_limit_bytes = limit;
  options.observers = {&metrics};
  if (arguments.json) {
    options.observers.push_back(&json_lines);
  } else {
    options.observers.push_back(&lines);
  }
  std::unique_ptr<SampleAnswers> samples;
  if (arguments.sample_tokens > 0 && !arguments.json) {
    samples = std::make_unique<SampleAnswers>(backbone, text, arguments.sample_tokens);
    options.observers.push_back(samples.get());
  }
  options.stop = &stop_requested;
  options.program_start = program_start;
  options.effective_configuration = [&](const TrainingJob& job) {
    JobsFile alone = jobs_file;
    alone.jobs = {job.spec()};
    return to_yaml(alone);
  };
  catch_signals();
  Trainer trainer(backbone, std::move(jobs), options);
  const RunSummary summary = trainer.run();

  std::vector<const TrainingJob*> all;
  bool all_well = true;
  for (const auto& job : trainer.jobs()) {
    all.push_back(job.get());
    const JobStatus status = job->state().status;
    all_well = all_well && status != JobStatus::failed && status != JobStatus::refused;
  }
  const std::string summary_text = summary_json(summary, all);
  write_file_atomically(folder / "summary.json", summary_text + "\n");
  if (arguments.json) {
    fmt::print("{}\n", summary_text);
  } else {
    report_outputs(folder, trainer);
  }
  if (summary.interrupted) return 130;
  return all_well ? 0 : 1;
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train the jobs of a jobs file together on one frozen model");
  command->add_option("jobs_file", arguments->jobs_file, "The jobs file (docs/jobs-file.md)")->required();
  command->add_option("--set", arguments->overrides, "key=value: replaces what the file says; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--sample-tokens", arguments->sample_tokens,
                      "Print each job's answer to its first held-out example before and after, up to so many tokens")
      ->check(CLI::Range(int64_t{0}, int64_t{4096}));
  command->add_flag("--check", arguments->check, "Check everything, data included, without training");
  command->add_flag("--json", arguments->json, "Events and summary as JSON lines on standard output");
  command->add_flag("--resume", arguments->resume, "Go on with the run in the output folder");
  command->add_flag("--overwrite", arguments->overwrite, "Start again in an output folder that holds a run");
  auto run_options = std::make_shared<std::map<std::string, std::string>>();
  for (const Option& option : option_table()) {
    if (option.section != Section::run) continue;
    std::string flag = "--" + option.key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (option.accepted.type == OptionType::boolean) {
      command->add_flag_callback(flag, [run_options, key = option.key] { (*run_options)[key] = "true"; }, option.description);
    } else {
      command->add_option_function<std::string>(
          flag, [run_options, key = option.key](const std::string& value) { (*run_options)[key] = value; },
          option.description);
    }
  }
  command->callback([arguments, run_options] {
    const auto program_start = std::chrono::steady_clock::now();
    for (const auto& [key, value] : *run_options) arguments->overrides.push_back("run." + key + "=" + value);
    exit_code() = train(*arguments, program_start);
  });
}

}  // namespace cotune
