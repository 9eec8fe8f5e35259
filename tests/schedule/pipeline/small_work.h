/// Pipeline work that an exact search gets through: the default order is held against its optimum.
#pragma once

#include <vector>

#include "schedule/pipeline/random_work.h"

namespace cotune {

/// Two or three uneven stages, one to three tasks with their own ratio of backward to forward, at most four
/// microbatches over one or two rounds, a slow link now and then.
inline PipelineWork small_work(Dice& dice) {
  PipelineWork work{.rank_count = static_cast<int32_t>(dice.between(2, 3))};
  work.stage_rank = one_stage_per_rank(work.rank_count);
  std::vector<double> stage_speed;
  for (int32_t s = 0; s < work.rank_count; ++s)
    stage_speed.push_back(static_cast<double>(dice.between(8, 12)) / 10);
  const auto tasks = static_cast<int32_t>(dice.between(1, 3));
  const int64_t rounds = dice.between(1, 2);
  std::vector<PipelineMicrobatch> of_task;
  std::vector<int64_t> count;
  for (int32_t task = 0; task < tasks; ++task) {
    work.jobs.push_back({.job = task});
    const auto size = static_cast<double>(dice.between(1, 10));
    const double ratio = static_cast<double>(dice.between(2, 6)) / 2;
    PipelineMicrobatch microbatch{.hybrid_task = task};
    for (const double speed : stage_speed) {
      microbatch.cost.push_back({.forward_s = size * speed, .backward_s = size * speed * ratio});
    }
    of_task.push_back(microbatch);
    count.push_back(dice.between(1, 2));
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (int32_t task = 0; task < tasks; ++task) {
      for (int64_t i = 0; i < count[static_cast<size_t>(task)] && work.microbatches.size() < 4; ++i) {
        PipelineMicrobatch microbatch = of_task[static_cast<size_t>(task)];
        microbatch.round = round;
        microbatch.jobs = {{task, round}};
        work.microbatches.push_back(microbatch);
      }
    }
  }
  return work;
}

}  // namespace cotune
