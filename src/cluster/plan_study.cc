#include "cluster/plan_study.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/quantity_text.h"
#include "plan/deployment/placement.h"
#include "plan/plan_totals.h"
#include "plan/planned_rows.h"
#include "plan/replica_models.h"
#include "schedule/memory.h"

namespace cotune {
namespace {

/// A replica, run.
struct SimulatedReplica {
  double planned_s = 0, simulated_s = 0, busy_s = 0;
  /// Per stage: its last backward, by how long before the end of the replica's step it ends, and how long it takes.
  struct LastBackward {
    double before_end_s = 0, seconds = 0;
  };
  std::vector<LastBackward> last;
};

bool is_backward(const Action& action) { return action.kind == ActionKind::backward; }

/// One run of a work with slow stages; the first stage of the replica is `first_rank`.
void add_run(const ReplicaRun& run, const PipelineCluster& links, const std::vector<SlowStage>& slow, int64_t first_rank,
             int64_t rounds, bool is_last, SimulatedReplica& replica) {
  PipelineCluster slowed = links;
  for (const SlowStage& each : slow) {
    const int64_t rank = each.rank - first_rank;
    if (rank < 0 || rank >= run.work.rank_count) continue;
    slowed.slowdowns.push_back({.rank = static_cast<int32_t>(rank), .factor = each.factor});
  }
  const PipelineSimulation simulation = simulate(run.work, run.schedule, slowed);
  replica.simulated_s += simulation.makespan_s / static_cast<double>(rounds);
  for (size_t s = 0; s < simulation.ranks.size(); ++s) {
    replica.busy_s += simulation.ranks[s].busy_s / static_cast<double>(rounds);
    if (!is_last) continue;
    SimulatedReplica::LastBackward& last = replica.last.emplace_back();
    for (const SimulatedSpan& span : simulation.ranks[s].spans) {
      if (is_backward(run.schedule.ranks[s][span.action])) {
        last = {simulation.makespan_s - span.end_s, span.end_s - span.start_s};
      }
    }
  }
}

SimulatedReplica run_replica(const ReplicaModel& model, const Plan& plan, size_t index, const std::vector<StepRow>& rows,
                             const std::vector<SlowStage>& slow, int64_t first_rank, int64_t rounds) {
  const PlannedReplica& replica = plan.replicas[index];
  SimulatedReplica result;
  if (rows.empty()) {
    result.last.resize(replica.stages.size());
    return result;
  }
  const PricedRows priced = price_rows(
      model, rows, {plan.sharing, plan.layout, plan.chunk_size, replica.token_budget, replica.hybrid_tasks, replica.buckets});
  const ReplicaPrediction prediction = predict_replica(model, priced, plan.order, rounds);
  if (!prediction.fits()) throw_user_error("replica {}: {}", index, prediction.constraint);
  result.planned_s = prediction.seconds;
  for (size_t r = 0; r < prediction.runs.size(); ++r) {
    add_run(prediction.runs[r], model.links, slow, first_rank, rounds, r + 1 == prediction.runs.size(), result);
  }
  return result;
}

/// When the gradients of a layer are there, over all replicas.
double ready_s(const Plan& plan, const std::vector<SimulatedReplica>& replicas, int64_t layer) {
  double ready = 0;
  for (size_t r = 0; r < replicas.size(); ++r) {
    const std::vector<PlannedStage>& stages = plan.replicas[r].stages;
    for (size_t s = 0; s < stages.size(); ++s) {
      const StageShape& shape = stages[s].shape;
      if (layer < shape.first_layer || layer >= shape.last_layer) continue;
      const SimulatedReplica::LastBackward& last = replicas[r].last[s];
      const double left = static_cast<double>(layer - shape.first_layer) / static_cast<double>(shape.last_layer - shape.first_layer);
      ready = std::max(ready, replicas[r].simulated_s - last.before_end_s - left * last.seconds);
    }
  }
  return ready;
}

class ExchangeHider {
 public:
  ExchangeHider(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                const std::vector<SimulatedReplica>& replicas)
      : bytes_(static_cast<size_t>(model.layer_count), 0), link_(exchange_link(plan, cluster)) {
    ranks_ = static_cast<int64_t>(plan.replicas.size());
    const auto fewest = std::min_element(plan.replicas.begin(), plan.replicas.end(), [](const auto& a, const auto& b) {
      return a.stages.size() < b.stages.size();
    });
    stages_ = &fewest->stages;
    for (const JobShape& job : jobs) {
      for (const AdapterShape& each : job.adapters) {
        bytes_[static_cast<size_t>(each.layer)] += static_cast<double>(4 * parameter_count(model, each));
      }
    }
    for (int64_t layer = 0; layer < model.layer_count; ++layer) ready_s_.push_back(ready_s(plan, replicas, layer));
    for (const SimulatedReplica& replica : replicas) {
      for (const SimulatedReplica::LastBackward& last : replica.last) {
        end_s_ = std::max(end_s_, replica.simulated_s - last.before_end_s);
      }
    }
  }

  HiddenExchange best() const {
    HiddenExchange best = in_buckets(1);
    const auto layers = static_cast<int64_t>(bytes_.size());
    for (int64_t buckets = 2; buckets <= layers; buckets *= 2) {
      const HiddenExchange more = in_buckets(buckets);
      if (more.exposed_s < best.exposed_s) best = more;
    }
    return best;
  }

 private:
  /// Every rank of the replica with the fewest stages, which hold most, exchanges its own layers.
  HiddenExchange in_buckets(int64_t buckets) const {
    HiddenExchange exchange{.buckets = buckets};
    double last_s = 0;
    for (const PlannedStage& stage : *stages_) {
      double done_s = 0, seconds = 0;
      int64_t end = stage.shape.last_layer;
      for (int64_t left = std::min(buckets, end - stage.shape.first_layer); left > 0; --left) {
        const int64_t first = end - (end - stage.shape.first_layer) / left;
        double bytes = 0, ready = 0;
        for (int64_t layer = first; layer < end; ++layer) {
          bytes += bytes_[static_cast<size_t>(layer)];
          ready = std::max(ready, ready_s_[static_cast<size_t>(layer)]);
        }
        const double one = bytes > 0 ? all_reduce_seconds(bytes, ranks_, link_) : 0;
        done_s = std::max(done_s, ready) + one;
        seconds += one;
        end = first;
      }
      exchange.seconds = std::max(exchange.seconds, seconds);
      last_s = std::max(last_s, done_s);
    }
    exchange.exposed_s = std::max(0.0, last_s - end_s_);
    return exchange;
  }

  std::vector<double> bytes_, ready_s_;  // per layer
  const std::vector<PlannedStage>* stages_ = nullptr;
  LinkSpec link_;
  int64_t ranks_ = 1;
  double end_s_ = 0;  // of the last backward
};

}  // namespace

PlanStudy study_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                     const std::vector<SlowStage>& slow, const PlanOptions& options) {
  int64_t ranks = 0;
  for (const PlannedReplica& replica : plan.replicas) ranks += replica.pipeline_stages();
  for (const SlowStage& each : slow) {
    if (each.rank < 0 || each.rank >= ranks) {
      throw_user_error("there is no rank {}; there are 0 to {}, one per pipeline stage of every replica", each.rank, ranks - 1);
    }
  }
  const std::vector<std::vector<StepRow>> rows = planned_rows(plan, model, cluster, jobs, options);
  const std::vector<ReplicaModel> models =
      replica_models(plan, model, cluster, jobs, options.measured, options.replicas.gather_overlap);
  PlanStudy study{.exchange_s = exchange_seconds(plan, model, cluster, jobs)};
  std::vector<SimulatedReplica> replicas;
  int64_t first_rank = 0;
  for (size_t r = 0; r < models.size(); ++r) {
    replicas.push_back(run_replica(models[r], plan, r, rows[r], slow, first_rank, options.rounds));
    first_rank += plan.replicas[r].pipeline_stages();
    study.planned_s.push_back(replicas.back().planned_s);
    study.simulated_s.push_back(replicas.back().simulated_s);
  }
  study.planned_step_s = *std::max_element(study.planned_s.begin(), study.planned_s.end()) + study.exchange_s;
  study.step_s = *std::max_element(study.simulated_s.begin(), study.simulated_s.end()) + study.exchange_s;
  for (size_t r = 0; r < replicas.size(); ++r) {
    study.idle.push_back(1 - replicas[r].busy_s / (study.step_s * static_cast<double>(plan.replicas[r].stages.size())));
  }
  if (plan.replicas.size() > 1) study.hidden = ExchangeHider(plan, model, cluster, jobs, replicas).best();
  return study;
}

std::string to_text(const PlanStudy& study, const Plan& plan) {
  std::string text = fmt::format("A step of {}: {} = slowest replica {} + exchange of gradients {}; {:.3f} times the planned {}\n",
                                 replicas_text(plan), seconds_text(study.step_s, false),
                                 seconds_text(study.step_s - study.exchange_s, false), seconds_text(study.exchange_s, false),
                                 study.step_s / study.planned_step_s, seconds_text(study.planned_step_s, false));
  if (plan.replicas.size() > 1) {
    text += fmt::format("  in {} bucket{} behind the last backward: {} of exchange, {} of it exposed: a step of {}\n",
                        study.hidden.buckets, study.hidden.buckets == 1 ? "" : "s", seconds_text(study.hidden.seconds, false),
                        seconds_text(study.hidden.exposed_s, false),
                        seconds_text(study.step_s - study.exchange_s + study.hidden.exposed_s, false));
  }
  for (size_t r = 0; r < study.simulated_s.size(); ++r) {
    text += fmt::format("  replica {}: <{},{}>, planned {}, simulated {}, idle until the step ends {:.1f}%\n", r,
                        plan.replicas[r].tensor_parallel, plan.replicas[r].pipeline_stages(),
                        seconds_text(study.planned_s[r], false), seconds_text(study.simulated_s[r], false), 100 * study.idle[r]);
  }
  return text;
}

nlohmann::ordered_json to_json(const PlanStudy& study) {
  nlohmann::ordered_json replicas = nlohmann::ordered_json::array();
  for (size_t r = 0; r < study.planned_s.size(); ++r) {
    replicas.push_back({{"planned_s", study.planned_s[r]}, {"simulated_s", study.simulated_s[r]}, {"idle", study.idle[r]}});
  }
  return {{"planned_step_s", study.planned_step_s},
          {"step_s", study.step_s},
          {"exchange_s", study.exchange_s},
          {"hidden_exchange",
           {{"buckets", study.hidden.buckets}, {"seconds", study.hidden.seconds}, {"exposed_s", study.hidden.exposed_s}}},
          {"replicas", std::move(replicas)}};
}

}  // namespace cotune
