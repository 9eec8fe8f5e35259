#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/planned_jobs.h"
#include "cli/profile_fingerprint.h"
#include "cli/run_setup.h"
#include "jobs/jobs_file.h"
#include "plan/plan_json.h"
#include "plan/plan_report.h"
#include "plan/planning_json.h"
#include "plan/replica_models.h"
#include "plan/shapes/cluster_file.h"
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

/// This machine: one device, the preset `cpu` with the memory that the machine has.
ClusterSpec this_machine() {
  DeviceSpec device = device_preset("cpu");
  const auto pages = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)),
             page_bytes = static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
  if (pages > 0 && page_bytes > 0) device.memory_bytes = pages * page_bytes;
  return {.nodes = {{.name = "this-machine", .device = device}}, .network = {}};
}

std::string planned_dtype(const ModelSpec& model, const ClusterSpec& cluster) {
  if (model.dtype != "auto") return model.dtype;
  for (const NodeGroup& group : cluster.nodes) {
    if (!group.device.flops.contains("bfloat16")) return "float32";
  }
  return "bfloat16";
}

/// A profile with its fits, for jobs and a cluster that it holds for.
struct PlanProfile {
  Profile profile;
  MeasuredTimes times;
};

/// Without a cluster file it must be of this machine; a cluster of one kind of devices is taken to be of the profile's.
std::unique_ptr<PlanProfile> profile_for(const PlanArguments& arguments, const ModelSpec& model, const ModelConfig& config,
                                         const ClusterSpec& cluster) {
  Profile profile = read_profile(arguments.profile);
  if (model.dtype != "auto" && model.dtype != profile.fingerprint.dtype) {
    throw_user_error("{}: was measured in {}, model.dtype is {}", arguments.profile, profile.fingerprint.dtype, model.dtype);
  }
  if (arguments.cluster.empty()) {
    ModelSpec measured = model;
    measured.dtype = profile.fingerprint.dtype;
    const ComputeDevice device = choose_device("cpu", "--profile");
    check_fingerprint(profile, fingerprint_here(config, compute_dtype(measured, device), device), arguments.profile);
  }
  for (const NodeGroup& group : cluster.nodes) {
    if (group.device != cluster.nodes.front().device) {
      throw_user_error("{}: nodes of {} and of {}: a profile is of one device", arguments.cluster, cluster.nodes.front().name,
                       group.name);
    }
  }
  MeasuredTimes times(profile, config, arguments.profile);
  return std::make_unique<PlanProfile>(PlanProfile{std::move(profile), std::move(times)});
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
  const std::vector<StepRow>& rows = result.alternatives[*result.chosen].rows.front()[place];
  if (rows.empty()) throw_user_error("--replica: replica {} has no rows of the typical step", index);
  const ReplicaModel priced_on = replica_models(plan, model, cluster, jobs, measured)[place];
  const PricedRows priced =
      price_rows(priced_on, rows,
                 {plan.sharing, plan.layout, plan.chunk_size, replica.token_budget, replica.hybrid_tasks, replica.buckets});
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
    write_file_atomically(arguments.svg, render_svg(run.schedule, run.simulation, {.title = title}));
  }
  if (!arguments.trace.empty())
    write_file_atomically(arguments.trace, render_trace(run.schedule, run.simulation));
}

/// Exit code: 0 a plan was found; 2 nothing fits.
int plan(const PlanArguments& arguments) {
  const JobsFile jobs_file = read_jobs_file(arguments.jobs_file, arguments.overrides, Purpose::plan);
  const ClusterSpec cluster =
      arguments.cluster.empty() ? this_machine() : read_cluster_file(arguments.cluster);
  const auto [model, jobs] = planned_jobs(jobs_file);
  PlanOptions options;
  options.dtype = planned_dtype(jobs_file.model, cluster);
  options.layout = jobs_file.run.layout;
  options.chunk_size = jobs_file.run.chunk_size;
  options.recompute = jobs_file.run.recompute;
  std::unique_ptr<PlanProfile> profile;
  if (!arguments.profile.empty()) {
    profile = profile_for(arguments, jobs_file.model, model, cluster);
    options.dtype = profile->profile.fingerprint.dtype;
    options.measured = &profile->times;
    options.profile_hash = checksum(read_file(arguments.profile));
  }
  if (arguments.compare) {
    options.deployments = {System::task_sequential, System::task_fused, System::lobra_sequential,
                           System::lobra};
  }
  const PlanningResult result = make_plan(model, cluster, jobs, options);
  const std::vector<NodeChange> changes = node_changes(model, cluster, jobs, options, result);
  if (arguments.json) {
    fmt::print("{}\n", to_json(result, changes).dump());
  } else {
    if (profile != nullptr) {
      fmt::print("Times are those of {}, measured on {}.\n", arguments.profile, profile->profile.fingerprint.device);
    }
    fmt::print("{}", explain(result, cluster));
    if (result.plan() != nullptr) fmt::print("{}", explain(changes, result.plan()->predicted));
  }
  if (result.plan() == nullptr) {
    if (arguments.json) fmt::print(stderr, "No plan: nothing that was tried fits.\n{}", result.advice);
    return 2;
  }
  if (!arguments.output.empty())
    write_file_atomically(arguments.output, to_json(*result.plan()).dump(2) + "\n");
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
  command->add_option("--svg", arguments->svg,
                      "Draw the pipeline of one replica, two steps of it, to this file");
  command->add_option("--trace", arguments->trace, "The same as trace events, for ui.perfetto.dev");
  command->add_option("--replica", arguments->replica, "Which replica --svg and --trace show; default 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}));
  command->callback([arguments] { exit_code() = plan(*arguments); });
}

}  // namespace cotune
