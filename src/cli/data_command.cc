#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/visible_text.h"
#include "cli/commands.h"
#include "cli/inputs/run_setup.h"
#include "cli/inputs/unread_overrides.h"
#include "data/example.h"
#include "jobs/job_list.h"
#include "jobs/jobs_file.h"
#include "watch/terminal.h"

namespace cotune {
namespace {

struct DataArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  std::string job;
  int64_t count = 3;
  bool eval = false, tokens = false;
};

void show_example(const Dataset& dataset, int64_t index, const ModelText& text, bool tokens) {
  const Example example = dataset.example(index);
  int64_t learned = 0;
  for (const uint8_t flag : example.learned) learned += flag;
  fmt::print("--- {}:{}: {}, {} learned\n", visible_text(example.source), example.line, counted(std::ssize(example.tokens), "token"),
             learned);
  const Marking marking = has_drawing_terminal() && wants_colour() ? Marking::colour : Marking::brackets;
  fmt::print("{}\n", describe_example(example, text.encoder(), marking));
  if (!tokens) return;
  for (size_t i = 0; i < example.tokens.size(); ++i) {
    fmt::print("{}{}{}", i == 0 ? "" : " ", example.tokens[i], example.learned[i] != 0 ? "*" : "");
  }
  fmt::print("\n");
}

/// What weights make of an epoch.
void show_shares(const JobSpec& job, const Dataset& train) {
  if (!has_weights(job.data) || train.empty()) return;
  const std::vector<int64_t> sizes = share_sizes(batch_order(job, train));
  for (size_t i = 0; i < sizes.size(); ++i) {
    fmt::print("  {} of the {} of an epoch are from {} (weight {}), which holds {}\n", sizes[i], counted(train.size(), "example"),
               visible_text(job.data.train[i].path), job.data.train[i].weight, train.source_size(i));
  }
}

void show_job(const JobSpec& job, const JobData& data, const DataArguments& arguments,
              const ModelText& text) {
  fmt::print("job {}\n", job.name);
  for (const FileReport& file : data.files) {
    fmt::print("  {}\n", visible_text(file.to_string()));
    for (const std::string& warning : file.warnings()) fmt::print("  warning: {}\n", visible_text(warning));
  }
  if (!data.cache_file.empty()) fmt::print("  tokenized {}: {}\n", data.was_cached ? "before" : "now", visible_text(data.cache_file));
  show_shares(job, data.train);
  fmt::print("  train:    {}\n", lengths_of(data.train).to_string());
  if (!data.eval.empty()) fmt::print("  held out: {}\n", lengths_of(data.eval).to_string());
  if (arguments.eval && data.eval.empty()) fmt::print("  holds out no examples\n");
  const Dataset& shown = arguments.eval ? data.eval : data.train;
  for (int64_t i = 0; i < std::min(arguments.count, shown.size()); ++i)
    show_example(shown, i, text, arguments.tokens);
  fmt::print("\n");
}

/// The jobs that --job leaves, or all.
std::vector<const JobSpec*> chosen_jobs(const JobsFile& jobs_file, const std::string& name) {
  std::vector<const JobSpec*> chosen;
  std::vector<std::string> names;
  for (const JobSpec& job : jobs_file.jobs) {
    names.push_back(job.name);
    if (name.empty() || job.name == name) chosen.push_back(&job);
  }
  if (chosen.empty())
    throw_user_error("--job: no job is called `{}`; there are {}", name, job_list(names, sweeps_of(jobs_file.jobs)));
  return chosen;
}

void show_data(const DataArguments& arguments) {
  if (arguments.count == 0 && (arguments.eval || arguments.tokens)) {
    throw_user_error("--count: 0 shows no example, so --eval and --tokens have no effect");
  }
  Diagnostics mistakes;
  JobsFileReading reading =
      read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::train, mistakes);
  refuse_unread(reading.run_places, {"run.data_cache", "run.data_cache_gib", "run.threads"}, "data", mistakes);
  check_preset(reading, mistakes);
  ModelParts model;
  if (reading.model) model = find_model(reading.jobs_file.model, mistakes);
  mistakes.throw_if_any();
  const ModelText text(model.files);
  const DataReading data_reading(reading.jobs_file.run);
  bool holds_out = false;
  const std::vector<const JobSpec*> jobs = chosen_jobs(reading.jobs_file, arguments.job);
  for (const JobSpec* job : jobs) {
    const JobData data = read_data(*job, text, model.files.config, data_reading, mistakes, place_of_model(reading));
    holds_out = holds_out || !data.eval.empty();
    show_job(*job, data, arguments, text);
  }
  mistakes.throw_if_any();
  if (arguments.eval && !holds_out) {
    throw_user_error("--eval: {}; `data.eval` or `data.eval_fraction` gives held-out examples",
                     jobs.size() == 1 ? "the job holds out no examples" : "no job holds out examples");
  }
}

}  // namespace

void add_data_command(CLI::App& app) {
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* command =
      app.add_subcommand("data", "Show what the jobs learn: examples with the learned tokens marked");
  command->add_option("jobs_file", arguments->jobs_file, "The jobs file (docs/jobs-file.md)")->required();
  command
      ->add_option("--set", arguments->overrides, "key=value: replaces what the file says; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--job", arguments->job, "This job only");
  command->add_option("--count", arguments->count, "Examples per job")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}));
  command->add_flag("--eval", arguments->eval, "Held-out examples instead of training examples");
  command->add_flag("--tokens", arguments->tokens, "Token ids too, learned ones with a star");
  command->callback([arguments] { show_data(*arguments); });
}

}  // namespace cotune
