/// Random sets of jobs on one rank, for property tests of hybrid tasks: pure functions of a seed.
#pragma once

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "plan/fusion/round_tasks.h"
#include "schedule/small_model.h"

namespace cotune {

/// A job whose adapters sit at q, v and down of the layers from `lowest` on.
inline JobShape round_job(const ModelConfig& model, int32_t place, int64_t batch_size,
                          const std::vector<int64_t>& lengths, int64_t lowest = 0, int64_t rank = 8) {
  JobShape job{.name = "job-" + std::to_string(place),
               .batch_size = batch_size,
               .lengths = histogram_of(lengths),
               .adapters = {}};
  for (int64_t layer = lowest; layer < model.layer_count; ++layer) {
    for (const Projection projection : {Projection::q, Projection::v, Projection::down}) {
      job.adapters.push_back({.job = place, .layer = layer, .projection = projection, .width = rank});
    }
  }
  return job;
}

/// 1 to `most_jobs` jobs of any method, rank, length and layers, under any layout, budget and recompute rule, on two
/// CPU cores.
inline RoundJobs random_round_jobs(uint64_t seed, int64_t most_jobs) {
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(uniform_below(seed, next++, bound)); };
  RoundJobs round{.model = smollm2_135m()};
  round.model.layer_count = 4 + below(8);
  round.machine.device = device_preset("cpu");
  round.policy = {.layout = static_cast<Layout>(below(3)),
                  .token_budget = int64_t{256} << below(3),
                  .chunk_size = int64_t{16} << below(4),
                  .recompute = below(4) == 0};
  const int64_t count = 1 + below(static_cast<uint64_t>(most_jobs));
  for (int32_t j = 0; j < count; ++j) {
    const int64_t longest = std::vector<int64_t>{8, 40, 200, 600}[static_cast<size_t>(below(4))];
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 6; ++i) lengths.push_back(1 + below(static_cast<uint64_t>(longest)));
    const int64_t lowest = below(2) == 0 ? 0 : below(static_cast<uint64_t>(round.model.layer_count));
    JobShape job = round_job(round.model, j, 1 + below(8), lengths, lowest, 1 + below(64));
    const auto method = static_cast<AdapterMethod>(below(3));
    for (AdapterShape& adapter : job.adapters) {
      adapter.method = method;
      if (method == AdapterMethod::diff_pruning) adapter.entries = 2000;
    }
    if (method == AdapterMethod::bottleneck) {
      std::erase_if(job.adapters, [](const AdapterShape& each) { return each.projection != Projection::down; });
    }
    round.jobs.push_back(std::move(job));
    round.labelled_shares.push_back(uniform(seed, next++));
  }
  return round;
}

}  // namespace cotune
