#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "cluster/plan_study.h"
#include "plan/deployment/configuration.h"
#include "plan/plan_report.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

/// `bucket A: a + b | c`: tasks between bars, their jobs joined. Replicas of hundreds of jobs end in dots.
std::string tasks_text(const Plan& plan, const PlannedReplica& replica, const SweepOfJob& sweeps) {
  constexpr size_t most_shown = 16;
  std::string text;
  for (size_t b = 0; b < std::min(most_shown, replica.buckets.size()); ++b) {
    std::vector<std::string> tasks;
    for (const int32_t task : replica.buckets[b]) {
      tasks.push_back(job_list(names_of_jobs(plan, replica.hybrid_tasks[static_cast<size_t>(task)]), sweeps, " + "));
    }
    text += fmt::format("  bucket {}: {}\n", static_cast<char>('A' + b % 26), fmt::join(tasks, " | "));
  }
  if (replica.buckets.size() > most_shown) text += fmt::format("  … {}\n", counted(std::ssize(replica.buckets), "bucket"));
  return text;
}

/// One replica: its jobs, pipelines and stages.
std::string replica_text(const StudiedReplica& studied, const Plan& plan, size_t index, const SweepOfJob& sweeps) {
  const PlannedReplica& replica = plan.replicas[index];
  if (studied.runs.empty()) return fmt::format("\nreplica {} has no rows of the step\n", index);
  std::string text = fmt::format("\nreplica {}, microbatches of at most {} tokens:\n", index, replica.token_budget);
  if (plan.sharing == Sharing::hybrid) text += tasks_text(plan, replica, sweeps);
  for (const StudiedRun& each : studied.runs) {
    if (!each.name.empty()) text += fmt::format("job {}:\n", each.name);
    text += render_text(each.run.schedule, each.run.simulation);
  }
  if (replica.pipeline_stages() > 1) {
    text += fmt::format("messages of a step: {}, {}\n", studied.message_count, bytes_text(studied.message_bytes));
  }
  for (size_t s = 0; s < studied.stages.size(); ++s) {
    const StudiedStage& stage = studied.stages[s];
    text += fmt::format("stage {}: busy {} of a step, memory {} of {}\n", s, seconds_text(stage.busy_s, false),
                        bytes_text(stage.memory_bytes), bytes_text(stage.memory_limit_bytes));
  }
  return text;
}

}  // namespace

std::string to_text(const PlanStudy& study, const Plan& plan, size_t drawn, const SweepOfJob& sweeps) {
  double slowest_s = study.step_s - study.exchange_s;
  std::string text =
      fmt::format("A step of {}, {}, {}: {} = slowest replica {} + exchange of gradients {}; {:.0f} tokens/s; {:.3f} times the planned {}\n",
                  replicas_text(plan), name_of(plan.sharing), name_of(plan.layout), seconds_text(study.step_s, false), seconds_text(slowest_s, false),
                  seconds_text(study.exchange_s, false), static_cast<double>(study.tokens) / study.step_s, study.step_s / study.planned_step_s,
                  seconds_text(study.planned_step_s, false));
  if (plan.replicas.size() > 1) {
    text += fmt::format("  in {} behind the last backward: {} of exchange, {} of it exposed: a step of {}\n",
                        counted(study.hidden.buckets, "bucket"), seconds_text(study.hidden.seconds, false),
                        seconds_text(study.hidden.exposed_s, false), seconds_text(slowest_s + study.hidden.exposed_s, false));
  }
  for (size_t r = 0; r < study.replicas.size(); ++r) {
    const StudiedReplica& replica = study.replicas[r];
    const PlannedReplica& planned = plan.replicas[r];
    text += fmt::format("  replica {}: {}, planned {}, simulated {}, idle until the step ends {:.1f}%\n", r,
                        configuration_name(planned.tensor_parallel, planned.is_sequence_parallel, planned.pipeline_stages(), 1),
                        seconds_text(replica.planned_s, false),
                        seconds_text(replica.simulated_s, false), 100 * replica.idle);
  }
  return text + replica_text(study.replicas[drawn], plan, drawn, sweeps);
}

nlohmann::ordered_json to_json(const PlanStudy& study, const Plan& plan) {
  nlohmann::ordered_json replicas = nlohmann::ordered_json::array();
  for (size_t r = 0; r < study.replicas.size(); ++r) {
    const StudiedReplica& replica = study.replicas[r];
    nlohmann::ordered_json stages = nlohmann::ordered_json::array();
    for (const StudiedStage& each : replica.stages) {
      stages.push_back({{"busy_s", each.busy_s}, {"memory_bytes", each.memory_bytes}, {"memory_limit_bytes", each.memory_limit_bytes}});
    }
    const PlannedReplica& planned = plan.replicas[r];
    replicas.push_back({{"tensor_parallel", planned.tensor_parallel},
                        {"sequence_parallel", planned.is_sequence_parallel},
                        {"token_budget", planned.token_budget},
                        {"hybrid_tasks", planned.hybrid_tasks},
                        {"buckets", planned.buckets},
                        {"planned_s", replica.planned_s},
                        {"simulated_s", replica.simulated_s},
                        {"idle", replica.idle},
                        {"messages", replica.message_count},
                        {"message_bytes", replica.message_bytes},
                        {"stages", std::move(stages)}});
  }
  return {{"jobs", plan.jobs},
          {"sharing", name_of(plan.sharing)},
          {"layout", name_of(plan.layout)},
          {"recompute", plan.recompute == Recompute::always},
          {"tokens", study.tokens},
          {"planned_step_s", study.planned_step_s},
          {"step_s", study.step_s},
          {"exchange_s", study.exchange_s},
          {"hidden_exchange",
           {{"buckets", study.hidden.buckets}, {"seconds", study.hidden.seconds}, {"exposed_s", study.hidden.exposed_s}}},
          {"replicas", std::move(replicas)}};
}

}  // namespace cotune
