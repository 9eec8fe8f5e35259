#include "cli/planning/simulated_step.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/json_text.h"
#include "base/quantity_text.h"
#include "cli/planning/planning_setup.h"
#include "cluster/instance_plan.h"
#include "cluster/plan_study.h"
#include "console/output_file.h"
#include "jobs/job_list.h"
#include "plan/make_plan.h"
#include "plan/plan_json.h"
#include "plan/plan_origin.h"
#include "plan/plan_report.h"
#include "plan/planning_json.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

Plan plan_of_file(const StepArguments& arguments, const PlanningSetup& setup) {
  Plan plan = read_plan(arguments.plan_file);
  const std::string origin = other_origin(plan, setup.cluster, setup.options.profile_hash);
  if (!origin.empty()) {
    fmt::print(stderr, "{}: was made for {}, and predicted {} a step there; here it is priced anew\n", arguments.plan_file, origin,
               seconds_text(plan.predicted.seconds, false));
  }
  return plan;
}

Plan plan_of_instance(const StepArguments& arguments, const PlanningSetup& setup) {
  InstanceSettings settings{.tensor_parallel = arguments.tensor_parallel,
                            .pipeline_stages = arguments.pipeline_stages,
                            .sharing = setup.jobs_file.run.sharing};
  if (setup.run_places.contains("run.token_budget")) settings.token_budget = setup.jobs_file.run.token_budget;
  return plan_instance(setup.model, setup.cluster, setup.jobs, settings, setup.options, arguments.cluster_file);
}

/// `replica-0.svg`; `replica-0-JOB.svg` where jobs go one after the other.
void write_pictures(const StepArguments& arguments, const PlanStudy& study, const Plan& plan) {
  if (!arguments.perfetto.empty()) write_output("--perfetto", arguments.perfetto, trace_output, render_trace(study, plan));
  if (arguments.svg.empty()) return;
  fs::create_directories(arguments.svg);
  for (size_t r = 0; r < study.replicas.size(); ++r) {
    for (const StudiedRun& each : study.replicas[r].runs) {
      const std::string suffix = each.name.empty() ? "" : "-" + each.name;
      const std::string title = fmt::format("replica {} of {}{}", r, replicas_text(plan), each.name.empty() ? "" : ", job " + each.name);
      write_output("--svg", fs::path(arguments.svg) / fmt::format("replica-{}{}.svg", r, suffix), picture_output,
                   render_svg(each.run.schedule, each.run.simulation, {.title = title}));
    }
  }
}

}  // namespace

void simulate_step(const StepArguments& arguments) {
  if (!arguments.perfetto.empty()) check_output("--perfetto", arguments.perfetto, trace_output);
  Disturbances slow;
  for (const std::string& each : arguments.slow) slow.stages.push_back(parse_slowdown(each));
  for (const std::string& each : arguments.slow_links) slow.links.push_back(parse_slow_link(each));
  PlanningSources sources{.command = "simulate --jobs",
                          .jobs_file = arguments.jobs_file,
                          .overrides = arguments.overrides,
                          .cluster = arguments.cluster_file,
                          .profile = arguments.profile,
                          .dtype = arguments.dtype,
                          .has_dtype_option = true,
                          .read = {"run.layout", "run.chunk_size", "run.recompute", "run.sharing", "run.token_budget"}};
  if (!arguments.plan_file.empty()) {
    sources.command = "simulate --plan";
    sources.has_dtype_option = false;  // --plan excludes it
    sources.read.clear();
  }
  const PlanningSetup setup = read_planning_setup(sources);
  const Plan plan = arguments.plan_file.empty() ? plan_of_instance(arguments, setup) : plan_of_file(arguments, setup);
  const auto replicas = static_cast<int64_t>(plan.replicas.size());
  if (arguments.replica >= replicas) {
    throw_user_error("--replica: must be below {}, the number of replicas of the plan, got {}", replicas, arguments.replica);
  }
  PlanStudy study;
  try {
    study = study_plan(plan, setup.model, setup.cluster, setup.jobs, slow, setup.options);
  } catch (const UserError& error) {
    throw_user_error("{}{}{}", arguments.plan_file, arguments.plan_file.empty() ? "" : ": ", error.what());
  }
  write_pictures(arguments, study, plan);
  std::vector<ConsideredGrouping> groupings;  // a plan's own are told by `cotune plan`
  if (arguments.plan_file.empty() && plan.sharing == Sharing::hybrid) {
    groupings = groupings_of(plan, setup.model, setup.cluster, setup.jobs, setup.options);
  }
  if (!arguments.json) {
    const SweepOfJob sweeps = sweeps_of(setup.jobs_file.jobs);
    fmt::print("{}{}", to_text(study, plan, static_cast<size_t>(arguments.replica), sweeps), other_groupings(plan, groupings, sweeps));
    return;
  }
  nlohmann::ordered_json json = to_json(study, plan);
  json["groupings"] = nlohmann::ordered_json::array();
  for (const ConsideredGrouping& each : groupings) json["groupings"].push_back(to_json(each));
  fmt::print("{}\n", text_of_json(json, 2));
}

}  // namespace cotune
