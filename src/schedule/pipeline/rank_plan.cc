#include "schedule/pipeline/rank_plan.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/pipeline/default_order.h"
#include "schedule/pipeline/gpipe.h"
#include "schedule/pipeline/interleaved.h"
#include "schedule/pipeline/lorapp.h"
#include "schedule/pipeline/one_f_one_b.h"
#include "schedule/pipeline/structured_template.h"
#include "schedule/pipeline/verify_pipeline.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// An order is chosen before every round: a few exchanges of neighbours, in place of the many that a lasting plan is worth.
constexpr int64_t most_exchanges = 8;

/// Per rank: what its dearest microbatch keeps.
std::vector<int64_t> dearest_bytes(const PipelineWork& work) {
  std::vector<int64_t> dearest(static_cast<size_t>(work.rank_count), 0);
  for (const PipelineMicrobatch& microbatch : work.microbatches) {
    for (size_t rank = 0; rank < dearest.size(); ++rank) dearest[rank] = std::max(dearest[rank], microbatch.cost[rank].kept_bytes);
  }
  return dearest;
}

/// Per rank, beyond most_in_flight: what fits of half as many microbatches more. Empty where none are kept.
std::vector<int64_t> spare_of(const PipelineWork& work, const RankPlanOptions& options) {
  const bool takes_spare = options.order != RankOrder::gpipe && options.order != RankOrder::one_f_one_b;
  const int32_t more = options.most_in_flight / 2;
  if (!takes_spare || options.spare_bytes == 0 || more == 0 || work.stage_rank != one_stage_per_rank(work.rank_count)) return {};
  if (std::ranges::any_of(units_of(work), [](const PipelineUnit& unit) { return unit.count > 1; })) return {};
  std::vector<int64_t> spare = dearest_bytes(work);
  for (int64_t& each : spare) each = std::min(options.spare_bytes, more * each);
  return spare;
}

/// Per rank: most_in_flight of its dearest microbatches, or its longest chain; with what it may keep beyond that. Empty without a limit, and
/// where ranks have several stages.
std::vector<int64_t> kept_bytes_limits(const PipelineWork& work, const RankPlanOptions& options) {
  if (options.most_in_flight == 0 || work.stage_rank != one_stage_per_rank(work.rank_count)) return {};
  std::vector<int64_t> limits = dearest_bytes(work);
  for (int64_t& each : limits) each *= options.most_in_flight;
  for (const PipelineUnit& unit : units_of(work)) {
    for (size_t rank = 0; rank < limits.size(); ++rank) {
      int64_t chain = 0;
      for (int32_t m = unit.first; m < unit.first + unit.count; ++m) chain += work.microbatches[static_cast<size_t>(m)].cost[rank].kept_bytes;
      limits[rank] = std::max(limits[rank], chain);
    }
  }
  const std::vector<int64_t> spare = spare_of(work, options);
  for (size_t rank = 0; rank < spare.size(); ++rank) limits[rank] += spare[rank];
  return limits;
}

ComputeOrder order_of(const PipelineWork& work, const RankPlanOptions& options) {
  const std::vector<int64_t> limits = kept_bytes_limits(work, options);
  const bool interleaves = work.stage_rank != one_stage_per_rank(work.rank_count);
  switch (options.order) {
    case RankOrder::automatic:
    case RankOrder::split:
      if (interleaves) return interleaved_one_f_one_b(work, BatchBoundary::continuous);
      return choose_order(work, options.cluster, limits, most_exchanges).order;
    case RankOrder::gpipe: return gpipe(work);
    case RankOrder::one_f_one_b: return one_f_one_b(work, BatchBoundary::flush);
    case RankOrder::lorapp: return lorapp(work, options.cluster, true, limits);
    case RankOrder::muxtune: return structured_template(work, options.cluster, {.in_flight = {}, .kept_bytes = limits});
  }
  COTUNE_CHECK(false, "no such order");
}

/// The lowest layer with an adapter of a microbatch's jobs.
int64_t lowest_layer(const StepPlan& plan, const Microbatch& microbatch) {
  int64_t lowest = plan.policy.layer_count;
  for (const Atom& atom : microbatch.atoms) {
    const auto batch = std::find_if(plan.batches.begin(), plan.batches.end(),
                                    [&](const BatchShape& each) { return each.job == atom.job; });
    lowest = std::min(lowest, batch->lowest_layer);
  }
  return lowest;
}

/// Every backward in pieces, each layer's forward again before it.
std::vector<Action> with_recomputation(const std::vector<Action>& actions, const RankPlan& plan, const PipelineLayout& layout) {
  std::vector<std::pair<const StepPlan*, const Microbatch*>> microbatches;
  for (const StepPlan& round : plan.rounds) {
    for (const Microbatch& microbatch : round.microbatches) microbatches.push_back({&round, &microbatch});
  }
  std::vector<Action> result;
  for (const Action& action : actions) {
    const bool is_backward = action.kind == ActionKind::backward;
    if (!is_backward || !microbatches[static_cast<size_t>(action.microbatch)].first->policy.recompute) {
      result.push_back(action);
      continue;
    }
    const auto [round, microbatch] = microbatches[static_cast<size_t>(action.microbatch)];
    const StageShape& stage = layout.stages[static_cast<size_t>(action.stage)];
    const auto add = [&](ActionKind kind, int64_t first_layer, int64_t last_layer) {
      Action part = action;
      part.kind = kind;
      part.first_layer = static_cast<int32_t>(first_layer);
      part.last_layer = static_cast<int32_t>(last_layer);
      result.push_back(part);
    };
    if (stage.has_head) add(ActionKind::backward, stage.last_layer, stage.last_layer);
    const int64_t lowest = std::max(stage.first_layer, lowest_layer(*round, *microbatch));
    for (int64_t layer = stage.last_layer; layer-- > lowest;) {
      add(ActionKind::recompute, layer, layer + 1);
      add(ActionKind::backward, layer, layer + 1);
    }
  }
  return result;
}

}  // namespace

int32_t PipelineLayout::rank_count() const { return 1 + *std::max_element(stage_rank.begin(), stage_rank.end()); }

bool PipelineLayout::is_sequence_parallel() const { return stages.front().is_sequence_parallel; }

int32_t PipelineLayout::tensor_parallel() const { return static_cast<int32_t>(stages.front().tensor_parallel); }

int32_t PipelineLayout::stage_of(int64_t layer) const {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const StageShape& stage) {
    return stage.first_layer <= layer && layer < stage.last_layer;
  });
  COTUNE_CHECK(found != stages.end(), "no stage has layer {}", layer);
  return static_cast<int32_t>(found - stages.begin());
}

PipelineLayout one_rank(const ModelConfig& config) { return {{whole_model(config)}, {0}}; }

PipelineWork work_of(const std::vector<StepPlan>& rounds, const PipelineLayout& layout, const StageCosts& costs,
                     const MessageBytes& bytes_per_token) {
  PipelineWork work;
  int32_t chains = 0;
  std::map<int32_t, int64_t> last_step;
  for (size_t index = 0; index < rounds.size(); ++index) {
    const StepPlan& round = rounds[index];
    std::vector<StageCost> cost;
    for (size_t m = 0; m < round.microbatches.size(); ++m) {
      for (size_t stage = 0; stage < layout.stages.size(); ++stage) cost.push_back(costs(round, m, stage));
    }
    std::vector<int32_t> lowest;
    for (const BatchShape& batch : round.batches) lowest.push_back(layout.stage_of(batch.lowest_layer));
    PipelineWork own = work_of(round, layout.stage_rank, cost, lowest, bytes_per_token, ranks_with_slices(layout.stages.front()));
    work.rank_count = own.rank_count;
    work.stage_rank = own.stage_rank;
    for (const PipelineJob& job : own.jobs) {
      const auto known = std::find_if(work.jobs.begin(), work.jobs.end(),
                                      [&](const PipelineJob& each) { return each.job == job.job; });
      if (known == work.jobs.end()) work.jobs.push_back(job);
    }
    std::map<int32_t, int64_t> number;  // of each job's step of this round
    for (const BatchShape& batch : round.batches) {
      const auto [known, is_first] = last_step.try_emplace(batch.job, batch.step);
      number[batch.job] = is_first ? batch.step : ++known->second;
    }
    int32_t most = -1;
    for (PipelineMicrobatch& microbatch : own.microbatches) {
      for (JobStep& step : microbatch.jobs) step.step = number.at(step.job);
      microbatch.round = static_cast<int64_t>(index);
      most = std::max(most, microbatch.chain);
      if (microbatch.chain >= 0) microbatch.chain += chains;
      work.microbatches.push_back(std::move(microbatch));
    }
    chains += most + 1;
  }
  return work;
}

RankPlan plan_in_order(std::vector<StepPlan> rounds, const PipelineLayout& layout, const PipelineWork& work,
                       const ComputeOrder& order, const PipelineCluster& cluster) {
  RankPlan plan{.rounds = std::move(rounds),
                .work = work,
                .schedule = make_schedule(work, order, cluster),
                .predicted = {},
                .clocks = {},
                .ranks = {},
                .spare_bytes = {}};
  verify(work, plan.schedule);
  plan.predicted = simulate(work, plan.schedule, cluster);
  for (const std::vector<Action>& actions : plan.schedule.ranks) plan.ranks.push_back(with_recomputation(actions, plan, layout));
  return plan;
}

namespace {

/// Without its rounds.
RankPlan plan_clocks(const PipelineWork& work, const MicrobatchGraphs& graphs, std::vector<PipelineClock> clocks, const RankPlanOptions& options) {
  RankPlan plan{.rounds = {}, .work = {}, .schedule = {}, .predicted = {}, .clocks = std::move(clocks), .ranks = {}, .spare_bytes = {}};
  plan.work = launch_clocks(work, plan.clocks, graphs, options.rates);
  verify(work, plan.clocks, graphs);
  plan.schedule = make_schedule(plan.work, order_of(plan.work, options), options.cluster);
  verify(plan.work, plan.schedule);
  plan.predicted = simulate(plan.work, plan.schedule, options.cluster);
  plan.ranks = actions_of_microbatches(plan.schedule, work, plan.clocks);
  plan.spare_bytes = spare_of(plan.work, options);
  return plan;
}

/// What is compared: alone, which is taken where nothing is shorter; as the rounds are packed; and in buckets, few or more. Or the plan's.
std::vector<std::vector<PipelineClock>> ways_to_pair(const PipelineWork& work, const RankPlanOptions& options) {
  if (options.interleave == Interleave::automatic && !options.jobs_of_buckets.empty()) return {planned_clocks(work, options.jobs_of_buckets)};
  std::vector<std::vector<PipelineClock>> ways{clocks_of(work, 1), clocks_of(work)};
  for (const double share : {0.5, 0.75}) {
    std::vector<PipelineClock> bucketed = bucketed_clocks(work, share);
    if (std::ranges::find(ways, bucketed) == ways.end()) ways.push_back(std::move(bucketed));
  }
  if (options.interleave == Interleave::always) ways.erase(ways.begin());
  return ways;
}

/// Of every microbatch on every stage, made once.
std::vector<StageGraphs> graphs_of(const std::vector<StepPlan>& rounds, const PipelineWork& work, const StageGraphsOf& graphs) {
  std::vector<StageGraphs> all;
  for (const StepPlan& round : rounds) {
    for (size_t place = 0; place < round.microbatches.size(); ++place) {
      const int32_t lowest = lowest_stage(work, work.microbatches[all.size() / work.stage_rank.size()]);
      for (int32_t stage = 0; stage < work.stage_count(); ++stage) {
        StageGraphs own = graphs(round, place, static_cast<size_t>(stage));
        if (stage < lowest) own.backward.clear();
        all.push_back(std::move(own));
      }
    }
  }
  return all;
}

RankPlan plan_interleaved(std::vector<StepPlan> rounds, const PipelineWork& work, const RankPlanOptions& options) {
  const std::vector<StageGraphs> all = graphs_of(rounds, work, options.graphs);
  const MicrobatchGraphs graphs = [&](size_t microbatch, size_t stage) { return all[microbatch * work.stage_rank.size() + stage]; };
  RankPlan plan;
  for (std::vector<PipelineClock>& clocks : ways_to_pair(work, options)) {
    RankPlan other = plan_clocks(work, graphs, std::move(clocks), options);
    if (plan.clocks.empty() || other.predicted.makespan_s < plan.predicted.makespan_s) plan = std::move(other);
  }
  plan.rounds = std::move(rounds);
  return plan;
}

}  // namespace

PipelineWork work_of(const std::vector<StepPlan>& rounds, const PipelineLayout& layout, const StageCosts& costs,
                     const RankPlanOptions& options) {
  PipelineWork work = work_of(rounds, layout, costs, options.bytes_per_token);
  for (PipelineJob& job : work.jobs) {
    if (static_cast<size_t>(job.job) < options.optimizer_s.size()) job.optimizer_s = options.optimizer_s[static_cast<size_t>(job.job)];
  }
  return work;
}

RankPlan plan_ranks(std::vector<StepPlan> rounds, const PipelineLayout& layout, const StageCosts& costs,
                    const RankPlanOptions& options) {
  const PipelineWork work = work_of(rounds, layout, costs, options);
  const bool recomputes = std::ranges::any_of(rounds, [](const StepPlan& round) { return round.policy.recompute; });
  if (options.interleave != Interleave::never && layout.tensor_parallel() > 1 && !layout.is_sequence_parallel() && !recomputes) {
    return plan_interleaved(std::move(rounds), work, options);
  }
  RankPlan plan = plan_in_order(std::move(rounds), layout, work, order_of(work, options), options.cluster);
  plan.spare_bytes = spare_of(work, options);
  return plan;
}

}  // namespace cotune
