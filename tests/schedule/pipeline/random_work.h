/// Random pipeline work and every generator, for property tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/interleaved.h"
#include "schedule/pipeline/lorapp.h"
#include "schedule/pipeline/pipeline_schedule.h"
#include "schedule/pipeline/structured_template.h"
#include "schedule/random_batches.h"

namespace cotune {

/// Hybrid tasks of one to three jobs with different lowest stages, one to three rounds, chains, uneven stages
/// and microbatches, costs of zero now and then. `chunks`: stages per rank.
inline PipelineWork random_work(Dice& dice, int32_t chunks = 1) {
  PipelineWork work{.rank_count = static_cast<int32_t>(dice.between(1, 5))};
  work.stage_rank = interleaved_stages(work.rank_count, chunks);
  const int32_t stages = work.stage_count();
  std::vector<double> stage_speed;
  for (int32_t s = 0; s < stages; ++s) stage_speed.push_back(static_cast<double>(dice.between(8, 12)) / 10);
  const bool with_zeros = dice.between(0, 9) == 0;

  std::vector<std::vector<JobStep>> tasks;
  int32_t next_job = 0;
  for (int64_t task = dice.between(1, 4); task-- > 0;) {
    std::vector<JobStep>& jobs = tasks.emplace_back();
    for (int64_t count = dice.between(1, 3); count-- > 0; next_job += 2) {
      jobs.push_back({next_job, dice.between(0, 5)});
      work.jobs.push_back(
          {.job = next_job,
           .lowest_stage = static_cast<int32_t>(std::max<int64_t>(0, dice.between(-stages, stages - 1))),
           .optimizer_s = static_cast<double>(dice.between(0, 2)) / 4});
    }
  }
  int32_t chain = 0;
  const int64_t rounds = dice.between(1, 3);
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t task = 0; task < tasks.size(); ++task) {
      if (dice.between(0, 9) == 0) continue;  // this task has left the round
      const int64_t count = dice.between(1, 5);
      int64_t chained = 0;  // microbatches that are still to be tied to the one before
      for (int64_t i = 0; i < count; ++i) {
        PipelineMicrobatch microbatch{.hybrid_task = static_cast<int32_t>(task), .round = round};
        for (size_t j = 0; j < tasks[task].size(); ++j) {
          // The first job is everywhere, so that chains have a job in common.
          if (j == 0 || dice.between(0, 1) == 0) microbatch.jobs.push_back(tasks[task][j]);
        }
        if (chained == 0 && dice.between(0, 5) == 0) {
          chained = dice.between(2, 3);
          ++chain;
        }
        if (chained > 0) {
          microbatch.chain = chain;
          --chained;
        }
        microbatch.message_bytes = {64 * dice.between(1, 8), 64 * dice.between(1, 8)};
        const double size =
            with_zeros ? static_cast<double>(dice.between(0, 2)) : static_cast<double>(dice.between(1, 20));
        const double backward = static_cast<double>(dice.between(2, 6)) / 2;
        for (int32_t s = 0; s < stages; ++s) {
          microbatch.cost.push_back({.forward_s = size * stage_speed[static_cast<size_t>(s)],
                                     .backward_s = size * backward * stage_speed[static_cast<size_t>(s)],
                                     .kept_bytes = 1000 * dice.between(1, 4)});
        }
        work.microbatches.push_back(microbatch);
      }
      // A job that missed the whole round stays at its step.
      for (JobStep& job : tasks[task]) {
        const bool was_there = std::any_of(
            work.microbatches.begin(), work.microbatches.end(),
            [&](const auto& m) { return std::find(m.jobs.begin(), m.jobs.end(), job) != m.jobs.end(); });
        if (was_there) ++job.step;
      }
    }
  }
  return work;
}

inline PipelineCluster random_cluster(Dice& dice) {
  PipelineCluster cluster;
  cluster.link = {.latency_s = static_cast<double>(dice.between(0, 3)) / 4,
                  .bytes_per_s = dice.between(0, 1) == 0 ? 200.0 : 1e9};
  return cluster;
}

struct NamedOrder {
  std::string name;
  ComputeOrder order;
};

/// Every generator that takes the work's placement.
inline std::vector<NamedOrder> all_orders(const PipelineWork& work, const PipelineCluster& cluster) {
  std::vector<NamedOrder> orders{
      {"gpipe", gpipe(work)},
      {"interleaved, flush", interleaved_one_f_one_b(work, BatchBoundary::flush)},
      {"interleaved, continuous", interleaved_one_f_one_b(work, BatchBoundary::continuous)},
      {"lorapp", lorapp(work, cluster)},
      {"lorapp, forward first", lorapp(work, cluster, false)},
      {"template", structured_template(work, cluster)}};
  if (work.stage_count() == work.rank_count) {
    orders.push_back({"1f1b, flush", one_f_one_b(work, BatchBoundary::flush)});
    orders.push_back({"1f1b, continuous", one_f_one_b(work, BatchBoundary::continuous)});
    TemplateLimits limits;
    for (int32_t s = 0; s < work.rank_count; ++s) limits.in_flight.push_back(work.rank_count - s);
    orders.push_back({"template, 1F1B's limits", structured_template(work, cluster, limits)});
  }
  return orders;
}

}  // namespace cotune
