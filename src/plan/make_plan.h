/// What should run where: the best plan for given jobs and machines, with every alternative that was looked
/// at, what it is predicted to take, and what speaks against it. Pure: equal inputs give equal answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/alternatives.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct PlanningResult {
  std::vector<Alternative> alternatives;  ///< every kind of nodes × deployment × sharing policy × order, its best replicas each; then the
                                          ///< orders_for_few that suit some
  std::optional<size_t> chosen;  ///< in alternatives; none where nothing fits
  std::vector<ConsideredConfiguration> configurations;
  std::vector<ConsideredDeployment> deployments;
  std::vector<ConsideredGrouping> groupings;  ///< of the plan, where its sharing is hybrid: of the slowest replica of each shape
  Deployment lobra;  ///< counts of plan_deployment for all jobs together, of the chosen nodes (or the first)
  std::string advice;  ///< where nothing fits: what would

  const Plan* plan() const { return chosen ? &alternatives[*chosen].plans.front() : nullptr; }
};

/// 1. Configurations: replica_candidates on each kind of nodes.
/// 2. Deployments for the typical step, its rows in length buckets: like replicas (task_fused) of each configuration that holds the
///    longest row, and the best of plan_deployment (lobra) over the configurations that propose_configurations keeps; over all of them
///    where there are few vectors of replica counts. Stages are cut by partition_stages where that is faster than even stages and fits.
/// 3. For the best of these, rows are dealt to replicas as dispatch says, packed under each sharing policy, and every replica simulated
///    under each order. Token budgets are those of search_budgets; of replicas of one shape with rows of the same jobs the slowest is
///    searched, and the others take what it has where that fits and does not make one of them the slowest. Under `hybrid` the hybrid
///    tasks are the fastest of: all jobs, each job by itself, those of choose_hybrid_tasks, and with tensor parallelism pairs and halves
///    in one clock. Where a pipeline has few microbatches, interleaved 1F1B and the split of few hybrid tasks' steps are compared as
///    well (orders_for_few).
/// 4. The shortest predicted step is chosen; among those within a thousandth of it `hybrid` before other sharing, then the
///    one with the least memory.
/// All replicas stand on one kind of nodes: the kind with the shortest step. Where nothing fits, all of this again with every size of replicas
/// (ReplicaLimits::has_all_sizes).
/// The sequential systems run the same for one job after the other, with its rows of that step, sharing `separate`; their seconds add up.
/// Throws UserError for a dtype that a device has no rate for, PlanningStopped where the options say so. `jobs` must not be empty.
PlanningResult make_plan(const ModelConfig& model, const ClusterSpec& cluster,
                         const std::vector<JobShape>& jobs, const PlanOptions& options = {});

/// Of a plan of sharing hybrid, that of the slowest replica of each shape.
std::vector<ConsideredGrouping> groupings_of(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                                             const std::vector<JobShape>& jobs, const PlanOptions& options);

}  // namespace cotune
