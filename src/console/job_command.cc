#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "base/file.h"
#include "base/quantity_text.h"
#include "console/command_line.h"
#include "console/name_column.h"
#include "console/output.h"
#include "console/run_commands.h"
#include "console/run_view_source.h"
#include "control/client.h"
#include "watch/job_outcome.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

struct JobArguments {
  std::string run = "runs/latest", jobs_file;
  bool json = false;
  ControlRequest request;
};

std::string loss_text(double loss) { return std::isnan(loss) ? "" : fmt::format("{:.4f}", loss); }

void print_jobs(const std::vector<JobReport>& jobs) {
  std::vector<std::string> names;
  for (const JobReport& job : jobs) names.push_back(job.name);
  const size_t width = name_column_width(names);
  print_line(fmt::format("{}  {:<13}  {:>8}  {:>15}  {:>8}  {:>8}", name_column("job", width), "status", "priority", "step",
                         "loss", "left"));
  for (const JobReport& job : jobs) {
    print_line(fmt::format("{}  {:<13}  {:>8}  {:>15}  {:>8}  {:>8}", name_column(job.name, width), job.status, job.priority,
                           fmt::format("{}/{}", job.step, job.steps), loss_text(job.loss),
                           std::isnan(job.seconds_left) ? "" : duration_text(job.seconds_left)));
  }
  for (const JobReport& job : jobs) {
    if (!job.reason.empty()) print_line(fmt::format("{}  {}", name_column(job.name, width), job.reason));
  }
}

void print_run(const RunReport& run) {
  std::string jobs;
  for (const auto& [status, count] : run.jobs) jobs += fmt::format("{}{} {}", jobs.empty() ? "" : ", ", count, status);
  print_line(fmt::format("{}: process {}, {}{}{}; {} in {}; jobs: {}", run.folder, run.pid, run.phase, run.emulated ? ", emulated" : "",
                         run.stay ? ", stays for further jobs" : "", counted(run.rounds, "training round"), duration_text(run.seconds), jobs));
}

void print_reply(const ControlReply& reply, ControlAction action) {
  const bool emulated = reply.run && reply.run->emulated;
  if (action == ControlAction::list) {
    if (reply.jobs) print_jobs(*reply.jobs);
    if (emulated) print_line("the run is emulated: nothing is computed, and nothing of its jobs is saved");
    return;
  }
  if (reply.run) print_run(*reply.run);
  if (action == ControlAction::drain) {
    print_line(emulated ? "it ends; nothing of an emulated run is saved" : "it saves every job and ends; `cotune train … --resume` goes on");
  }
  if (!reply.jobs) return;
  for (const JobReport& job : *reply.jobs) print_line(job_outcome(job, action));
}

void read_jobs_text(const std::string& file, ControlRequest::JobsText& add) {
  const fs::path path(file);
  add.file = file;
  add.text = read_file(path);
  add.folder = fs::absolute(path).parent_path().lexically_normal().string();
  add.working_directory = fs::current_path().string();
}

/// As the socket has it; CLI11's own check would call 1.5 a number out of the range.
std::string priority_mistake(const std::string& text) {
  int64_t priority = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), priority);
  if (error == std::errc() && end == text.data() + text.size() && std::abs(priority) <= most_priority) return "";
  return fmt::format("must be a whole number from {} to {}, got {}", -most_priority, most_priority, text);
}

/// Of a run that takes long to answer, says so.
ControlReply answer_of(ControlClient& client, const JobArguments& arguments, std::string& line) {
  const ControlRequest& request = arguments.request;
  if (std::optional<ControlReply> reply = client.ask_within(most_seconds_to_answer, request, &line)) return *std::move(reply);
  const bool is_look = request.action == ControlAction::list || request.action == ControlAction::status;
  fmt::print(stderr, "the run in {} has not answered for {} s: {}; waiting, Ctrl-C gives up\n", arguments.run, most_seconds_to_answer.count(),
             is_look                                ? "its process may be stopped, or the machine very busy"
             : request.action == ControlAction::add ? "it may be reading the data of these jobs, or be in the middle of a round"
                                                    : "it may be in the middle of a round");
  return client.ask(request, &line);
}

int ask(JobArguments& arguments) {
  ControlRequest& request = arguments.request;
  if (request.action == ControlAction::add) read_jobs_text(arguments.jobs_file, request.add);
  ControlClient client(arguments.run);
  std::string line;
  const ControlReply reply = answer_of(client, arguments, line);
  if (arguments.json) print_line(line);
  if (reply.error) {
    fmt::print(stderr, "{}\n", reply.error->message);
    const bool of_machine = reply.error->code == ControlErrorCode::failed || reply.error->code == ControlErrorCode::ended;
    return of_machine ? 1 : 2;
  }
  if (!arguments.json) print_reply(reply, request.action);
  return output_failed() ? 1 : 0;
}

}  // namespace

void add_job_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("job", "Look at and change the jobs of a run while it goes on (docs/control.md)");
  command->require_subcommand(1);
  const auto add = [&](ControlAction action, const char* description) {
    auto arguments = std::make_shared<JobArguments>();
    arguments->request.action = action;
    CLI::App* own = command->add_subcommand(std::string(to_string(action)), description);
    own->add_option("--run", arguments->run, "The run's folder (runs/latest)");
    own->add_flag("--json", arguments->json, "The reply as one line of JSON");
    own->callback([arguments] { exit_code() = ask(*arguments); });
    return std::pair(own, arguments);
  };
  add(ControlAction::list, "How every job stands, and why it waits");
  add(ControlAction::status, "How the run stands");
  const auto [joining, joined] = add(ControlAction::add, "Add the jobs of a jobs file; checked as `cotune train` checks them");
  joining->add_option("jobs_file", joined->jobs_file, "The jobs file; `model` and `run` may be left out")->required();
  joining->add_option("--set", joined->request.add.overrides, "key=value: replaces what the file says; may be repeated")
      ->allow_extra_args(false);
  const auto of_one_job = [&](ControlAction action, const char* description) {
    const auto [own, arguments] = add(action, description);
    own->add_option("name", arguments->request.job, "The job")->required();
    return std::pair(own, arguments);
  };
  of_one_job(ControlAction::cancel, "End a job; its last step is kept as a checkpoint");
  of_one_job(ControlAction::pause, "Save a job and take it out of memory");
  of_one_job(ControlAction::resume, "Let a paused job go on");
  const auto [ranked, given] = of_one_job(ControlAction::priority, "Change who goes first when memory is short");
  ranked->add_option("priority", given->request.priority, "Higher goes first")->required()->check(CLI::Validator(priority_mistake, ""));
  add(ControlAction::drain, "Save every job and end the run, as SIGTERM does");
}

}  // namespace cotune
