#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/manual/command_description.h"
#include "cli/run/hung_ranks.h"
#include "cli/run/rank_processes.h"
#include "cli/run/supervised_run.h"
#include "cli/run/training_run.h"
#include "cli/terminal/number_checks.h"
#include "comm/launcher.h"
#include "console/command_line.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"
#include "ops/memory.h"

namespace cotune {
namespace {

/// In this process alone, or as one of those that were launched together.
int train_here(TrainArguments arguments, std::optional<LaunchedProcess> launched, std::chrono::steady_clock::time_point start) {
  install_counting_allocator();
  SupervisedRun* supervised = arguments.supervised;
  if (!launched || launched->size == 1) return train(arguments, nullptr, start);
  if (supervised != nullptr) launched->own_restart = supervised->restart();
  if (launched->rank > 0) return follow_first_rank(*launched, supervised);
  RankProcesses processes(*launched, arguments.hang_timeout_s.value_or(default_hang_timeout_s), supervised);
  if (supervised != nullptr && supervised->gives_up()) {
    processes.end_for_good();
    return 1;
  }
  arguments.overrides.insert(arguments.overrides.begin(), fmt::format("--ranks={}", launched->size));
  try {
    return processes.ending_all_with_code_of([&] { return train(arguments, &processes, start); });
  } catch (const UserError&) {
    if (processes.end_for_good() && supervised != nullptr) supervised->ends_for_good();
    throw;
  }
}

/// As a process that supervised_run.h starts: what would end the next one alike, ends this one for good.
int train_supervised(TrainArguments arguments, const std::optional<LaunchedProcess>& launched, SupervisedRun& supervised) {
  arguments.supervised = &supervised;
  const bool is_first = !launched || launched->rank == 0, is_alone = !launched || launched->size == 1;
  try {
    const auto start = supervised.restart() == 0 ? program_start() : std::chrono::steady_clock::now();
    const int code = train_here(std::move(arguments), launched, start);
    if (is_first) supervised.ends_for_good();
    return code;
  } catch (const UserError&) {
    if (is_alone) supervised.ends_for_good();
    throw;
  } catch (const RanksMissing&) {
    supervised.ends_for_good();
    throw;
  }
}

int train_as_asked(TrainArguments arguments) {
  const Environment environment = environment_of_this_process();
  const std::optional<LaunchedProcess> launched = launched_process(environment);
  arguments.launch = launch_of(environment, name_of_process(::getppid()));
  if (arguments.restarts == 0 || arguments.check) return train_here(arguments, launched, program_start());
  RestartSettings settings{.restarts = arguments.restarts, .json = arguments.json};
  if (launched) {
    settings.rank = launched->rank;
    settings.size = launched->size;
  }
  return run_with_restarts(settings, [&](SupervisedRun& supervised) { return train_supervised(arguments, launched, supervised); });
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command =
      app.add_subcommand("train", "Train the jobs of a jobs file together on one frozen model");
  command->add_option("jobs_file", arguments->jobs_file, "The jobs file (docs/jobs-file.md)")->required();
  command
      ->add_option("--set", arguments->overrides, "key=value: replaces what the file says; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--sample-tokens", arguments->sample_tokens,
          "Print each job's answer to its first held-out example before and after, up to so many tokens")
      ->check(CLI::Range(int64_t{0}, int64_t{4096}));
  command->add_flag("--check", arguments->check,
                    "Find everything that a start would refuse, data and memory included, without training");
  command->add_option("--profile", arguments->profile, "A profile of this device (cotune profile): predicts the time of rounds");
  command->add_option("--plan", arguments->plan,
                      "Follow this plan (cotune plan --output): its replicas and stages, order, hybrid tasks, sharing, layout and token budget");
  command
      ->add_option("--replan", arguments->replan,
                   "What is planned anew from measured times and peaks while the run goes on: prices, by which jobs are grouped, rounds ordered and "
                   "rows dealt, and peaks, by which jobs are admitted; auto: under --parallel auto the division of ranks besides; "
                   "never: none (auto; docs/planning.md)")
      ->check(CLI::IsMember({"auto", "prices", "never"}));
  command->add_option("--trace", arguments->trace,
                      "Write rounds, microbatches, optimizer steps, evaluations and checkpoints, of several ranks beside what was planned, for "
                      "ui.perfetto.dev (docs/watching.md)");
  command
      ->add_option("--hang-timeout", arguments->hang_timeout_s,
                   fmt::format("Seconds (1 to 86400) without progress after which one of several ranks counts as hung, and all end ({:g}; of ranks "
                               "that are threads, without --profile, {:g}; docs/processes.md)",
                               default_hang_timeout_s, unmeasured_hang_timeout_s))
      ->check(number_in(1, 86400));
  command
      ->add_option("--restarts", arguments->restarts,
                   "Start a run that was killed, has crashed or has lost a rank again, from every job's last checkpoint, up to so many "
                   "times (0; docs/training.md)")
      ->check(CLI::Range(0, 1000000));
  command->add_flag("--json", arguments->json, "Events and summary as JSON lines on standard output");
  command->add_flag("--plain", arguments->plain, "Lines in place of the live view, on a terminal too (docs/watching.md)");
  CLI::Option* resume =
      command->add_flag("--resume", arguments->resume, "Go on with the run in the output folder");
  command->add_flag("--overwrite", arguments->overwrite, "Start again in an output folder that holds a run")
      ->excludes(resume);
  auto run_options = std::make_shared<std::map<std::string, std::string>>();  // by flag
  for (const Option& option : option_table()) {
    if (option.section != Section::run) continue;
    std::string flag = "--" + option.key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (option.accepted.type == OptionType::boolean) {
      command->add_flag_callback(
          flag, [run_options, flag] { (*run_options)[flag] = "true"; }, option.description);
    } else {
      const std::string usual = default_text(option);
      const std::string said = meaning(option) + (usual.empty() ? "" : fmt::format(" Default: as the jobs file says, else {}.", usual));
      CLI::Option* added = command->add_option_function<std::string>(
          flag, [run_options, flag](const std::string& value) { (*run_options)[flag] = value; }, said);
      added->type_name(value_type(option.accepted));
    }
  }
  command->callback([arguments, run_options] {
    for (const auto& [flag, value] : *run_options) arguments->overrides.push_back(flag + "=" + value);
    exit_code() = train_as_asked(*arguments);
  });
}

}  // namespace cotune
