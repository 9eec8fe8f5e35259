#include "cluster/plan_study.h"

#include <algorithm>

#include "base/error.h"
#include "plan/plan_origin.h"
#include "plan/plan_totals.h"
#include "plan/replica_models.h"
#include "schedule/pipeline/render.h"

namespace cotune {
namespace {

/// Per run of layers: its last backward in a run that ends `end_s` into the replica's step.
std::vector<LastBackward> last_backwards(const ReplicaRun& run, double end_s) {
  std::vector<LastBackward> result(static_cast<size_t>(run.work.stage_count()));
  for (size_t rank = 0; rank < run.simulation.ranks.size(); ++rank) {
    for (const SimulatedSpan& span : run.simulation.ranks[rank].spans) {
      const Action& action = run.schedule.ranks[rank][span.action];
      if (action.kind != ActionKind::backward) continue;
      result[static_cast<size_t>(action.stage)] = {end_s - (run.simulation.makespan_s - span.start_s),
                                                   end_s - (run.simulation.makespan_s - span.end_s)};
    }
  }
  return result;
}

std::vector<StudiedStage> studied_stages(const ReplicaModel& model, const ReplicaPrediction& prediction) {
  std::vector<StudiedStage> stages;
  for (const StageMemory& memory : prediction.memory) {
    stages.push_back({.memory_bytes = memory.total() - memory.activations, .memory_limit_bytes = model.memory_limit});
  }
  return stages;
}

class ReplicaStudy {
 public:
  ReplicaStudy(const ReplicaModel& model, const Plan& plan, const Disturbances& slow, int64_t rounds)
      : model_(model), plan_(plan), slow_(slow), rounds_(static_cast<double>(rounds)) {}

  /// The first stage of the replica is `first_rank`.
  StudiedReplica run(size_t index, int64_t first_rank) const {
    const PlannedReplica& replica = plan_.replicas[index];
    const std::vector<StepRow>& rows = replica.rows;
    StudiedReplica result;
    result.stages.resize(replica.stages.size());
    if (rows.empty()) return result;
    const PricedRows priced = price_rows(model_, rows, packing_of(plan_, replica));
    ReplicaPrediction prediction = predict_replica(model_, priced, plan_.order, static_cast<int64_t>(rounds_));
    if (!prediction.fits()) throw_user_error("replica {}: {}", index, prediction.constraint);
    result.planned_s = prediction.seconds;
    result.stages = studied_stages(model_, prediction);
    std::vector<int64_t> activations(replica.stages.size(), 0);
    double start_s = 0;
    for (size_t r = 0; r < prediction.runs.size(); ++r) {
      StudiedRun& studied = result.runs.emplace_back(StudiedRun{.start_s = start_s, .run = std::move(prediction.runs[r])});
      if (prediction.runs.size() > 1) studied.name = plan_.jobs[static_cast<size_t>(priced.hybrid_tasks[r].front())];
      ReplicaRun& run = studied.run;
      run.simulation = simulate(run.work, run.schedule, slow_.slowed(model_.links, first_rank, run.work.rank_count, start_s));
      start_s += run.simulation.makespan_s;
      result.message_count += run.simulation.message_count;
      result.message_bytes += run.simulation.message_bytes;
      for (size_t s = 0; s < activations.size(); ++s) {
        result.stages[s].busy_s += run.simulation.ranks[s].busy_s / rounds_;
        activations[s] = std::max(activations[s], run.simulation.ranks[s].peak_bytes);
      }
    }
    result.simulated_s = start_s / rounds_;
    result.message_count = static_cast<int64_t>(static_cast<double>(result.message_count) / rounds_);
    result.message_bytes = static_cast<int64_t>(static_cast<double>(result.message_bytes) / rounds_);
    for (size_t s = 0; s < activations.size(); ++s) result.stages[s].memory_bytes += activations[s];
    return result;
  }

 private:
  const ReplicaModel& model_;
  const Plan& plan_;
  const Disturbances& slow_;
  double rounds_;
};

}  // namespace

PlanStudy study_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                     const Disturbances& slow, const PlanOptions& options) {
  check_plan(plan, model, cluster, jobs);
  slow.check(plan);
  const std::vector<ReplicaModel> models =
      replica_models(plan, model, cluster, jobs, options.measured, options.replicas.gather_overlap);
  PlanStudy study;
  std::vector<std::vector<LastBackward>> last;
  int64_t first_rank = 0;
  double planned_s = 0, simulated_s = 0;
  for (size_t r = 0; r < models.size(); ++r) {
    const StudiedReplica& replica =
        study.replicas.emplace_back(ReplicaStudy(models[r], plan, slow, options.rounds).run(r, first_rank));
    first_rank += plan.replicas[r].pipeline_stages();
    planned_s = std::max(planned_s, replica.planned_s);
    simulated_s = std::max(simulated_s, replica.simulated_s);
    last.push_back(replica.runs.empty() ? std::vector<LastBackward>(plan.replicas[r].layer_runs().size())
                                        : last_backwards(replica.runs.back().run, replica.simulated_s));
    for (const StepRow& row : plan.replicas[r].rows) study.tokens += row.tokens;
  }
  const double exchange_s = exchange_seconds(plan, model, jobs, exchange_link(plan, cluster));
  const LinkSpec slowest = slow.exchange_link(plan, cluster);
  study.exchange_s = exchange_seconds(plan, model, jobs, slowest);
  study.planned_step_s = planned_s + exchange_s;
  study.step_s = simulated_s + study.exchange_s;
  for (StudiedReplica& replica : study.replicas) {
    double busy_s = 0;
    for (const StudiedStage& stage : replica.stages) busy_s += stage.busy_s;
    replica.idle = 1 - busy_s / (study.step_s * static_cast<double>(replica.stages.size()));
  }
  if (plan.replicas.size() > 1) {
    study.hidden = hide_exchange(plan, model, jobs, slowest, last);
  }
  return study;
}

std::string render_trace(const PlanStudy& study, const Plan& plan) {
  std::vector<TracedRun> runs;
  int64_t first_rank = 0;
  for (size_t r = 0; r < study.replicas.size(); ++r) {
    for (const StudiedRun& each : study.replicas[r].runs) {
      runs.push_back({.schedule = &each.run.schedule,
                      .simulation = &each.run.simulation,
                      .name = study.replicas.size() > 1 ? "replica " + std::to_string(r) : "",
                      .process = static_cast<int64_t>(r),
                      .first_rank = first_rank,
                      .start_s = each.start_s});
    }
    first_rank += plan.replicas[r].pipeline_stages();
  }
  return render_trace(runs);
}

}  // namespace cotune
