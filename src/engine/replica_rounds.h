/// Rounds as each replica of the model has them, and what all ranks together know of them.
#pragma once

#include <list>
#include <span>
#include <vector>

#include "engine/job_round.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

/// Rounds with a replica's own rows (ReplicaPlans::rows), whose batches are put into `batches`.
std::vector<JobRound> rounds_of_replica(std::span<const JobRound> rounds, const RowShares& rows, std::list<Batch>& batches);

/// Writes what the ranks know into the rounds. by_rank: each rank's own, of all replicas, in the rounds' order. A replica's rank with
/// the head makes every job's steps and knows loss and norm of training; any rank may know of a failure; losses and first choices
/// without an optimizer step are added over the replicas, in their order.
void merge_results(std::span<const PipelineLayout> layouts, const ReplicaPlans& plans,
                   std::span<const std::vector<JobRound>> by_rank, std::span<JobRound> rounds);

}  // namespace cotune
