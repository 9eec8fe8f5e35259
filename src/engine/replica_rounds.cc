#include "engine/replica_rounds.h"

#include <algorithm>

#include "schedule/pipeline/rank_place.h"

namespace cotune {
namespace {

/// What a replica knows of a round, and which rows of the batch it had.
struct ReplicaResult {
  const JobRound* round = nullptr;
  std::span<const int32_t> rows;
};

void add_replicas(std::span<const ReplicaResult> replicas, size_t row_count, JobRound& result) {
  result.loss_sum = 0;
  const size_t evaluated_rows = result.purpose == RoundPurpose::evaluate ? row_count : 0;
  result.row_predicted.assign(evaluated_rows, 1);
  result.row_loss_sums.assign(evaluated_rows, 0);
  for (const ReplicaResult& replica : replicas) {
    result.loss_sum += replica.round->loss_sum;
    for (size_t i = 0; i < replica.round->row_predicted.size(); ++i) {
      const auto row = static_cast<size_t>(replica.rows[i]);
      result.row_predicted[row] = replica.round->row_predicted[i];
      result.row_loss_sums[row] = replica.round->row_loss_sums[i];
    }
  }
}

}  // namespace

std::vector<JobRound> rounds_of_replica(std::span<const JobRound> rounds, const RowShares& rows, std::list<Batch>& batches) {
  std::vector<JobRound> own(rounds.begin(), rounds.end());
  for (JobRound& round : own) {
    round.labelled_of_whole = round.batch->labelled_count();
    round.batch = &batches.emplace_back(round.batch->share(rows.at({round.job, round.batch->step})));
  }
  return own;
}

void merge_results(std::span<const PipelineLayout> layouts, const ReplicaPlans& plans,
                   std::span<const std::vector<JobRound>> by_rank, std::span<JobRound> rounds) {
  const auto top = [&](size_t replica) -> const std::vector<JobRound>& { return by_rank[static_cast<size_t>(top_rank_of(layouts, replica))]; };
  for (size_t i = 0; i < rounds.size(); ++i) {
    JobRound result = top(0)[i];
    for (const std::vector<JobRound>& own : by_rank) {
      if (!result.failure.empty() || own[i].failure.empty()) continue;
      result.failure = own[i].failure;
      result.stepped = false;
    }
    if (layouts.size() > 1 && result.purpose != RoundPurpose::train) {
      std::vector<ReplicaResult> results;
      for (size_t replica = 0; replica < layouts.size(); ++replica) {
        results.push_back({&top(replica)[i], plans.rows[replica].at({result.job, rounds[i].batch->step})});
      }
      add_replicas(results, rounds[i].batch->rows.size(), result);
    }
    result.adapter = rounds[i].adapter;
    result.batch = rounds[i].batch;
    result.labelled_of_whole.reset();
    rounds[i] = std::move(result);
  }
}

}  // namespace cotune
