/// One step of a whole plan on its cluster, event by event: replicas with their pipelines and links, stragglers, and the
/// exchange of adapter gradients between replicas.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

/// A stage that computes `factor` times slower all the time. `rank`: a tensor-parallel group, counted over the replicas: those of
/// replica 0 from its first stage on, then those of replica 1.
struct SlowStage {
  int64_t rank = 0;
  double factor = 1;
  bool operator==(const SlowStage&) const = default;
};

/// The exchange of adapter gradients, hidden behind the last backward as far as that goes.
struct HiddenExchange {
  int64_t buckets = 1;   ///< all-reduces that a stage's gradients are exchanged in, from its last layer down
  double seconds = 0;    ///< of all of a stage's, the longest of all stages
  double exposed_s = 0;  ///< after the last backward of all replicas; optimizer steps follow
  bool operator==(const HiddenExchange&) const = default;
};

struct PlanStudy {
  std::vector<double> planned_s;    ///< per replica and step, every stage at its speed
  std::vector<double> simulated_s;  ///< with what is slow
  double exchange_s = 0;            ///< after the step, as the plan has it
  HiddenExchange hidden;            ///< in buckets instead, the number that leaves least exposed; of what is slow
  double planned_step_s = 0;        ///< slowest replica and exchange, every stage at its speed: the plan's own prediction
  double step_s = 0;                ///< the same with what is slow
  std::vector<double> idle;         ///< per replica: share of its stages' time until the step ends
};

/// Orders, proves and simulates every replica as planning did, over two steps of which the seconds are one; then runs the same
/// action lists with the slow stages. Gradients of a layer are ready when every replica's last backward has passed it (layers of
/// a stage evenly over that backward), and are exchanged one bucket after the other: max(ready, previous end) + ring
/// all-reduce. Throws UserError for a rank that is none, and what planned_rows throws.
PlanStudy study_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                     const std::vector<SlowStage>& slow, const PlanOptions& options = {});

std::string to_text(const PlanStudy& study, const Plan& plan);
nlohmann::ordered_json to_json(const PlanStudy& study);

}  // namespace cotune
