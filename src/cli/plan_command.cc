#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <memory>
#include <tuple>

#include "base/error.h"
#include "base/json_text.h"
#include "base/process_cores.h"
#include "base/quantity_text.h"
#include "cli/commands.h"
#include "cli/inputs/compute_dtype.h"
#include "cli/planning/plan_ends.h"
#include "cli/planning/planning_setup.h"
#include "cli/run/memory_check.h"
#include "console/command_line.h"
#include "console/output_file.h"
#include "jobs/memory_size.h"
#include "model/config/families.h"
#include "plan/cost/roofline_profile.h"
#include "plan/make_plan.h"
#include "plan/node_changes.h"
#include "plan/plan_json.h"
#include "plan/plan_report.h"
#include "plan/planning_json.h"
#include "plan/replica_models.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

struct PlanArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  std::string cluster, profile, output, svg, trace;
  int64_t replica = 0;
  bool compare = false, json = false;
};

/// `auto: 80% of what is free`, `60% of what is free`, `8GiB`.
std::string memory_rule(const RunSpec& run) {
  const MemorySize size = parse_memory_size(run.memory).value();
  return size.bytes > 0 ? run.memory
                        : fmt::format("{}{:.0f}% of what is free", run.memory == "auto" ? "auto: " : "", 100 * size.share);
}

/// The devices with as much memory for tensors as run.memory leaves, where it says so; what the cluster file says is free is
/// what tensors may take.
ClusterSpec with_memory(ClusterSpec cluster, const RunSpec& run) {
  const MemorySize size = parse_memory_size(run.memory).value();
  for (NodeGroup& group : cluster.nodes) {
    const int64_t limit = std::min(group.device.usable_bytes(), size.of(group.device.usable_bytes()));
    group.device.usable_memory = static_cast<double>(limit) / static_cast<double>(group.device.memory_bytes);
  }
  return cluster;
}

/// The type in which a checkpoint says that it has its weights.
at::ScalarType dtype_of_checkpoint(const ModelConfig& model) {
  return model.dtype == "bfloat16" ? at::kBFloat16 : model.dtype == "float16" ? at::kHalf : at::kFloat;
}

/// This machine as `cotune train` would find it now: of its memory what the run's limit leaves for tensors, and weights as they are held.
ClusterSpec with_memory_here(ClusterSpec machine, const RunSpec& run, const ModelConfig& model, const std::string& dtype) {
  const ComputeDevice device = choose_device("cpu", "run.device");
  DeviceSpec& here = machine.nodes.front().device;
  const int64_t limit = tensor_limit(memory_limit(run, device), device);
  here.usable_memory = std::clamp(static_cast<double>(limit) / static_cast<double>(here.memory_bytes), 0.0, 1.0);
  if (!model_family(model.family).shape_only) here.weights = weight_forms(dtype_of_checkpoint(model), torch_dtype(dtype), device);
  return machine;
}

/// Rows that are planned shorter than they are.
std::string truncation_text(const std::vector<JobShape>& jobs) {
  std::string text;
  for (const JobShape& job : jobs) {
    if (job.truncated_share < 1e-6) continue;  // of a published distribution that ends just there
    text += fmt::format("  {}: {:.3g}% of the rows are longer than {} tokens and are cut to that (data.max_length, or the model's context)\n",
                        job.name, 100 * job.truncated_share, job.lengths.longest());
  }
  return text.empty() ? "" : "Truncated rows:\n" + text;
}

/// The schedule of one replica of the chosen plan, simulated again: one step of each job in turn, or of all
/// together.
ReplicaRun simulated_replica(const PlanningResult& result, const ModelConfig& model,
                             const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                             const MeasuredTimes* measured, int64_t index) {
  const Plan& plan = *result.plan();
  if (index >= static_cast<int64_t>(plan.replicas.size())) {
    throw_user_error("--replica: must be below {}, the number of replicas of the plan, got {}",
                     plan.replicas.size(), index);
  }
  const auto place = static_cast<size_t>(index);
  const PlannedReplica& replica = plan.replicas[place];
  if (replica.rows.empty()) throw_user_error("--replica: replica {} has no rows of the typical step", index);
  const ReplicaModel priced_on = replica_models(plan, model, cluster, jobs, measured)[place];
  const PricedRows priced = price_rows(priced_on, replica.rows, packing_of(plan, replica));
  ReplicaPrediction prediction = predict_replica(priced_on, priced, plan.order, PlanOptions{}.rounds);
  COTUNE_CHECK(prediction.fits() && !prediction.runs.empty(), "{}", prediction.constraint);
  return std::move(prediction.runs.front());
}

void write_pictures(const PlanArguments& arguments, const PlanningResult& result, const ModelConfig& model,
                    const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const MeasuredTimes* measured) {
  if (arguments.svg.empty() && arguments.trace.empty()) return;
  const ReplicaRun run = simulated_replica(result, model, cluster, jobs, measured, arguments.replica);
  const std::string title = fmt::format("replica {} of {}", arguments.replica, replicas_text(*result.plan()));
  if (!arguments.svg.empty()) {
    write_output("--svg", arguments.svg, picture_output, render_svg(run.schedule, run.simulation, {.title = title}));
  }
  if (!arguments.trace.empty()) write_output("--trace", arguments.trace, trace_output, render_trace(run.schedule, run.simulation));
}

/// Exit code: 0 a plan was found; 2 nothing fits.
int plan(const PlanArguments& arguments) {
  check_outputs(std::to_array<Output>({{"--output", arguments.output, plan_output},
                                       {"--svg", arguments.svg, picture_output},
                                       {"--trace", arguments.trace, trace_output}}));
  PlanningSetup setup = read_planning_setup({.command = "plan",
                                             .jobs_file = arguments.jobs_file,
                                             .overrides = arguments.overrides,
                                             .cluster = arguments.cluster,
                                             .profile = arguments.profile,
                                             .dtype = "",
                                             .read = {"run.layout", "run.chunk_size", "run.recompute", "run.sharing", "run.token_budget",
                                                      "run.memory"}});
  const RunSpec& run = setup.jobs_file.run;
  const auto is_given = [&](const char* option) { return setup.run_places.contains(option); };
  const bool is_here = arguments.cluster.empty();
  const std::string machine_hash = hash_of(setup.cluster);
  if (is_here) {
    setup.cluster = with_memory_here(std::move(setup.cluster), run, setup.model, setup.options.dtype);
  } else if (run.memory != "auto") {
    setup.cluster = with_memory(std::move(setup.cluster), run);
  }
  const auto& [model, jobs, cluster] = std::tie(setup.model, setup.jobs, setup.cluster);
  PlanOptions& options = setup.options;
  options.threads = static_cast<int64_t>(cores_of_this_process().size());
  if (is_given("run.sharing")) options.sharing = {run.sharing};
  if (is_given("run.token_budget")) options.token_budget = run.token_budget;
  if (arguments.compare) {
    options.deployments = {System::task_sequential, System::task_fused, System::lobra_sequential,
                           System::lobra};
  }
  PlanningResult result = make_plan(model, cluster, jobs, options);
  // Memory that run.memory leaves, or that is free here for the moment, makes no other machine.
  for (Alternative& each : result.alternatives) {
    for (Plan& plan : each.plans) plan.cluster_hash = machine_hash;
  }
  const std::vector<NodeChange> changes = node_changes(model, cluster, jobs, options, result);
  std::vector<PlannedEnd> ends;
  if (result.plan() != nullptr) ends = planned_ends(setup.jobs_file.jobs, setup.steps, result.plan()->predicted.seconds, std::time(nullptr));
  if (arguments.json) {
    nlohmann::ordered_json json = to_json(result, changes);
    for (const NodeGroup& group : cluster.nodes) json["tensor_bytes_limit"][group.name] = group.device.usable_bytes();
    for (const JobShape& job : jobs) json["truncated_share"][job.name] = job.truncated_share;
    json["ends"] = to_json(ends);
    fmt::print("{}\n", text_of_json(json));
  } else {
    if (setup.profile != nullptr) {
      const ProfileFingerprint& origin = setup.profile->profile.fingerprint;
      fmt::print("Times are those of {}, {} {}{}.\n", arguments.profile,
                 origin.kernels == roofline_kernels ? "by the data sheet of" : "measured on", origin.device,
                 setup.profile->times.collectives().fits().empty() ? "" : ", messages and collectives within a node included");
      const bool divides = std::ranges::any_of(result.configurations, [](const auto& each) { return each.tensor_parallel > 1; });
      if (divides) fmt::print("Operators of divided layers are estimated from those of whole ones: the call, and the share of the rest.\n");
    }
    if (is_here && setup.profile == nullptr) {
      const DeviceSpec& device = cluster.nodes.front().device;
      fmt::print(
          "Times are a guess for this machine, every two cores as the preset cpu: {} GFLOP/s in {}. `cotune profile` measures it, --profile takes "
          "that.\n",
          std::llround(device.flops.at(options.dtype) * device.compute_efficiency / 1e9), options.dtype);
    }
    if (is_here || run.memory != "auto") {
      fmt::print("Memory: run.memory is {}{}: {} for tensors.\n", memory_rule(run), is_here ? " on this machine, as for cotune train" : "",
                 bytes_text(cluster.nodes.front().device.usable_bytes()));
    }
    fmt::print("{}", truncation_text(jobs));
    fmt::print("{}", explain(result, cluster, sweeps_of(setup.jobs_file.jobs)));
    if (result.plan() != nullptr) fmt::print("{}{}", explain(changes, result.plan()->predicted), to_text(ends));
  }
  if (result.plan() == nullptr) {
    if (arguments.json) fmt::print(stderr, "No plan: nothing that was tried fits.\n{}", result.advice);
    return 2;
  }
  if (!arguments.output.empty()) write_output("--output", arguments.output, plan_output, text_of_json(to_json(*result.plan()), 2) + "\n");
  write_pictures(arguments, result, model, cluster, jobs, options.measured);
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "Choose what should run where for the jobs of a jobs file, and say why");
  command->add_option("jobs_file", arguments->jobs_file, "The jobs file (docs/jobs-file.md)")->required();
  command->add_option("--cluster", arguments->cluster,
                      "The cluster file (docs/planning.md); default: this machine's CPU");
  command
      ->add_option("--set", arguments->overrides,
                   "key=value: replaces what the jobs file says; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--profile", arguments->profile,
                      "A profile of the cluster's devices (cotune profile), in place of their data sheets");
  command->add_flag("--compare", arguments->compare,
                    "Also predict the deployments that run one job after the other");
  command->add_flag("--json", arguments->json, "Everything as one JSON object on standard output");
  command->add_option("--output", arguments->output, "Write the plan to this file, as JSON");
  CLI::Option* svg = command->add_option("--svg", arguments->svg, "Draw the pipeline of one replica, two steps of it, to this file");
  CLI::Option* trace = command->add_option("--trace", arguments->trace, "The same as trace events, for ui.perfetto.dev");
  CLI::Option* replica = command->add_option("--replica", arguments->replica, "Which replica --svg and --trace show; default 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}));
  command->callback([arguments, svg, trace, replica] {
    if (replica->count() > 0 && svg->count() + trace->count() == 0) throw_user_error("--replica: says what --svg or --trace show; neither is given");
    exit_code() = plan(*arguments);
  });
}

}  // namespace cotune
