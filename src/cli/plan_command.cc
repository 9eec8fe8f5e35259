#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_text.h"
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

namespace fs = std::filesystem;

struct PlanArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  std::string cluster, output, svg, trace;
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

/// Shape and text side of the model. No weights are read, nor need they be there.
ModelFiles model_without_weights(const ModelSpec& spec) {
  const std::string& source = spec.path.empty() ? spec.config : spec.path;
  ModelFiles files{.path = source, .config = find_model_config(source), .tokenizer = {}, .weights = nullptr};
  fs::path folder = source;
  if (folder.filename() == "config.json") folder = folder.parent_path();
  if (fs::is_directory(folder)) {
    files.tokenizer = find_tokenizer_files(folder, files.config.eos_token_ids);
  } else if (fs::is_regular_file(folder) && folder.extension() == ".gguf") {
    files.tokenizer = tokenizer_files_of(GgufFile(folder));
  }
  return files;
}

/// Lengths of the tokenised examples of data.train.
ReadLengths length_reader(const ModelFiles& files) {
  auto text = std::make_shared<ModelText>(files);
  return [text, config = files.config](const JobSpec& job) {
    Diagnostics diagnostics;
    const JobData data = read_data(job, *text, config, diagnostics);
    diagnostics.throw_if_any();
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < data.train.size(); ++i)
      lengths.push_back(static_cast<int64_t>(data.train.tokens(i).size()));
    return histogram_of(lengths);
  };
}

std::string planned_dtype(const ModelSpec& model, const ClusterSpec& cluster) {
  if (model.dtype != "auto") return model.dtype;
  for (const NodeGroup& group : cluster.nodes) {
    if (!group.device.flops.contains("bfloat16")) return "float32";
  }
  return "bfloat16";
}

/// The schedule of one replica of the chosen plan, simulated again: one step of each job in turn, or of all
/// together.
ReplicaRun simulated_replica(const PlanningResult& result, const ModelConfig& model,
                             const ClusterSpec& cluster, const std::vector<JobShape>& jobs, int64_t index) {
  const Plan& plan = *result.plan();
  if (index >= static_cast<int64_t>(plan.replicas.size())) {
    throw_user_error("--replica: must be below {}, the number of replicas of the plan, got {}",
                     plan.replicas.size(), index);
  }
  const auto place = static_cast<size_t>(index);
  const PlannedReplica& replica = plan.replicas[place];
  const std::vector<StepRow>& rows = result.alternatives[*result.chosen].rows.front()[place];
  if (rows.empty()) throw_user_error("--replica: replica {} has no rows of the typical step", index);
  const ReplicaModel priced_on = replica_models(plan, model, cluster, jobs)[place];
  const PricedRows priced =
      price_rows(priced_on, rows,
                 {plan.sharing, plan.layout, plan.chunk_size, replica.token_budget, replica.hybrid_tasks});
  ReplicaPrediction prediction = predict_replica(priced_on, priced, plan.order, PlanOptions{}.rounds);
  COTUNE_CHECK(prediction.fits() && !prediction.runs.empty(), "{}", prediction.constraint);
  return std::move(prediction.runs.front());
}

void write_pictures(const PlanArguments& arguments, const PlanningResult& result, const ModelConfig& model,
                    const ClusterSpec& cluster, const std::vector<JobShape>& jobs) {
  if (arguments.svg.empty() && arguments.trace.empty()) return;
  const ReplicaRun run = simulated_replica(result, model, cluster, jobs, arguments.replica);
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
  const ModelFiles files = model_without_weights(jobs_file.model);
  const bool reads_data = std::any_of(jobs_file.jobs.begin(), jobs_file.jobs.end(),
                                      [](const JobSpec& job) { return job.data.lengths.empty(); });
  const std::vector<JobShape> jobs =
      job_shapes(jobs_file.jobs, files.config, reads_data ? length_reader(files) : ReadLengths(nullptr));
  PlanOptions options;
  options.dtype = planned_dtype(jobs_file.model, cluster);
  options.layout = jobs_file.run.layout;
  options.chunk_size = jobs_file.run.chunk_size;
  options.recompute = jobs_file.run.recompute;
  if (arguments.compare) {
    options.deployments = {System::task_sequential, System::task_fused, System::lobra_sequential,
                           System::lobra};
  }
  const PlanningResult result = make_plan(files.config, cluster, jobs, options);
  const std::vector<NodeChange> changes = node_changes(files.config, cluster, jobs, options, result);
  if (arguments.json) {
    fmt::print("{}\n", to_json(result, changes).dump());
  } else {
    fmt::print("{}", explain(result, cluster));
    if (result.plan() != nullptr) fmt::print("{}", explain(changes, result.plan()->predicted));
  }
  if (result.plan() == nullptr) {
    if (arguments.json) fmt::print(stderr, "No plan: nothing that was tried fits.\n{}", result.advice);
    return 2;
  }
  if (!arguments.output.empty())
    write_file_atomically(arguments.output, to_json(*result.plan()).dump(2) + "\n");
  write_pictures(arguments, result, files.config, cluster, jobs);
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
