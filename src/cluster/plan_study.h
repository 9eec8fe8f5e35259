/// One step of a whole plan on its cluster, event by event: replicas with their pipelines and links, stragglers and slow links, and the
/// exchange of adapter gradients between replicas.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/disturbances.h"
#include "cluster/hidden_exchange.h"
#include "jobs/job_list.h"
#include "plan/cost/replica_prediction.h"
#include "plan/plan.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// One work of a replica with its schedule, run with what is slow.
struct StudiedRun {
  std::string name;      ///< of the job, where jobs go one after the other; "": all together
  double start_s = 0;    ///< after the runs before it
  ReplicaRun run;
};

struct StudiedStage {
  double busy_s = 0;             ///< per step
  int64_t memory_bytes = 0;      ///< of one rank, at its peak
  int64_t memory_limit_bytes = 0;
};

struct StudiedReplica {
  double planned_s = 0;    ///< per step, everything at its speed
  double simulated_s = 0;  ///< with what is slow
  double idle = 0;         ///< share of its stages' time until the step ends
  int64_t message_count = 0, message_bytes = 0;  ///< between its stages, per step
  std::vector<StudiedStage> stages;
  std::vector<StudiedRun> runs;  ///< none without rows
};

struct PlanStudy {
  std::vector<StudiedReplica> replicas;
  int64_t tokens = 0;         ///< of a step
  double exchange_s = 0;      ///< after the step, over the slowest link between replicas
  HiddenExchange hidden;      ///< in buckets instead, the number that leaves least exposed; of what is slow
  double planned_step_s = 0;  ///< slowest replica and exchange, everything at its speed: on the plan's own cluster its prediction
  double step_s = 0;          ///< the same with what is slow
};

/// Orders, proves and simulates every replica as planning did, over options.rounds steps of which the seconds are one; then runs the same
/// action lists with what is slow. Priced on `cluster`, which need not be the one that the plan was made for. Throws UserError where
/// check_plan or `slow` does not check or a replica does not fit.
PlanStudy study_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                     const Disturbances& slow, const PlanOptions& options = {});

/// `drawn`: the replica whose pipeline is drawn below the numbers. sweeps: by which many jobs are named (jobs/job_list.h).
std::string to_text(const PlanStudy& study, const Plan& plan, size_t drawn, const SweepOfJob& sweeps = {});
nlohmann::ordered_json to_json(const PlanStudy& study, const Plan& plan);

/// All replicas and links as one Perfetto file: two processes per replica, its ranks counted over the replicas.
std::string render_trace(const PlanStudy& study, const Plan& plan);

}  // namespace cotune
