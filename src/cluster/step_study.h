/// One step of every job of a jobs file on one replica, event by event: what `cotune simulate --jobs` runs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cluster/instance.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/shapes/job_shape.h"
#include "schedule/pipeline/simulate.h"

namespace cotune {

struct StepStudy {
  std::vector<std::string> jobs;         ///< names
  int64_t tensor_parallel = 1;           ///< a rank of the simulation is a tensor-parallel group, all alike
  ChosenHybridTasks chosen;              ///< which jobs share microbatches, buckets, order; work and order of a round
  PipelineSchedule schedule;             ///< proven by verify
  PipelineSimulation planned;            ///< with every rank at its speed
  std::vector<Slowdown> stragglers;
  PipelineSimulation simulated;          ///< the same schedule with the stragglers
  std::vector<int64_t> resident_bytes;   ///< per stage: weights and adapters
  int64_t memory_bytes = 0;              ///< of one device, for tensors
  int64_t tokens = 0;                    ///< of the round
};

/// Chooses hybrid tasks, buckets and order for the jobs on one instance (choose_hybrid_tasks, microbatches from 1 to 16),
/// makes the action lists, proves them, and runs them with and without the stragglers. `instance.sharing`, `microbatches` and
/// `layout` are not read. Throws UserError where no way of running them fits, saying what overflows, and for a straggler that
/// is no rank.
StepStudy study_step(const InstanceSpec& instance, const std::vector<JobShape>& jobs, const std::vector<Slowdown>& stragglers);

std::string to_text(const StepStudy& study);
nlohmann::json to_json(const StepStudy& study);

}  // namespace cotune
