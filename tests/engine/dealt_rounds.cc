#include "engine/dealt_rounds.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/random.h"
#include "engine/replica_rounds.h"
#include "schedule/pipeline/dealt_round.h"

namespace cotune::testing {
namespace {

DealtRound dealt(const StepPlan& round, uint64_t key, size_t replicas) {
  DealtRound result{.batches = round.batches, .replica_of = {}};
  for (const BatchShape& batch : round.batches) {
    std::vector<int32_t>& own = result.replica_of.emplace_back();
    const uint64_t of_batch = key + 1000 * static_cast<uint64_t>(batch.job) + 100000 * static_cast<uint64_t>(batch.step);
    for (size_t row = 0; row < batch.row_lengths.size(); ++row) {
      own.push_back(static_cast<int32_t>(uniform_below(of_batch, uniform_below(of_batch, 99, 3) == 0 ? 0 : row, replicas)));
    }
  }
  return result;
}

/// The rounds' jobs that have not stepped, round by round.
void go_on(RankGroup& ranks, size_t job_count, Rounds& together, const ModelConfig& config) {
  for (size_t first = 0; first < together.rounds.size(); first += job_count) {
    std::vector<JobRound> rest;
    std::vector<BatchShape> shapes;
    for (size_t i = first; i < first + job_count; ++i) {
      if (together.rounds[i].stepped) continue;
      EXPECT_EQ(together.rounds[i].failure, "");
      rest.push_back(together.rounds[i]);
      shapes.push_back(rest.back().batch->shape(rest.back().job, 0));
    }
    if (rest.empty()) continue;
    PackingPolicy policy = small_microbatches();
    policy.layer_count = config.layer_count;
    const StepPlan plan = plan_step(shapes, policy);
    ranks.run(*deal_at_random({&plan, 1}, ranks, 14), rest);
    for (const JobRound& round : rest) together.rounds[first + static_cast<size_t>(round.job)] = round;
  }
}

}  // namespace

std::optional<ReplicaPlans> deal_at_random(std::span<const StepPlan> rounds, const RankGroup& ranks, uint64_t key, RankOrder order,
                                           const SideBySide* side_by_side) {
  std::vector<DealtRound> dealt_rounds;
  for (const StepPlan& round : rounds) dealt_rounds.push_back(dealt(round, key, ranks.layouts().size()));
  const auto policy = [&](size_t, size_t round) { return rounds[round].policy; };
  return plan_replicas(dealt_rounds, policy, ranks.layouts(), [&](size_t replica, std::vector<StepPlan> own) {
    const PipelineLayout& layout = ranks.layouts()[replica];
    RankPlanOptions options{.order = order, .cluster = {}, .bytes_per_token = {768, 768}, .most_in_flight = layout.rank_count()};
    std::list<Batch> batches;
    std::vector<JobRound> shares;
    if (side_by_side != nullptr) {
      shares = rounds_of_replica(side_by_side->rounds, row_shares(dealt_rounds, static_cast<int32_t>(replica)), batches);
      options.interleave = Interleave::always;
      options.graphs = graphs_of(side_by_side->config, layout, shares, uneven_times);
    }
    return plan_ranks(std::move(own), layout, one_unit, options);
  });
}

void run_dealt(RankGroup& ranks, Round& round, uint64_t key) {
  const std::optional<ReplicaPlans> plans = deal_at_random({&round.plan, 1}, ranks, key);
  if (!plans) throw std::runtime_error("a round that has no order when it is dealt");
  ranks.run(*plans, round.rounds);
}

void expect_dealt_steps_everywhere_or_nowhere(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, int32_t troubled) {
  // Two steps of each job without a flush.
  std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), bottleneck_job("b", 2, 8, Activation::relu, {90, 12})};
  for (RandomJob& job : jobs) job.steps = 2;
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches());
  size_t broken_off = 0, partly = 0;
  for (int64_t limit = 5; limit < 120; limit += 9) {
    Rounds together = rounds_of(jobs, backbone->config(), small_microbatches(), 2, backbone->device());
    for (int32_t job = 0; job < 2; ++job) ranks.share(job, *together.adapters[static_cast<size_t>(job)]);
    int64_t count = 0;
    ranks.observe([&](int32_t rank, const Operator&) {
      if (rank == troubled && ++count == limit) throw std::domain_error("trouble");
    });
    try {
      ranks.run(*deal_at_random(together.plans, ranks, 13), together.rounds);
    } catch (const std::domain_error&) {
      ++broken_off;
    }
    ranks.observe({});
    size_t made = 0;
    for (const JobRound& round : together.rounds) made += round.stepped;
    partly += made > 0 && made < together.rounds.size();
    go_on(ranks, jobs.size(), together, backbone->config());
    std::vector<at::Tensor> trained;
    for (size_t i = 0; i < jobs.size(); ++i) {
      ranks.gather(static_cast<int32_t>(i), *together.adapters[i]);
      for (size_t step = 0; step < 2; ++step) trained.push_back(at::scalar_tensor(together.rounds[step * jobs.size() + i].loss(), at::kDouble));
      for (const at::Tensor& value : values_of(*together.adapters[i])) trained.push_back(value);
    }
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "broken off after " << limit << " operators";
  }
  EXPECT_GT(broken_off, 2u);
  EXPECT_GT(partly, 0u);
}

}  // namespace cotune::testing
