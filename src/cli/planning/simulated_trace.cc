#include "cli/planning/simulated_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/quantity_text.h"
#include "cluster/philly_trace.h"
#include "cluster/replanned_trace.h"
#include "cluster/trace_charts.h"
#include "cluster/trace_file.h"
#include "cluster/trace_study.h"
#include "console/output_file.h"
#include "model/config/model_config.h"
#include "plan/plan_advice.h"
#include "plan/row_needs.h"
#include "plan/shapes/cluster_file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_kinds = 200;  // of a trace file
constexpr OutputKind trace_csv{"a trace of jobs", "arrival_min,"};
constexpr OutputKind policies_csv{"a table of policies", "policy,sharing,"};
constexpr OutputKind replans_csv{"a table of moves", "moves_when,finished,"};
constexpr OutputKind jobs_csv_output{"a table of jobs", "job,tenant,kind,"};
constexpr OutputKind replanned_jobs_csv{"a table of jobs under every rule of moving", "moves_when,job,"};
constexpr OutputKind rates_output{"a table of rates", R"({"alone_s":)"};

void check_outputs_of(const TraceArguments& arguments) {
  check_outputs(std::to_array<Output>({{"--save-trace", arguments.save_trace, trace_csv},
                                       {"--csv", arguments.csv, arguments.replan ? replans_csv : policies_csv},
                                       {"--jobs-csv", arguments.jobs_csv, arguments.replan ? replanned_jobs_csv : jobs_csv_output},
                                       {"--save-rates", arguments.save_rates, rates_output}}));
}

/// Each once, where it first stands.
std::vector<std::string> distinct(const std::vector<std::string>& names) {
  std::vector<std::string> kept;
  for (const std::string& name : names) {
    if (std::ranges::count(kept, name) == 0) kept.push_back(name);
  }
  return kept;
}

/// Jobs with rows that the model does not take.
void check_rows(const TraceFile& file, const std::string& name, const ModelConfig& model, Diagnostics& mistakes) {
  const size_t most = mistakes.size() + 20;
  for (size_t j = 0; j < file.trace.jobs.size() && mistakes.size() < most; ++j) {
    const int64_t tokens = file.trace.kinds[static_cast<size_t>(file.trace.jobs[j].kind)].tokens;
    if (tokens <= model.context_length) continue;
    mistakes.add(name, file.lines[j], "tokens", fmt::format("must be at most {}, the model's context, got {}", model.context_length, tokens));
  }
}

struct TraceInputs {
  ModelConfig model;
  ClusterSpec cluster;
  std::optional<TraceFile> file;  ///< none: the trace is made
};

/// Throws the mistakes of all at once.
TraceInputs read_trace_inputs(const TraceArguments& arguments) {
  TraceInputs inputs;
  Diagnostics mistakes;
  const auto collect = [&](const auto& read) {
    try {
      read();
    } catch (const UserError& error) {
      mistakes.add(error);
    }
  };
  collect([&] { inputs.model = find_model_config(arguments.model.empty() ? "llama-2-7b" : arguments.model); });
  const bool has_model = mistakes.empty();
  collect([&] { inputs.cluster = read_cluster_file(arguments.cluster_file); });
  if (!arguments.trace_file.empty()) collect([&] { inputs.file = read_trace_file(arguments.trace_file); });
  if (has_model && inputs.file) check_rows(*inputs.file, arguments.trace_file, inputs.model, mistakes);
  mistakes.throw_if_any();
  return inputs;
}

Trace trace_of(const TraceArguments& arguments, const TraceInputs& inputs) {
  Trace trace;
  if (inputs.file) {
    if (!inputs.file->ignored_columns.empty()) {
      fmt::print(stderr, "{}: columns that are not read: {}\n", arguments.trace_file, fmt::join(inputs.file->ignored_columns, ", "));
    }
    trace = with_fewer_kinds(inputs.file->trace, most_kinds);
    if (trace.kinds.size() < inputs.file->trace.kinds.size()) {
      fmt::print(stderr, "{}: {} of jobs; rows of lengths that are close to each other are taken as of the longest of them, which leaves {}\n",
                 arguments.trace_file, counted(std::ssize(inputs.file->trace.kinds), "kind"), trace.kinds.size());
    }
  } else {
    trace = philly_trace({.seed = arguments.seed, .minutes = arguments.days * 24 * 60});
    if (trace.jobs.empty()) throw_user_error("--days: {} are too few for a single arrival", arguments.days);
  }
  if (arguments.dedicate_priority) {
    for (TraceJob& job : trace.jobs) job.dedicated = job.dedicated || job.priority >= *arguments.dedicate_priority;
  }
  return trace;
}

StudySettings study_settings(const TraceArguments& arguments) {
  StudySettings settings;
  settings.policies = distinct(arguments.policies);
  if (settings.policies.empty()) settings.policies = arguments.compare ? policy_names() : std::vector<std::string>{"fcfs"};
  std::vector<std::string> sharings = distinct(arguments.sharings);
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
  settings.options.restart_s = arguments.restart_s.value_or(0);
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
  write_output("--svg", folder / "completion.svg", picture_output, completion_chart(charted));
  write_output("--svg", folder / "timeline.svg", picture_output, timeline_chart(charted));
  write_output("--svg", folder / "summary.svg", picture_output, summary_chart(summaries));
  if (trace.tenants.size() > 1) write_output("--svg", folder / "tenants.svg", picture_output, tenant_chart(summaries));
}

InstancesOfCluster instances_for(const TraceArguments& arguments, const TraceInputs& inputs) {
  InstancesOfCluster instances =
      instances_of(inputs.cluster, inputs.model, arguments.tensor_parallel, arguments.pipeline_stages, arguments.cluster_file);
  if (!arguments.dtype.empty()) instances.spec.machine.dtype = arguments.dtype;
  check_rates(inputs.cluster, arguments.cluster_file, instances.spec.machine.dtype, "--dtype");
  instances.spec.microbatches = arguments.microbatches;
  return instances;
}

/// Options that would change nothing beside the others.
void refuse_without_effect(const TraceArguments& arguments, const StudySettings& settings) {
  if (arguments.compare && !arguments.policies.empty() && !arguments.sharings.empty()) {
    throw_user_error("--compare: has nothing to add where --policy and --sharing are given; several of them are compared as they are");
  }
  const bool pre_empts = std::any_of(settings.policies.begin(), settings.policies.end(), [](const std::string& name) {
    return make_policy(name, RateTable(), 0)->is_preemptive();
  });
  if (arguments.restart_s && !pre_empts) {
    throw_user_error("--restart: has no effect where no policy pushes jobs out; priority, shortest, fair and deadline do");
  }
  const bool shares = std::any_of(settings.sharings.begin(), settings.sharings.end(),
                                  [](const SharingChoice& each) { return each.sharing != Sharing::separate; });
  if (arguments.most_jobs > 0 && !shares) throw_user_error("--most-jobs: has no effect on `separate`, one job on an instance");
  if (!arguments.jobs_csv.empty() && settings.policies.size() * settings.sharings.size() != 1) {
    throw_user_error("--jobs-csv is of one policy and one sharing, found {} and {}", settings.policies.size(), settings.sharings.size());
  }
}

/// The options that make this instance that one.
std::string options_of(const InstanceSpec& other, const InstanceSpec& instance) {
  std::vector<std::string> changes;
  if (other.tensor_parallel != instance.tensor_parallel || other.pipeline_stages != instance.pipeline_stages) {
    changes.push_back(fmt::format("instances of {}x{} devices (--instance; they are of {}x{})", other.tensor_parallel, other.pipeline_stages,
                                  instance.tensor_parallel, instance.pipeline_stages));
  }
  if (other.microbatches != instance.microbatches) {
    changes.push_back(fmt::format("steps in {} (--microbatches; they are in {})", counted(other.microbatches, "microbatch", "microbatches"),
                                  instance.microbatches));
  }
  return fmt::format("{}", fmt::join(changes, " and "));
}

/// What would hold the kinds of jobs that were refused because they fit on no instance: others of this cluster, or memory or nodes with which there
/// are some.
std::string advice_on_instances(const std::set<int32_t>& kinds, const Trace& trace, const InstanceSpec& instance, const ClusterSpec& cluster) {
  if (kinds.empty()) return {};
  std::vector<JobKind> refused;
  for (const int32_t kind : kinds) refused.push_back(trace.kinds[static_cast<size_t>(kind)]);
  const std::string all = fmt::format("all {} that fit nowhere", counted(std::ssize(kinds), "kind"));
  std::string text = fmt::format("What would hold {}:\n", kinds.size() > 1 ? all : "it");
  if (const std::optional<InstanceSpec> held = instance_that_holds(cluster, instance, refused)) {
    return text + fmt::format("  {}\n", options_of(*held, instance));
  }
  const NodeGroup& group = cluster.nodes.front();
  const auto with_options = [&](const InstanceSpec& held) {
    const std::string options = options_of(held, instance);
    return options.empty() ? "" : ", with " + options;
  };
  if (const std::optional<InstanceSpec> held = instance_of_more_memory(cluster, instance, refused)) {
    text += fmt::format("  {}: memory {} per device in place of {}{}\n", group.name, bytes_text(held->machine.device.memory_bytes),
                        bytes_text(group.device.memory_bytes), with_options(*held));
  }
  if (const std::optional<InstanceSpec> held = instance_of_more_nodes(cluster, instance, refused)) {
    const std::string network = assumed_network(cluster, group);
    const int64_t nodes = (held->devices() + group.devices - 1) / group.devices;
    text += fmt::format("  {}: {} in place of {}{}{}\n", group.name, counted(nodes, "node"), group.count,
                        network.empty() ? "" : fmt::format(", over {}, which is assumed", network), with_options(*held));
  }
  return text;
}

/// Of the kinds of jobs that no deployment holds, what would hold the one with the longest rows, then the most adapter.
std::string advice_on_deployments(const std::set<int32_t>& kinds, const Trace& trace, const InstanceSpec& instance, const ClusterSpec& cluster) {
  if (kinds.empty()) return {};
  const auto kind_of = [&](int32_t kind) -> const JobKind& { return trace.kinds[static_cast<size_t>(kind)]; };
  const int32_t largest = *std::max_element(kinds.begin(), kinds.end(), [&](int32_t a, int32_t b) {
    const auto size = [&](int32_t kind) { return std::tuple(kind_of(kind).tokens, kind_of(kind).width, kind_of(kind).rows); };
    return size(a) < size(b);
  });
  const JobShape shape = shape_of(kind_of(largest), 0, instance.model);
  return fmt::format(
      "What would hold {}{}:\n{}", shape.name,
      kinds.size() > 1 ? fmt::format(", the largest of {} that fit nowhere", counted(std::ssize(kinds), "kind")) : "",
      // Deployments of a trace neither recompute nor shard anything.
      advise(instance.model, cluster, {shape}, {.dtype = instance.machine.dtype, .replicas = {}, .recompute = Recompute::never, .savings = {}}));
}

/// Jobs start in the order of their arrival, all on the replicas of all.
void note_what_replanning_ignores(const Trace& trace) {
  std::vector<std::string> ignored;
  const auto note = [&](const char* column, auto&& has) {
    if (std::ranges::any_of(trace.jobs, has)) ignored.emplace_back(column);
  };
  note("priority", [](const TraceJob& job) { return job.priority != 0; });
  note("deadline_min", [](const TraceJob& job) { return std::isfinite(job.deadline_s); });
  note("dedicated", [](const TraceJob& job) { return job.dedicated; });
  if (!ignored.empty()) fmt::print(stderr, "--replan: columns that are not read: {}\n", fmt::join(ignored, ", "));
}

/// One deployment for all jobs, under every rule of moving.
void simulate_replanning(const TraceArguments& arguments) {
  const TraceInputs inputs = read_trace_inputs(arguments);
  const InstancesOfCluster instances = instances_for(arguments, inputs);
  const Trace trace = trace_of(arguments, inputs);
  if (!arguments.save_trace.empty()) write_output("--save-trace", arguments.save_trace, trace_csv, to_csv(trace));
  note_what_replanning_ignores(trace);
  const std::vector<double> dedicated_round_s = dedicated_rounds(instances.spec, trace.kinds);
  ReplanSettings settings{.dtype = instances.spec.machine.dtype};
  settings.costs.restart_seconds = arguments.restart_s.value_or(settings.costs.restart_seconds);
  const MoveRule rules[] = {MoveRule::when_forced, MoveRule::always, MoveRule::when_it_pays};
  const std::vector<ReplannedTrace> results =
      replan_trace(trace, inputs.model, inputs.cluster, inputs.cluster.nodes.front(), dedicated_round_s, settings, rules);
  if (!arguments.csv.empty()) write_output("--csv", arguments.csv, replans_csv, to_csv(results, trace));
  if (!arguments.jobs_csv.empty()) write_output("--jobs-csv", arguments.jobs_csv, replanned_jobs_csv, jobs_csv(results, trace));
  if (!arguments.svg.empty()) {
    fs::create_directories(arguments.svg);
    write_output("--svg", fs::path(arguments.svg) / "completion.svg", picture_output, completion_chart(results, trace));
    write_output("--svg", fs::path(arguments.svg) / "timeline.svg", picture_output, timeline_chart(results, trace));
  }
  std::set<int32_t> refused;
  for (const ReplannedTrace& each : results) {
    for (size_t j = 0; j < each.jobs.size(); ++j) {
      if (std::isinf(each.jobs[j].finished_s)) refused.insert(trace.jobs[j].kind);
    }
  }
  const std::string advice = advice_on_deployments(refused, trace, instances.spec, inputs.cluster);
  if (!arguments.json) {
    fmt::print("{}{}", to_text(results, trace), advice);
    return;
  }
  nlohmann::ordered_json json{{"advice", advice}, {"results", nlohmann::ordered_json::array()}};
  for (const ReplannedTrace& each : results) json["results"].push_back(to_json(each, trace));
  fmt::print("{}\n", text_of_json(json, 2));
}

}  // namespace

void simulate_trace_command(const TraceArguments& arguments) {
  check_outputs_of(arguments);
  if (arguments.replan) return simulate_replanning(arguments);
  const StudySettings settings = study_settings(arguments);
  refuse_without_effect(arguments, settings);
  const TraceInputs inputs = read_trace_inputs(arguments);
  const InstancesOfCluster instances = instances_for(arguments, inputs);
  const Trace trace = trace_of(arguments, inputs);
  if (!arguments.save_trace.empty()) write_output("--save-trace", arguments.save_trace, trace_csv, to_csv(trace));
  const std::vector<StudyResult> results = run_study(trace, instances, settings, [&](const StudyResult& each) {
    if (arguments.compare && !arguments.json) fmt::print(stderr, "{}, {}: {}\n", each.summary.policy, each.summary.sharing, each.summary.rates);
  });
  std::vector<TraceSummary> summaries;
  for (const StudyResult& each : results) summaries.push_back(each.summary);
  if (!arguments.csv.empty()) write_output("--csv", arguments.csv, policies_csv, to_csv(summaries));
  if (!arguments.jobs_csv.empty()) write_output("--jobs-csv", arguments.jobs_csv, jobs_csv_output, jobs_csv(trace, results.front().simulation));
  if (!arguments.svg.empty()) write_charts(arguments.svg, trace, results);
  std::set<int32_t> refused;
  for (const StudyResult& each : results) {
    for (size_t j = 0; j < trace.jobs.size(); ++j) {
      if (each.simulation.jobs[j].fits_nowhere) refused.insert(trace.jobs[j].kind);
    }
  }
  const std::string advice = advice_on_instances(refused, trace, instances.spec, inputs.cluster);
  if (!arguments.json) {
    fmt::print("{}{}", to_text(summaries), advice);
    return;
  }
  nlohmann::json json{{"instance", describe(instances.spec)}, {"advice", advice}, {"results", nlohmann::json::array()}};
  for (const TraceSummary& each : summaries) json["results"].push_back(to_json(each));
  fmt::print("{}\n", text_of_json(json, 2));
}

}  // namespace cotune
