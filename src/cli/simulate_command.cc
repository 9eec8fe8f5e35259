#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/number_checks.h"
#include "cli/planned_jobs.h"
#include "cluster/philly_trace.h"
#include "cluster/plan_study.h"
#include "cluster/step_study.h"
#include "cluster/trace_charts.h"
#include "cluster/trace_file.h"
#include "cluster/trace_study.h"
#include "jobs/jobs_file.h"
#include "plan/plan_json.h"
#include "plan/shapes/cluster_file.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

struct SimulateArguments {
  std::string trace_file, jobs_file, plan_file, cluster_file, model, instance = "1x4", dtype = "bfloat16";
  bool philly = false, compare = false, json = false, refuse_late = false;
  uint64_t seed = 1;
  double days = 7;
  int64_t microbatches = 4, most_jobs = 0;
  std::vector<std::string> policies, sharings, overrides, slow;
  std::optional<int64_t> dedicate_priority;
  double restart_s = 0, window_min = 0;
  std::string rates = "planner", save_rates, save_trace, csv, jobs_csv, svg, perfetto;
};

/// `4` or `4x2` (tensor-parallel degree x pipeline stages).
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

/// RANK:FACTOR or RANK:FACTOR:FROM_MS:UNTIL_MS.
Slowdown parse_slowdown(const std::string& text) {
  std::vector<double> values;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (true) {
    double value = 0;
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc()) break;
    values.push_back(value);
    at = parsed.ptr;
    if (at == end || *at != ':') break;
    ++at;
  }
  const bool whole_rank = !values.empty() && values[0] >= 0 && values[0] < 1e6 && values[0] == static_cast<double>(static_cast<int64_t>(values[0]));
  const bool good = at == end && whole_rank && (values.size() == 2 || values.size() == 4) && values[1] >= 1 && values[1] <= 1e6 &&
                    (values.size() == 2 || (values[2] >= 0 && values[3] > values[2]));
  if (!good) {
    throw_user_error("--slow: must be RANK:FACTOR or RANK:FACTOR:FROM_MS:UNTIL_MS with a factor of at least 1, got `{}`", text);
  }
  Slowdown slowdown{.rank = static_cast<int32_t>(values[0]), .factor = values[1]};
  if (values.size() == 4) {
    slowdown.from_s = values[2] / 1e3;
    slowdown.until_s = values[3] / 1e3;
  }
  return slowdown;
}

InstancesOfCluster instances_for(const SimulateArguments& arguments, const ModelConfig& model, const std::string& dtype) {
  const auto [tensor_parallel, stages] = parse_instance(arguments.instance);
  InstancesOfCluster instances = instances_of(read_cluster_file(arguments.cluster_file), model, tensor_parallel, stages);
  instances.spec.machine.dtype = dtype;
  instances.spec.microbatches = arguments.microbatches;
  return instances;
}

// --- a step ---

void simulate_step(const SimulateArguments& arguments) {
  const JobsFile jobs_file = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::plan);
  const ModelConfig model = find_model_config(jobs_file.model.config.empty() ? jobs_file.model.path : jobs_file.model.config);
  std::vector<Slowdown> slowdowns;
  for (const std::string& each : arguments.slow) slowdowns.push_back(parse_slowdown(each));
  const std::string dtype = jobs_file.model.dtype == "auto" ? arguments.dtype : jobs_file.model.dtype;
  const InstancesOfCluster instances = instances_for(arguments, model, dtype);
  const StepStudy study = study_step(instances.spec, job_shapes(jobs_file.jobs, model), slowdowns);
  if (!arguments.svg.empty()) {
    fs::create_directories(arguments.svg);
    write_file_atomically(fs::path(arguments.svg) / "step.svg", render_svg(study.schedule, study.simulated, {.title = "One round of every job"}));
  }
  if (!arguments.perfetto.empty()) write_file_atomically(arguments.perfetto, render_trace(study.schedule, study.simulated));
  fmt::print("{}", arguments.json ? to_json(study).dump(2) + "\n" : to_text(study));
}

// --- a plan ---

/// RANK:FACTOR
SlowStage parse_slow_stage(const std::string& text) {
  const Slowdown parsed = parse_slowdown(text);
  if (parsed.from_s > 0 || std::isfinite(parsed.until_s)) {
    throw_user_error("--slow {}: of a plan, a stage is slow all the time: RANK:FACTOR", text);
  }
  return {.rank = parsed.rank, .factor = parsed.factor};
}

void simulate_plan(const SimulateArguments& arguments) {
  const Plan plan = plan_from_json(read_file(arguments.plan_file), arguments.plan_file);
  const JobsFile jobs_file = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::plan);
  const auto [model, jobs] = planned_jobs(jobs_file);
  const ClusterSpec cluster = read_cluster_file(arguments.cluster_file);
  std::vector<SlowStage> slow;
  for (const std::string& each : arguments.slow) slow.push_back(parse_slow_stage(each));
  try {
    const PlanStudy study = study_plan(plan, model, cluster, jobs, slow);
    fmt::print("{}", arguments.json ? to_json(study).dump(2) + "\n" : to_text(study, plan));
  } catch (const UserError& error) {
    throw_user_error("{}: {}", arguments.plan_file, error.what());
  }
}

// --- a trace ---

Trace trace_of(const SimulateArguments& arguments) {
  Trace trace;
  if (arguments.philly) {
    trace = philly_trace({.seed = arguments.seed, .minutes = arguments.days * 24 * 60});
    if (trace.jobs.empty()) throw_user_error("--days: {} are too few for a single arrival", arguments.days);
  } else {
    TraceFile file = read_trace_file(arguments.trace_file);
    if (!file.ignored_columns.empty()) {
      fmt::print(stderr, "{}: columns that are not read: {}\n", arguments.trace_file, fmt::join(file.ignored_columns, ", "));
    }
    trace = std::move(file.trace);
  }
  if (arguments.dedicate_priority) {
    for (TraceJob& job : trace.jobs) job.dedicated = job.dedicated || job.priority >= *arguments.dedicate_priority;
  }
  return trace;
}

StudySettings study_settings(const SimulateArguments& arguments) {
  StudySettings settings;
  settings.policies = arguments.policies;
  if (settings.policies.empty()) settings.policies = arguments.compare ? policy_names() : std::vector<std::string>{"fcfs"};
  std::vector<std::string> sharings = arguments.sharings;
  if (sharings.empty()) {
    sharings = arguments.compare ? std::vector<std::string>{"separate", "temporal", "batch-all/padded", "batch-all", "hybrid"}
                                 : std::vector<std::string>{"hybrid"};
  }
  settings.sharings.clear();
  for (const std::string& each : sharings) settings.sharings.push_back(parse_sharing(each));
  settings.use_table = arguments.rates == "table";
  if (arguments.rates != "table" && arguments.rates != "planner") settings.rates_file = arguments.rates;
  settings.save_rates = arguments.save_rates;
  settings.options.most_jobs = arguments.most_jobs;
  settings.options.restart_s = arguments.restart_s;
  settings.options.refuse_late = arguments.refuse_late;
  settings.options.window_s = 60 * arguments.window_min;
  return settings;
}

void write_charts(const fs::path& folder, const Trace& trace, const std::vector<StudyResult>& results) {
  fs::create_directories(folder);
  std::vector<ChartedTrace> charted;
  std::vector<TraceSummary> summaries;
  for (const StudyResult& each : results) {
    charted.push_back({each.summary.policy + ", " + each.summary.sharing, &trace, &each.simulation});
    summaries.push_back(each.summary);
  }
  write_file_atomically(folder / "completion.svg", completion_chart(charted));
  write_file_atomically(folder / "timeline.svg", timeline_chart(charted));
  write_file_atomically(folder / "summary.svg", summary_chart(summaries));
  if (trace.tenants.size() > 1) write_file_atomically(folder / "tenants.svg", tenant_chart(summaries));
}

void simulate_arrivals(const SimulateArguments& arguments) {
  const Trace trace = trace_of(arguments);
  const InstancesOfCluster instances =
      instances_for(arguments, find_model_config(arguments.model.empty() ? "llama-2-7b" : arguments.model), arguments.dtype);
  if (!arguments.save_trace.empty()) write_file_atomically(arguments.save_trace, to_csv(trace));
  const StudySettings settings = study_settings(arguments);
  if (!arguments.jobs_csv.empty() && settings.policies.size() * settings.sharings.size() != 1) {
    throw_user_error("--jobs-csv is of one policy and one sharing, found {} and {}", settings.policies.size(), settings.sharings.size());
  }
  const std::vector<StudyResult> results = run_study(trace, instances, settings, [&](const StudyResult& each) {
    if (arguments.compare && !arguments.json) fmt::print(stderr, "{}, {}: {}\n", each.summary.policy, each.summary.sharing, each.summary.rates);
  });
  std::vector<TraceSummary> summaries;
  for (const StudyResult& each : results) summaries.push_back(each.summary);
  if (!arguments.csv.empty()) write_file_atomically(arguments.csv, to_csv(summaries));
  if (!arguments.jobs_csv.empty()) write_file_atomically(arguments.jobs_csv, jobs_csv(trace, results.front().simulation));
  if (!arguments.svg.empty()) write_charts(arguments.svg, trace, results);
  if (!arguments.json) {
    fmt::print("{}", to_text(summaries));
    return;
  }
  nlohmann::json json{{"instance", describe(instances.spec)}, {"results", nlohmann::json::array()}};
  for (const TraceSummary& each : summaries) json["results"].push_back(to_json(each));
  fmt::print("{}\n", json.dump(2));
}

void simulate_command(const SimulateArguments& arguments) {
  const int sources = (arguments.trace_file.empty() ? 0 : 1) + (arguments.philly ? 1 : 0) + (arguments.jobs_file.empty() ? 0 : 1);
  if (sources != 1) throw_user_error("simulate: give one of TRACE.csv, --philly and --jobs FILE; found {}", sources);
  if (arguments.jobs_file.empty()) {
    simulate_arrivals(arguments);
  } else if (!arguments.plan_file.empty()) {
    simulate_plan(arguments);
  } else {
    simulate_step(arguments);
  }
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand("simulate", "Simulate a trace of jobs on a cluster, or one step of a jobs file on a replica");
  command->add_option("trace", arguments->trace_file, "CSV file of arrivals (docs/simulation.md)");
  command->add_flag("--philly", arguments->philly, "Philly-like arrivals: 2.59 a minute of 372.6 ± 612.9 minutes");
  CLI::Option* jobs = command->add_option("--jobs", arguments->jobs_file, "Jobs file: one step of every job, event by event");
  command->add_option("--cluster", arguments->cluster_file, "Cluster file")->required();
  CLI::Option* instance = command->add_option("--instance", arguments->instance, "TPxPP: ranks of tensor parallelism and pipeline stages of an instance")->capture_default_str();
  command->add_flag("--json", arguments->json, "JSON in place of tables");
  CLI::Option* svg = command->add_option("--svg", arguments->svg, "Folder for charts");

  CLI::Option_group* trace = command->add_option_group("of a trace");
  trace->add_option("--model", arguments->model, "Preset, config.json, model folder or GGUF file (default llama-2-7b)");
  trace->add_option("--policy", arguments->policies, fmt::format("{}; several separated by commas (default fcfs)", fmt::join(policy_names(), ", ")))->delimiter(',');
  trace->add_option("--sharing", arguments->sharings, "separate, temporal, batch-all, hybrid, each also as NAME/padded; several separated by commas (default hybrid)")->delimiter(',');
  trace->add_flag("--compare", arguments->compare, "Every policy and sharing that is not given otherwise, in one table");
  trace->add_option("--seed", arguments->seed, "Of --philly")->check(CLI::NonNegativeNumber)->capture_default_str();
  trace->add_option("--days", arguments->days, "Of --philly: days of arrivals")->check(number_in(1e-3, 3650.0))->capture_default_str();
  trace->add_option("--microbatches", arguments->microbatches, "Of a step, the same for every job")->check(CLI::Range(int64_t{1}, int64_t{1024}))->capture_default_str();
  trace->add_option("--most-jobs", arguments->most_jobs, "On one instance; 0: as many as fit into memory")->check(CLI::Range(int64_t{0}, int64_t{100000}))->capture_default_str();
  trace->add_option("--restart", arguments->restart_s, "Seconds that a job which was pushed out loses when it goes on")->check(number_in(0.0, 1e6))->capture_default_str();
  trace->add_flag("--refuse-late", arguments->refuse_late, "Admission by deadlines: nobody starts who would make a predicted end late");
  trace->add_option("--dedicate-priority", arguments->dedicate_priority, "Jobs of this priority and above share with nobody");
  trace->add_option("--window", arguments->window_min, "Minutes that throughput and utilisation are of (default: until the last arrival)")->check(number_in(0.0, 1e9));
  trace->add_option("--rates", arguments->rates, "planner: in the loop; table: made first; FILE: of --save-rates")->capture_default_str();
  trace->add_option("--save-rates", arguments->save_rates, "Write the rate table");
  trace->add_option("--save-trace", arguments->save_trace, "Write the trace as CSV");
  trace->add_option("--csv", arguments->csv, "Write the table as CSV");
  trace->add_option("--jobs-csv", arguments->jobs_csv, "Write what became of each job as CSV");

  CLI::Option_group* step = command->add_option_group("of a step");
  step->add_option("--set", arguments->overrides, "key=value: replaces what the jobs file says; may be repeated")->allow_extra_args(false);
  step->add_option("--slow", arguments->slow, "RANK:FACTOR[:FROM_MS:UNTIL_MS]: a stage that computes slower; may be repeated")->allow_extra_args(false);
  CLI::Option* plan = step->add_option("--plan", arguments->plan_file, "A plan of these jobs on this cluster (cotune plan --output): all its replicas");
  CLI::Option* perfetto = step->add_option("--perfetto", arguments->perfetto, "Write a trace for ui.perfetto.dev");
  for (CLI::Option* option : trace->get_options()) option->excludes(jobs);
  for (CLI::Option* option : step->get_options()) option->needs(jobs);
  CLI::Option* dtype = command->add_option("--dtype", arguments->dtype, "bfloat16 or float32; for --jobs where the jobs file says auto")
      ->check(CLI::IsMember({"bfloat16", "float32"}))->capture_default_str();
  // What the plan says itself, and pictures: those of its replicas are cotune plan's.
  for (CLI::Option* option : {instance, svg, perfetto, dtype}) option->excludes(plan);
  command->callback([arguments] { simulate_command(*arguments); });
}

}  // namespace cotune
