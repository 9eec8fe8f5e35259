#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/manual/command_description.h"
#include "cli/planning/simulated_step.h"
#include "cli/planning/simulated_trace.h"
#include "cli/terminal/number_checks.h"
#include "cluster/scheduling_policy.h"
#include "cluster/trace_study.h"

namespace cotune {
namespace {

struct SimulateArguments {
  std::string instance = "1x4", cluster_file, dtype, svg;
  bool philly = false, json = false;
  TraceArguments trace;
  StepArguments step;
};

/// `4x2`: tensor-parallel degree x pipeline stages.
std::pair<int64_t, int64_t> parse_instance(const std::string& text) {
  int64_t tensor_parallel = 0, stages = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, tensor_parallel);
  const bool has_sign = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
  const auto second = has_sign ? std::from_chars(first.ptr + 1, end, stages) : first;
  if (!has_sign || second.ec != std::errc() || second.ptr != end || tensor_parallel < 1 || stages < 1 || tensor_parallel > 1024 ||
      stages > 1024) {
    throw_user_error("--instance: must be TPxPP, ranks of tensor parallelism and pipeline stages such as 1x4, got `{}`", text);
  }
  return {tensor_parallel, stages};
}

void simulate_command(SimulateArguments arguments) {
  TraceArguments& trace = arguments.trace;
  StepArguments& step = arguments.step;
  const int sources = (trace.trace_file.empty() ? 0 : 1) + (arguments.philly ? 1 : 0) + (step.jobs_file.empty() ? 0 : 1);
  if (sources != 1) throw_user_error("simulate: give one of TRACE.csv, --philly and --jobs FILE; found {}", sources);
  if (arguments.cluster_file.empty() && step.jobs_file.empty()) throw_user_error("--cluster: is required for a trace");
  const auto [tensor_parallel, stages] = parse_instance(arguments.instance);
  const auto share = [&, degree = tensor_parallel, count = stages](auto& own) {
    own.tensor_parallel = degree;
    own.pipeline_stages = count;
    own.cluster_file = arguments.cluster_file;
    own.dtype = arguments.dtype;
    own.svg = arguments.svg;
    own.json = arguments.json;
  };
  share(trace);
  share(step);
  if (step.jobs_file.empty()) {
    simulate_trace_command(trace);
  } else {
    simulate_step(step);
  }
}

void add_trace_options(CLI::Option_group& group, SimulateArguments& arguments, CLI::Option* philly) {
  TraceArguments& trace = arguments.trace;
  group.add_option("--model", trace.model, "Preset, config.json, model folder, GGUF file or its name in the Hugging Face cache (default llama-2-7b)");
  group.add_option("--policy", trace.policies, fmt::format("{}; several separated by commas (default fcfs)", fmt::join(policy_names(), ", ")))
      ->delimiter(',')
      ->type_name(value_type(policy_names()));
  group
      .add_option("--sharing", trace.sharings,
                  "separate, temporal, batch-all, hybrid, each also as NAME/padded; several separated by commas (default hybrid)")
      ->delimiter(',')
      ->type_name(value_type(sharing_choices()));
  group.add_flag("--compare", trace.compare, "Every policy and sharing that is not given otherwise, in one table");
  group.add_option("--seed", trace.seed, "Of --philly")->check(CLI::NonNegativeNumber)->capture_default_str()->needs(philly);
  group.add_option("--days", trace.days, "Of --philly: days of arrivals")->check(number_in(1e-3, 3650.0))->capture_default_str()->needs(philly);
  group.add_option("--microbatches", trace.microbatches, "Of a step, the same for every job")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str();
  group.add_option("--most-jobs", trace.most_jobs, "On one instance; 0: as many as fit into memory")
      ->check(CLI::Range(int64_t{0}, int64_t{100000}))
      ->capture_default_str();
  group
      .add_option("--restart", trace.restart_s,
                  "Seconds that a job which was pushed out loses when it goes on (0); of --replan: to put replicas up (10)")
      ->check(number_in(0.0, 1e6));
  group.add_flag("--refuse-late", trace.refuse_late, "Admission by deadlines: nobody starts who would make a predicted end late");
  group.add_option("--dedicate-priority", trace.dedicate_priority, "Jobs of this priority and above share with nobody");
  group.add_option("--window", trace.window_min, "Minutes that throughput and utilisation are of (default: until the last arrival)")
      ->check(number_in(0.0, 1e9));
  group.add_option("--rates", trace.rates, "planner: in the loop; table: made first; FILE: of --save-rates")->capture_default_str();
  group.add_option("--save-rates", trace.save_rates, "Write the rate table");
  group.add_option("--save-trace", trace.save_trace, "Write the trace as CSV");
  group.add_option("--csv", trace.csv, "Write the table as CSV");
  group.add_option("--jobs-csv", trace.jobs_csv, "Write what became of each job as CSV");
  CLI::Option* replan =
      group.add_flag("--replan", trace.replan, "One deployment for all jobs, planned anew as they arrive and leave, with the cost of moving");
  // Of instances, their policies and their sharing.
  for (const char* name : {"--policy", "--sharing", "--compare", "--microbatches", "--most-jobs", "--refuse-late", "--dedicate-priority",
                           "--window", "--rates", "--save-rates"}) {
    replan->excludes(group.get_option(name));
  }
}

/// Returns --plan.
CLI::Option* add_step_options(CLI::Option_group& group, SimulateArguments& arguments, CLI::Option* json) {
  StepArguments& step = arguments.step;
  group.add_option("--set", step.overrides, "key=value: replaces what the jobs file says; may be repeated")->allow_extra_args(false);
  group.add_option("--profile", step.profile, "A profile of the cluster's devices (cotune profile), in place of their data sheets");
  group.add_option("--slow", step.slow, "RANK:FACTOR[:FROM_MS:UNTIL_MS]: a stage that computes slower; may be repeated")->allow_extra_args(false);
  group.add_option("--slow-link", step.slow_links, "A-B:FACTOR: the link between two ranks is slower, either way; may be repeated")
      ->allow_extra_args(false);
  group.add_option("--perfetto", step.perfetto, "Write a trace for ui.perfetto.dev");
  CLI::Option* plan = group.add_option("--plan", step.plan_file, "A plan of these jobs (cotune plan --output): all its replicas");
  group.add_option("--replica", step.replica, "Which replica of --plan is drawn in the terminal (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}))->needs(plan)->excludes(json);
  return plan;
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand("simulate", "Simulate a trace of jobs on a cluster, or one step of a jobs file");
  command->add_option("trace", arguments->trace.trace_file, "CSV file of arrivals (docs/simulation.md)");
  CLI::Option* philly = command->add_flag("--philly", arguments->philly, "Philly-like arrivals: 2.59 a minute of 372.6 ± 612.9 minutes");
  CLI::Option* jobs = command->add_option("--jobs", arguments->step.jobs_file, "Jobs file: one step of every job, event by event");
  command->add_option("--cluster", arguments->cluster_file, "Cluster file; without one, of --jobs, this machine's CPU");
  CLI::Option* instance =
      command->add_option("--instance", arguments->instance, "TPxPP: ranks of tensor parallelism and pipeline stages of an instance")
          ->capture_default_str();
  CLI::Option* json = command->add_flag("--json", arguments->json, "JSON in place of tables and pictures");
  command->add_option("--svg", arguments->svg, "Folder for charts");
  CLI::Option* dtype =
      command->add_option("--dtype", arguments->dtype, "bfloat16 or float32 (default bfloat16, or what the jobs file or the profile says)")
          ->check(CLI::IsMember({"bfloat16", "float32"}));

  CLI::Option_group* trace = command->add_option_group("of a trace");
  add_trace_options(*trace, *arguments, philly);
  CLI::Option_group* step = command->add_option_group("of a step");
  CLI::Option* plan = add_step_options(*step, *arguments, json);
  for (CLI::Option* option : trace->get_options()) option->excludes(jobs);
  for (CLI::Option* option : step->get_options()) option->needs(jobs);
  for (CLI::Option* option : {instance, dtype}) option->excludes(plan);  // the plan says both itself
  command->callback([arguments] { simulate_command(*arguments); });
}

}  // namespace cotune
