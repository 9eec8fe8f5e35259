#include "train/rank_planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <list>
#include <set>

#include "base/error.h"
#include "engine/replica_rounds.h"
#include "plan/cost/overlapped_stage.h"
#include "plan/cost/replica_stages.h"
#include "plan/cost/weight_sharding.h"
#include "schedule/adapter_shape.h"
#include "schedule/operator_cost.h"
#include "schedule/pipeline/lorapp.h"
#include "schedule/pipeline/weight_copies.h"
#include "schedule/sequence_parallel.h"
#include "train/microbatch_shape.h"
#include "train/training_job.h"

namespace cotune {
namespace {

constexpr int64_t most_for_one = 4;  // microbatches of a single hybrid task, for each rank
constexpr size_t most_splits = 2;    // that a round is compared with

/// Hybrid tasks with rows in a round that names them.
int64_t task_count(const StepPlan& plan) {
  const auto& named = plan.policy.hybrid_tasks;
  std::set<size_t> tasks;
  int64_t alone = 0;
  for (const BatchShape& batch : plan.batches) {
    const auto found = std::ranges::find_if(named, [&](const auto& task) { return std::ranges::find(task, batch.job) != task.end(); });
    found == named.end() ? ++alone : static_cast<int64_t>(tasks.insert(static_cast<size_t>(found - named.begin())).second);
  }
  return std::ssize(tasks) + alone;
}

/// In forwards and backwards. computing: of a microbatch on a stage; the rest of what these take is exposed.
template <typename Computing>
std::vector<RankSeconds> seconds_of_ranks(const RankPlan& plan, const PipelineLayout& layout, Computing computing) {
  std::vector<RankSeconds> ranks(static_cast<size_t>(layout.rank_count()));
  for (const StepPlan& round : plan.rounds) {
    for (size_t microbatch = 0; microbatch < round.microbatches.size(); ++microbatch) {
      for (size_t stage = 0; stage < layout.stages.size(); ++stage) {
        ranks[static_cast<size_t>(layout.stage_rank[stage])].computing += computing(round, microbatch, stage).total();
      }
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    double taken_s = 0;
    for (const SimulatedSpan& span : plan.predicted.ranks[rank].spans) {
      const bool is_step = plan.schedule.ranks[rank][span.action].kind == ActionKind::optimizer_step;
      taken_s += is_step ? 0 : span.end_s - span.start_s;
    }
    ranks[rank].exposed = std::max(0.0, taken_s - ranks[rank].computing);
  }
  return ranks;
}

/// What ranks wait for gradients of other replicas. plan: as predict_exchanges leaves it.
void add_exchange_waits(const RankPlan& plan, std::vector<RankSeconds>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].exposed += plan.predicted.ranks[rank].exchange_wait_s;
}

}  // namespace

RankPlanner::RankPlanner(const ModelConfig& model, std::vector<JobShape> jobs, const DeviceCosts& costs,
                         std::vector<PipelineLayout> layouts, RankPlannerOptions options)
    : model_(model), machine_(costs.machine), jobs_(std::move(jobs)), layouts_(std::move(layouts)), options_(std::move(options)) {
  machine_.link = spec_of(options_.link);
  options_.longest_rows.resize(layouts_.size(), 0);
  step_s_.resize(layouts_.size());
  for (const JobShape& job : jobs_) add_optimizer_step(job);
  fix_buckets();
}

void RankPlanner::add(const TrainingJob& job) {
  ++changes_;
  jobs_.push_back(job.shape());
  prices_.clear();  // of the jobs that there were
  add_optimizer_step(jobs_.back());
  fix_buckets();
}

void RankPlanner::spare(int64_t bytes) {
  if (bytes < spare_bytes_) ++changes_;  // what was planned may keep too much
  spare_bytes_ = bytes;
}

void RankPlanner::fix_buckets() {
  if (options_.length_buckets == LengthBucketing::fixed) borders_ = borders_of_jobs(jobs_);
}

/// As if every rank of a replica had as many of the job's values.
void RankPlanner::add_optimizer_step(const JobShape& job) {
  const int64_t values = parameter_count(model_, job.adapters);
  for (size_t replica = 0; replica < layouts_.size(); ++replica) {
    const PipelineLayout& layout = layouts_[replica];
    int64_t summands = 0;
    for (const AdapterShape& adapter : job.adapters) summands += summand_count(model_, layout.stages.front(), adapter);
    step_s_[replica].optimizer_s.push_back(optimizer_seconds(values / layout.worker_count(), job.moment_count, machine_.device));
    step_s_[replica].reduce_s.push_back(summands > 0 ? sum_seconds(summands / layout.rank_count(), layout.tensor_parallel(), machine_) : 0);
  }
}

StagePrices& RankPlanner::prices(bool recompute) {
  StageMachine machine = machine_;
  machine.recompute = recompute;
  return prices_.try_emplace(recompute, model_, jobs_, machine).first->second;
}

std::vector<double> RankPlanner::step_seconds(size_t replica) const {
  std::vector<double> seconds = step_s_[replica].optimizer_s;
  for (size_t job = 0; job < seconds.size(); ++job) seconds[job] += step_s_[replica].reduce_s[job];
  return seconds;
}

std::vector<double> RankPlanner::corrected_steps(size_t replica, std::vector<double> seconds) const {
  for (double& each : seconds) each = corrections_of(replica, 0).step.of(each);
  return seconds;
}

WorkCorrections RankPlanner::corrections_of(size_t replica, size_t stage) const {
  return corrections_.empty() ? WorkCorrections{} : corrections_[replica][stage];
}

auto RankPlanner::order_as_packed(size_t replica, std::vector<StepPlan> plans, std::span<const JobRound> rounds) -> OrderedRounds {
  const PipelineLayout& layout = layouts_[replica];
  const size_t stage_count = layout.stages.size();
  struct Rest {
    StageSeconds collectives, gathering;
    int64_t kept_bytes = 0;
  };
  std::vector<StageSeconds> priced;
  std::map<const StepPlan*, size_t> first;  // the plans stay where they are when their vector is moved
  std::vector<Rest> rest;                   // beside those that are priced
  std::vector<MicrobatchShape> shapes;      // by microbatch
  for (const StepPlan& plan : plans) {
    first[&plan] = priced.size();
    StagePrices& prices = this->prices(plan.policy.recompute);
    for (MicrobatchShape shape : shapes_of_microbatches(plan, rounds, jobs_.size(), prices)) {
      for (const StageShape& stage : layout.stages) {
        const PricedStage& each = prices.at(stage, shape.jobs);
        const StageSeconds all = each.seconds(shape.counts), sums = each.collectives(shape.counts);
        priced.push_back({all.forward - sums.forward, all.backward - sums.backward});
        rest.push_back({sums, gathering_of(replica, stage, all), each.kept_bytes(shape.counts)});
      }
      shapes.push_back(std::move(shape));
    }
  }
  const auto cost = [&](bool corrects) {
    return [&, corrects](const StepPlan& plan, size_t microbatch, size_t stage) {
      const size_t place = first.at(&plan) + microbatch * stage_count + stage;
      const StageSeconds work = corrects ? corrections_of(replica, stage).of(priced[place]) : priced[place];
      const auto& [sums, gathering, kept_bytes] = rest[place];
      return StageCost{work.forward + sums.forward + gathering.forward, work.backward + sums.backward + gathering.backward, kept_bytes};
    };
  };
  const auto graphs = [&](const StepPlan& plan, size_t microbatch, size_t stage) {
    const MicrobatchShape& shape = shapes[first.at(&plan) / stage_count + microbatch];
    const PricedStage& each = prices(plan.policy.recompute).at(layout.stages[stage], shape.jobs, true);
    PricedStage::ClockGraphs own = each.clock_graphs(shape.counts, PricedStage::ClockLayers::few, true);
    return StageGraphs{std::move(own.forward), std::move(own.backward)};
  };
  RankPlanOptions options{
      .order = options_.order,
      .cluster = {.link = options_.link},
      .bytes_per_token = token_bytes(model_.hidden_size, machine_.element_size()),
      .optimizer_s = corrected_steps(replica, step_seconds(replica)),
      .most_in_flight = layout.rank_count(),
      .spare_bytes = spare_bytes_,
      .interleave = options_.interleave,
      .jobs_of_buckets = options_.packing.empty() ? std::vector<std::vector<int32_t>>{} : options_.packing[replica].jobs_of_buckets,
      .graphs = graphs,
      .rates = stream_rates(machine_)};
  RankPlan plan = plan_ranks(std::move(plans), layout, cost(true), options);
  double uncorrected_s = plan.predicted.makespan_s;
  if (!corrections_.empty() && plan.clocks.empty()) {
    options.optimizer_s = step_seconds(replica);
    uncorrected_s = simulate(work_of(plan.rounds, layout, cost(false), options), plan.schedule, options.cluster).makespan_s;
  }
  // Clocks are priced without corrections.
  std::vector<RankSeconds> ranks = seconds_of_ranks(plan, layout, [&](const StepPlan& round, size_t microbatch, size_t stage) {
    const StageSeconds& own = priced[first.at(&round) + microbatch * stage_count + stage];
    return plan.clocks.empty() ? corrections_of(replica, stage).of(own) : own;
  });
  return {std::move(plan), std::move(priced), uncorrected_s, std::move(ranks)};
}

void RankPlanner::add_steps(size_t replica, const RankPlan& plan, std::vector<RankSeconds>& ranks) const {
  const std::vector<double> optimizer_s = corrected_steps(replica, step_s_[replica].optimizer_s);
  std::vector<double> sums_s = step_s_[replica].reduce_s;
  if (layouts_.size() == 1) {  // the sums are a part of the step, and corrected with it
    sums_s = corrected_steps(replica, step_seconds(replica));
    for (size_t job = 0; job < sums_s.size(); ++job) sums_s[job] -= optimizer_s[job];
  }
  const ActionKind with_sums = layouts_.size() == 1 ? ActionKind::optimizer_step : ActionKind::reduce_gradients;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const Action& action : plan.ranks[rank]) {
      if (action.kind == ActionKind::optimizer_step) ranks[rank].computing += optimizer_s[static_cast<size_t>(action.job)];
      if (action.kind == with_sums) ranks[rank].exposed += sums_s[static_cast<size_t>(action.job)];
    }
  }
}

std::vector<int64_t> RankPlanner::splits_of(size_t replica, const StepPlan& plan) const {
  const PackingPolicy& policy = plan.policy;
  const bool may_split = options_.order == RankOrder::automatic || options_.order == RankOrder::split;
  const bool takes_turns = policy.sharing == Sharing::hybrid || policy.sharing == Sharing::temporal;
  const int64_t ranks = layouts_[replica].rank_count();
  if (!may_split || !takes_turns || ranks == 1) return {};
  const int64_t followed = options_.packing.empty() ? 1 : options_.packing[replica].least_microbatches;
  if (followed > 1) return {followed};
  int64_t tasks = plan.batches.empty() ? 0 : 1, rows = 0;
  if (policy.sharing == Sharing::temporal) {
    tasks = std::ssize(plan.batches);
  } else if (!policy.hybrid_tasks.empty()) {
    tasks = task_count(plan);
  }
  for (const BatchShape& batch : plan.batches) rows += std::ssize(batch.row_lengths);
  if (tasks == 0 || tasks >= ranks) return {};
  const int64_t least = lorapp_microbatches(ranks, tasks, std::min(rows, most_for_one * ranks));
  if (options_.order == RankOrder::split) return {least};
  return {least, 2 * least};
}

std::vector<std::vector<StepPlan>> RankPlanner::packings(size_t replica, std::vector<StepPlan> plans) const {
  std::vector<std::vector<StepPlan>> packings;
  const bool may_split = std::ranges::any_of(plans, [&](const StepPlan& plan) { return !splits_of(replica, plan).empty(); });
  for (size_t choice = 0; may_split && choice < most_splits; ++choice) {
    std::vector<StepPlan> split;
    bool gains = false;
    for (const StepPlan& plan : plans) {
      const std::vector<int64_t> least = splits_of(replica, plan);
      PackingPolicy policy = plan.policy;
      if (choice < least.size()) policy.least_microbatches = least[choice];
      StepPlan finer = plan_step(plan.batches, policy);
      const bool is_finer = finer.microbatches.size() > plan.microbatches.size();
      split.push_back(is_finer ? std::move(finer) : plan);
      gains = gains || is_finer;
    }
    if (gains) packings.push_back(std::move(split));
  }
  if (packings.empty() || options_.order == RankOrder::automatic) packings.push_back(std::move(plans));
  return packings;
}

RankPlan RankPlanner::order(size_t replica, std::vector<StepPlan> plans, std::span<const JobRound> rounds, PricedRounds& priced) {
  const bool trains = std::ranges::all_of(rounds, [](const JobRound& round) { return round.purpose == RoundPurpose::train; });
  std::vector<std::vector<StepPlan>> choices;
  if (trains) {
    choices = packings(replica, std::move(plans));
  } else {
    choices.push_back(std::move(plans));
  }
  std::optional<OrderedRounds> best;
  for (std::vector<StepPlan>& each : choices) {
    OrderedRounds ordered = order_as_packed(replica, std::move(each), rounds);
    if (!best || ordered.plan.predicted.makespan_s < best->plan.predicted.makespan_s) best = std::move(ordered);
  }
  priced.replicas[replica].work = std::move(best->work);
  if (!priced.corrections.empty() && !best->plan.clocks.empty()) priced.corrections[replica].assign(layouts_[replica].stages.size(), {});
  priced.replicas[replica].ranks = std::move(best->ranks);
  priced.uncorrected_s = std::max(priced.uncorrected_s, best->uncorrected_s);
  priced.corrected_s = std::max(priced.corrected_s, best->plan.predicted.makespan_s);
  return std::move(best->plan);
}

/// What it adds to a pass. The head is whole, and of the embedding come the rows that are looked up.
StageSeconds RankPlanner::gathering_of(size_t replica, const StageShape& stage, const StageSeconds& computed) const {
  if (!options_.are_processes) return {};
  StageShape layers = stage;
  layers.has_embedding = layers.has_head = false;
  const WeightSharding sharding{.shards = static_cast<int64_t>(replicas_with_weights_of(layouts_, replica).size())};
  const StageSeconds with = with_gathered_weights(computed, model_, layers, sharding, machine_.element_size(), spec_of(options_.exchange_link));
  return {with.forward - computed.forward, with.backward - computed.backward};
}

Configuration RankPlanner::configuration_of(size_t replica, const PackingPolicy& policy, std::span<const BatchShape> batches) {
  const PipelineLayout& layout = layouts_[replica];
  int64_t longest_row = 0;
  std::vector<double> shares(jobs_.size(), 0);
  std::vector<int32_t> present;
  double tokens = 0;
  for (const BatchShape& batch : batches) {
    const JobShape& job = jobs_[static_cast<size_t>(batch.job)];
    present.push_back(batch.job);
    tokens += shares[static_cast<size_t>(batch.job)] = static_cast<double>(job.batch_size) * job.lengths.mean();
    for (const int64_t length : batch.row_lengths) longest_row = std::max(longest_row, length);
  }
  for (double& share : shares) share /= tokens;
  std::ranges::sort(present);
  StagePrices& prices = this->prices(policy.recompute);
  const size_t number = prices.jobs_number(present);
  std::vector<std::pair<const PricedStage*, WorkCorrections>> stages;
  for (const StageShape& stage : layout.stages) stages.emplace_back(&prices.at(stage, number), corrections_of(replica, stages.size()));
  const auto gathering = [this, replica, shapes = layout.stages](size_t stage, const StageSeconds& computed) {
    return gathering_of(replica, shapes[stage], computed).total();
  };
  const int64_t limit = options_.longest_rows[replica], budget = policy.token_budget;
  return {.tensor_parallel = layout.tensor_parallel(),
          .pipeline_stages = layout.rank_count(),
          .chunk_tokens = limit > 0 ? std::min(limit, budget) : budget,
          .longest_row = limit > 0 ? limit : longest_row,
          .chunk_seconds = [stages, gathering, shares, stage_rank = layout.stage_rank, budget](int64_t sequences, int64_t row) {
            const int64_t together = std::max<int64_t>(1, budget / row);
            std::map<int32_t, double> of_rank;
            const MicrobatchCounts counts = even_microbatch(together, row, shares);
            for (size_t s = 0; s < stages.size(); ++s) {
              const auto& [stage, corrections] = stages[s];
              const StageSeconds all = stage->seconds(counts), sums = stage->collectives(counts);
              of_rank[stage_rank[s]] +=
                  corrections.of({all.forward - sums.forward, all.backward - sums.backward}).total() + sums.total() + gathering(s, all);
            }
            double slowest = 0;
            for (const auto& [rank, seconds] : of_rank) slowest = std::max(slowest, seconds);
            return slowest * static_cast<double>(sequences) / static_cast<double>(together);
          }};
}

PackingPolicy RankPlanner::policy_of(size_t replica, PackingPolicy policy) const {
  if (options_.packing.empty()) return policy;
  const FollowedPacking& own = options_.packing[replica];
  if (own.token_budget > 0) policy.token_budget = std::min(policy.token_budget, own.token_budget);
  if (!own.hybrid_tasks.empty()) policy.hybrid_tasks = own.hybrid_tasks;
  return policy;
}

DealtRound RankPlanner::deal(const StepPlan& plan) {
  std::vector<Configuration> replicas;
  for (size_t replica = 0; replica < layouts_.size(); ++replica)
    replicas.push_back(configuration_of(replica, policy_of(replica, plan.policy), plan.batches));
  return RowDispatcher(std::move(replicas), options_.dispatch, borders_).deal(plan.batches);
}

PricedRounds RankPlanner::before_pricing() const {
  PricedRounds priced{.replicas = {}, .corrections = corrections_};
  for (size_t replica = 0; replica < layouts_.size(); ++replica) {  // those without rows make steps too
    priced.replicas.push_back({.stage_count = layouts_[replica].stages.size(), .work = {}, .optimizer_s = step_seconds(replica)});
  }
  return priced;
}

std::optional<ReplicaPlans> RankPlanner::plan_at_once(std::span<const StepPlan> plans, std::span<const JobRound> rounds,
                                                      const ExchangeCosts& exchanges, PricedRounds& priced) {
  priced = before_pricing();
  std::vector<DealtRound> dealt;
  for (const StepPlan& plan : plans) dealt.push_back(deal(plan));
  const auto policy = [&](size_t replica, size_t round) { return policy_of(replica, plans[round].policy); };
  std::optional<ReplicaPlans> planned = plan_replicas(dealt, policy, layouts_, [&](size_t replica, std::vector<StepPlan> own) {
    std::list<Batch> batches;
    const std::vector<JobRound> shares = rounds_of_replica(rounds, row_shares(dealt, static_cast<int32_t>(replica)), batches);
    return order(replica, std::move(own), shares, priced);
  });
  if (!planned) return planned;
  const auto longest = [&] {
    double seconds = 0;
    for (const RankPlan& plan : planned->replicas) seconds = std::max(seconds, plan.predicted.makespan_s);
    return seconds;
  };
  std::vector<ReplicaSeconds> steps = step_s_;
  for (size_t replica = 0; replica < steps.size(); ++replica) {
    steps[replica].optimizer_s = corrected_steps(replica, std::move(steps[replica].optimizer_s));
  }
  predict_exchanges(*planned, layouts_, steps, {.link = options_.link}, exchanges);
  const double exposed_s = longest() - priced.corrected_s;
  priced.uncorrected_s += exposed_s;
  priced.corrected_s += exposed_s;
  planned->longest_exchange_s = longest_exchange_s();
  for (size_t replica = 0; replica < layouts_.size(); ++replica) {
    std::vector<RankSeconds>& ranks = priced.replicas[replica].ranks;
    ranks.resize(planned->replicas[replica].ranks.size());  // of those without rows, too
    add_steps(replica, planned->replicas[replica], ranks);
    add_exchange_waits(planned->replicas[replica], ranks);
  }
  return planned;
}

/// As if one rank sent and received all gradients of the job that has most.
double RankPlanner::longest_exchange_s() const {
  double longest = 0;
  for (const JobShape& job : jobs_) {
    const auto bytes = static_cast<double>(parameter_count(model_, job.adapters) * accumulation_bytes(machine_.element_size()));
    longest = std::max(longest, options_.exchange_link.latency_s + 2 * bytes / options_.exchange_link.bytes_per_s);
  }
  return longest;
}

std::vector<PlannedRun> RankPlanner::plan(std::vector<StepPlan> plans, std::span<const JobRound> rounds,
                                          const std::map<int32_t, ExchangeMessages>& exchanges) {
  std::vector<PlannedRun> runs;
  if (layouts_.size() == 1) {
    PlannedRun& run = runs.emplace_back();
    run.round_count = plans.size();
    run.priced = before_pricing();
    run.plans.replicas.push_back(order(0, std::move(plans), rounds, run.priced));
    add_steps(0, run.plans.replicas.front(), run.priced.replicas.front().ranks);
    return runs;
  }
  PricedRounds priced;
  const ExchangeCosts costs{.messages = exchanges, .value_bytes = accumulation_bytes(machine_.element_size()), .link = options_.exchange_link};
  if (std::optional<ReplicaPlans> together = plan_at_once(plans, rounds, costs, priced)) {
    runs.push_back({std::move(*together), plans.size(), std::move(priced)});
    return runs;
  }
  for (const StepPlan& plan : plans) {
    std::vector<JobRound> own;
    std::ranges::copy_if(rounds, std::back_inserter(own), [&](const JobRound& round) {
      return std::ranges::any_of(plan.batches, [&](const BatchShape& batch) { return batch.job == round.job && batch.step == round.batch->step; });
    });
    std::optional<ReplicaPlans> alone = plan_at_once({&plan, 1}, own, costs, priced);
    COTUNE_CHECK(alone.has_value(), "the exchanges of a single round wait for each other");
    runs.push_back({std::move(*alone), 1, std::move(priced)});
  }
  return runs;
}

}  // namespace cotune
