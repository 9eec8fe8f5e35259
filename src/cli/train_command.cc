#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/json_events.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/run_report.h"
#include "cli/run_setup.h"
#include "cli/sample_answers.h"
#include "cli/stop_signals.h"
#include "engine/backbone.h"
#include "jobs/jobs_file.h"
#include "jobs/memory_size.h"
#include "jobs/option_table.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "train/metrics_file.h"
#include "train/run_folder.h"
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

int64_t memory_limit(const RunSpec& run, const ComputeDevice& device) {
  const auto size = parse_memory_size(run.memory);
  COTUNE_CHECK(size.has_value());
  const MemorySize wish = size.value();
  return wish.of(device.is_cpu() ? available_memory_bytes() + resident_bytes() : device.memory().free_bytes);
}

RunRecord make_record(const JobsFile& jobs_file, const ModelFiles& files, const std::vector<JobData>& data,
                      at::ScalarType compute, const ComputeDevice& device, int64_t limit) {
  RunRecord record;
  record.configuration = jobs_file;
  record.model_fingerprint = model_fingerprint(files);
  record.compute_dtype = c10::toString(compute);
  record.instruction_set = device.is_cpu() ? to_string(kernel_isa(compute, at::kCPU)) : device.name;
  record.memory_limit_bytes = limit;
  for (size_t i = 0; i < data.size(); ++i) record.data_hashes[jobs_file.jobs[i].name] = content_hash(data[i]);
  return record;
}

/// Refuses to go on with a run as something else than it was. Before anything is written.
void compare_with(const RunRecord& before, const RunRecord& now, const fs::path& folder) {
  const std::vector<std::string> lines = differences(before, now);
  if (!lines.empty()) {
    throw_user_error("{}: this run cannot be resumed with other settings (its own first):\n  {}",
                     (folder / "run.json").string(), fmt::join(lines, "\n  "));
  }
  if (before.instruction_set != now.instruction_set) {
    fmt::print(stderr, "{}: was computed with {} kernels so far and goes on with {}: the last bits will differ\n",
               folder.string(), before.instruction_set, now.instruction_set);
  }
}

int64_t longest_row(const std::vector<JobData>& data) {
  int64_t longest = 0;
  for (const JobData& job : data) {
    for (const Dataset* dataset : {&job.train, &job.eval}) longest = std::max(longest, lengths_of(*dataset).max);
  }
  return longest;
}

/// Refuses a limit that the model alone exceeds, and holds loading to it.
void limit_loading(const std::string& asked, int64_t limit, const ModelConfig& config, at::ScalarType compute) {
  const kernels::Isa isa = kernel_isa(compute, at::kCPU);
  // f32 weights in parts take as many as their values need: one at least.
  const MemoryFacts facts{.element_size = static_cast<int64_t>(c10::elementSize(compute)),
                          .packed = isa != kernels::Isa::none,
                          .parts = isa == kernels::Isa::amx_f32 ? 1 : 0};
  const int64_t weights = predict_weight_bytes(config, facts), outside = resident_bytes() - memory_usage().held_bytes;
  const int64_t left = tensor_limit_within(limit, outside);
  if (weights > left) {
    constexpr double mib = 1024.0 * 1024.0;
    throw_user_error("run.memory: {}: the model alone takes {:.0f} MiB of the {:.0f} MiB that are left for it", asked,
                     static_cast<double>(weights) / mib, static_cast<double>(left) / mib);
  }
  set_memory_limit(left);
}

/// Keeps run.json up to date with what holds the memory limit.
class ReliefRecorder : public RunObserver {
 public:
  ReliefRecorder(RunFolder& folder, RunRecord record) : folder_(folder), record_(std::move(record)) {}
  void on_relief(const MemoryRelief& relief) override {
    record_.relief = relief;
    folder_.update(record_);
  }

 private:
  RunFolder& folder_;
  RunRecord record_;
};

void report_check(const JobsFile& jobs_file, const std::vector<JobData>& data) {
  for (size_t i = 0; i < data.size(); ++i) {
    fmt::print("{:<16} {}\n", jobs_file.jobs[i].name, lengths_of(data[i].train).to_string());
    for (const FileReport& file : data[i].files) fmt::print("{:<16} {}\n", "", file.to_string());
  }
  fmt::print("{} jobs are ready to train\n", jobs_file.jobs.size());
}

RunSummary run_to_the_end(Trainer& trainer) {
  try {
    return trainer.run();
  } catch (const SystemError& error) {
    throw SystemError(fmt::format("{}\nThe run ends here. Once that is mended, --resume goes on from every job's last "
                                  "checkpoint.", error.what()));
  }
}

int train(const TrainArguments& arguments, std::chrono::steady_clock::time_point program_start) {
  catch_stop_signals();
  install_counting_allocator();
  const JobsFile jobs_file = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::train);
  const RunSpec& run = jobs_file.run;
  const ComputeDevice device = choose_device(run.device, "run.device");
  if (!device.notice.empty()) fmt::print(stderr, "{}\n", device.notice);
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
  survive_closed_pipes();

  using Start = RunFolder::Start;
  RunFolder folder(run.output, arguments.resume ? Start::resume : arguments.overwrite ? Start::overwrite : Start::fresh);
  const at::ScalarType compute = compute_dtype(jobs_file.model, device);
  const int64_t limit = memory_limit(run, device);
  RunRecord record = make_record(jobs_file, files, data, compute, device, limit);
  if (const std::optional<RunRecord> before = folder.record()) {
    compare_with(*before, record, folder.path());
    record.relief = before->relief;
  }
  files.weights->drop_pages();  // the fingerprint has read them all
  if (device.is_cpu()) limit_loading(run.memory, limit, files.config, compute);
  const auto backbone = Backbone::load(files, compute, device.device, {.positions = longest_row(data) + arguments.sample_tokens});

  std::vector<std::unique_ptr<TrainingJob>> jobs;
  std::map<std::string, JobProgress> progress;
  for (size_t i = 0; i < jobs_file.jobs.size(); ++i) {
    const JobSpec& spec = jobs_file.jobs[i];
    jobs.push_back(std::make_unique<TrainingJob>(static_cast<int32_t>(i), spec, std::move(data[i]), files.config, compute,
                                                 device.device, files.path.string(), folder.job_folder(spec.name)));
    if (arguments.resume) jobs.back()->resume();
    progress[spec.name] = {jobs.back()->state().step, jobs.back()->state().last_eval_step};
  }

  folder.begin(record);
  if (arguments.resume) trim_metrics(folder.metrics_file(), progress);
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
  options.policy.sharing = run.sharing;
  options.policy.layout = run.layout;
  options.policy.token_budget = run.token_budget;
  options.policy.chunk_size = run.chunk_size;
  options.recompute = run.recompute;
  options.device = device;
  options.memory_limit_bytes = limit;
  options.relief = record.relief;
  ReliefRecorder relief_recorder(folder, record);
  options.observers = {&metrics, &relief_recorder};
  if (arguments.json) {
    options.observers.push_back(&json_events);
  } else {
    options.observers.push_back(&lines);
  }
  std::unique_ptr<SampleAnswers> samples;
  if (arguments.sample_tokens > 0 && !arguments.json) {
    samples = std::make_unique<SampleAnswers>(backbone, text, arguments.sample_tokens, name_column_width(names));
    options.observers.push_back(samples.get());
  }
  options.stop = &stop_requested();
  options.program_start = program_start;
  options.effective_configuration = [&](const TrainingJob& job) {
    JobsFile alone = jobs_file;
    alone.jobs = {job.spec()};
    return to_yaml(alone);
  };
  Trainer trainer(backbone, std::move(jobs), options);
  finish_before_stopping();
  const RunSummary summary = run_to_the_end(trainer);

  std::vector<const TrainingJob*> all;
  bool all_well = true;
  for (const auto& job : trainer.jobs()) {
    all.push_back(job.get());
    const JobStatus status = job->state().status;
    all_well = all_well && status != JobStatus::failed && status != JobStatus::refused;
  }
  const std::string summary_text = summary_json(summary, all);
  folder.write_summary(summary_text);
  if (arguments.json) {
    print_line(summary_text);
  } else {
    print_run_report(summary, all, folder.path());
  }
  if (summary.interrupted) return 130;
  return all_well && !output_failed() ? 0 : 1;
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
