// The part of a run that divides its rounds among ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/steady_seconds.h"
#include "engine/rank_results.h"
#include "engine/rank_threads.h"
#include "jobs/parallel.h"
#include "ops/memory.h"
#include "schedule/memory/peak_memory.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/token_counts.h"
#include "train/balanced_layout.h"
#include "train/divided_memory.h"
#include "train/trainer.h"

namespace cotune {
namespace {

constexpr const char* rest_of_round = "optimizer_step";  // beside operators, on a device
constexpr double seconds_at_once = 8;  // launchers kill what has not ended half a minute after they asked
constexpr int64_t most_rounds_at_once = 16;

}  // namespace

void Trainer::start_ranks() {
  const DeviceCosts costs = options_.costs ? *options_.costs : roofline_costs(backbone_->compute(), options_.device, options_.ranks);
  const std::vector<ReplicaDegrees>& degrees = options_.parallel.replicas;
  const double begin_s = seconds_since_start();
  std::vector<JobShape> shapes = rank_planner_ != nullptr ? rank_planner_->jobs() : shapes_of(jobs_);  // data of ended jobs are gone
  ranks_ = options_.rank_group;
  if (ranks_ == nullptr) {
    std::vector<PipelineLayout> layouts = options_.layouts;
    if (layouts.empty()) layouts = balanced_layouts(backbone_->config(), shapes, costs, options_.policy, options_.parallel);
    std::vector<ReplicaRanks> replicas;
    for (PipelineLayout& layout : layouts) {
      const int64_t degree = layout.tensor_parallel();
      replicas.push_back({std::move(layout), parts_of(degree)});
    }
    const auto threads = std::make_shared<RankThreads>(std::move(replicas));
    if (options_.hang_timeout_s > 0) {
      thread_watch_ = std::make_unique<ThreadWatch>(threads->progress_of_ranks(), options_.host, options_.hang_timeout_s, options_.at_hang);
    }
    ranks_ = threads;
  }
  const LinkSpec between_threads = link_between_threads(costs.machine.measured);
  RankPlannerOptions planning{
      .order = options_.pipeline_order,
      .interleave = options_.interleave,
      .link = options_.rank_link.value_or(Link{.latency_s = between_threads.latency, .bytes_per_s = between_threads.bandwidth}),
      .dispatch = options_.dispatch,
      .length_buckets = options_.length_buckets,
      .longest_rows = {},
      .packing = options_.packing};
  planning.are_processes = ranks_->are_processes();
  planning.exchange_link = options_.exchange_link.value_or(planning.link);
  for (const ReplicaDegrees& replica : degrees) planning.longest_rows.push_back(replica.longest_row);
  const std::span<const PipelineLayout> layouts = ranks_->layouts();
  ahead_.reset();  // of a planner before
  spare_.reset();  // of another division
  rank_planner_ = std::make_unique<RankPlanner>(backbone_->config(), std::move(shapes), costs, std::vector(layouts.begin(), layouts.end()),
                                                std::move(planning));
  start_refit(costs);
  for (int32_t rank = 0; rank < rank_count_of(layouts); ++rank) {
    const auto [replica, worker] = place_of_rank(layouts, rank);
    const TensorShard shard = layouts[replica].shard_of(worker);
    const auto index = static_cast<size_t>(rank);
    summary_.ranks.push_back({.host = index < options_.rank_hosts.size() ? options_.rank_hosts[index] : "",
                              .replica = static_cast<int64_t>(replica),
                              .replicas = static_cast<int64_t>(layouts.size()),
                              .layers = layers_of(layouts, rank),
                              .part = shard.index,
                              .parts = shard.count});
  }
  ranks_->observe([this](int32_t, const Operator&) { break_off_stopped_evaluation(); });
  division_seconds_ = seconds_since_start() - begin_s;
}

std::vector<std::shared_ptr<const Backbone>> Trainer::parts_of(int64_t degree) const {
  const auto found = options_.parts.find(degree);
  if (found != options_.parts.end()) return found->second;
  COTUNE_CHECK(degree == backbone_->shard().count && degree == 1, "there are no {} parts of the backbone", degree);
  return {backbone_};
}

void Trainer::share_with_ranks(TrainingJob& job) {
  if (ranks_ != nullptr) ranks_->share(job.index(), job.adapter());
}

void Trainer::gather_from_ranks(TrainingJob& job) {
  if (ranks_ != nullptr) ranks_->gather(job.index(), job.adapter());
}

RankTask Trainer::task_of(const char* what, const TrainingJob& job) const {
  return {ranks_ != nullptr ? ranks_->progress() : nullptr, fmt::format("{} of job `{}`", what, job.spec().name)};
}

void Trainer::unload(TrainingJob& job) {
  if (ranks_ != nullptr) ranks_->forget(job.index());
  job.unload();
}

bool Trainer::finish_round(TrainingJob& job, const JobRound& round) {
  const int64_t pass = job.adapter().finished_selection_passes();
  const bool stepped = job.finish_round(round);
  const bool has_selected = job.adapter().finished_selection_passes() > pass;
  if (has_selected && ranks_ != nullptr) ranks_->end_selection(job.index(), job.adapter(), pass);
  return stepped;
}

int64_t Trainer::rounds_at_once() const {
  if (options_.rounds_at_once > 0) return options_.rounds_at_once;
  if (round_seconds_ == 0) return 0;
  return std::clamp<int64_t>(std::llround(seconds_at_once / round_seconds_), 1, most_rounds_at_once);
}

size_t Trainer::add_rounds_ahead(std::vector<JobRound>& rounds) {
  if (ranks_ == nullptr) return 1;
  forget_round_time_where_jobs_come(rounds);
  int64_t count = rounds_beginning_with(rounds);
  for (const JobRound& round : rounds) count = std::min(count, job(round.job).steps_at_once());
  const size_t job_count = rounds.size();
  for (int64_t ahead = 1; ahead < count; ++ahead) {
    try {
      for (size_t i = 0; i < job_count; ++i) rounds.push_back(job(rounds[i].job).next_round(ahead));
    } catch (const UserError&) {  // comes again when it is the job's next round
      rounds.resize(job_count * static_cast<size_t>(ahead));
      break;
    }
  }
  return rounds.size() / job_count;
}

void Trainer::run_alone(const StepPlan& plan, std::span<JobRound> rounds) {
  PricedRounds priced;
  const bool is_measured = are_measured(rounds);
  if (is_measured) priced = round_prices_->of(plan, rounds, refit_->prices().whole);
  restart_recent_peak();
  const int64_t bytes_before = memory_usage().live_bytes();
  const double begin_s = seconds_since_start();
  if (device_times_ != nullptr) device_times_->begin();
  interpreter_->run(plan, rounds);
  if (is_measured) learn_times_alone(priced, plan, seconds_since_start() - begin_s);
  if (are_peaks_measured(rounds)) learn_peak_alone(plan, rounds, memory_usage().recent_peak_live_bytes - bytes_before);
  tell([&](RunObserver& observer) { observer.on_computed(plan, interpreter_->spans(), evaluating_); });
  if (device_times_ == nullptr) return;
  device_times_->mark(rest_of_round);
  device_times_->collect([this](const std::string& name, double seconds) { operator_seconds_.front()[name] += seconds; });
}

void Trainer::run_plans(std::span<const StepPlan> plans, std::span<JobRound> rounds) {
  if (ranks_ == nullptr) return run_alone(plans.front(), rounds);
  rank_planner_->spare(spare_bytes_of_rank());
  const std::vector<PlannedRun> runs = planned_runs(plans, rounds);
  std::span<const JobRound> followed = rounds;
  for (const PlannedRun& run : runs) {
    size_t jobs = 0;
    for (const StepPlan& plan : plans.first(run.round_count)) jobs += plan.batches.size();
    run_on_ranks(run, rounds.first(jobs), std::exchange(followed, {}));
    // A job that failed goes no further; what is left of the others' rounds comes again.
    if (std::ranges::any_of(rounds.first(jobs), [](const JobRound& round) { return !round.failure.empty(); })) return;
    rounds = rounds.subspan(jobs);
    plans = plans.subspan(run.round_count);
  }
}

std::map<int32_t, ExchangeMessages> Trainer::exchanges_of(std::span<const JobRound> rounds) {
  std::map<int32_t, ExchangeMessages> exchanges;
  if (ranks_->layouts().size() == 1) return exchanges;
  for (const JobRound& round : rounds) {
    if (round.purpose != RoundPurpose::train || exchanges.contains(round.job)) continue;
    exchanges[round.job] = ranks_->exchange_messages_of(round.job, *round.adapter);
  }
  return exchanges;
}

void Trainer::run_on_ranks(const PlannedRun& run, std::span<JobRound> rounds, std::span<const JobRound> followed) {
  const ReplicaPlans& plans = run.plans;
  const double begin_s = steady_seconds();
  keeps_spare_ = !evaluating_ && std::ranges::any_of(plans.replicas, [](const RankPlan& plan) { return !plan.spare_bytes.empty(); });
  if (!evaluating_) count_tokens_of(plans, rounds);
  std::future<std::optional<RoundsAhead>> planning = begin_planning_ahead(followed);
  ranks_->run(plans, rounds);
  end_planning_ahead(std::move(planning));
  for (size_t rank = 0; rank < operator_seconds_.size(); ++rank) {
    // A device works while the host goes on: the host's times say nothing of it.
    if (!options_.device.is_cpu()) break;
    for (const auto& [name, seconds] : ranks_->times().ranks[rank].operator_seconds) operator_seconds_[rank][name] += seconds;
  }
  if (!evaluating_) {
    count_rank_times();
    count_predicted_times(run);
    count_split_rounds(run);
    if (are_measured(rounds)) learn_times_of_ranks(run);
    if (are_peaks_measured(rounds)) learn_peak_of_ranks(run, rounds);
  }
  tell([&](RunObserver& observer) { observer.on_ranks(plans, ranks_->times(), begin_s, evaluating_); });
}

/// As the replicas pack them.
void Trainer::count_tokens_of(const ReplicaPlans& plans, std::span<const JobRound> rounds) {
  for (const JobRound& round : rounds) round_tokens_[{round.job, round.batch->step}] = {};
  for (const RankPlan& replica : plans.replicas) {
    for (const StepPlan& plan : replica.rounds) {
      const std::vector<TokenCounts> counts = count_tokens(plan);
      for (size_t b = 0; b < counts.size(); ++b) round_tokens_[{plan.batches[b].job, plan.batches[b].step}] += counts[b];
    }
  }
}

void Trainer::count_split_rounds(const PlannedRun& run) {
  int64_t most = 0;
  for (const RankPlan& replica : run.plans.replicas) {
    const auto is_split = [](const StepPlan& plan) { return plan.policy.least_microbatches > 1; };
    most = std::max<int64_t>(most, std::ranges::count_if(replica.rounds, is_split));
  }
  summary_.rounds_split += most;
}

void Trainer::count_rank_times() {
  const RankTimes& times = ranks_->times();
  summary_.ranks_seconds += times.seconds;
  const bool is_on_host = ranks_->are_processes() || (options_.device.is_cpu() && !options_.device.is_emulated());
  COTUNE_CHECK(times.ranks.size() == summary_.ranks.size(), "times of {} ranks for {}", times.ranks.size(), summary_.ranks.size());
  for (size_t i = 0; i < summary_.ranks.size(); ++i) {
    const RankTime& time = times.ranks[i];
    RankSummary& own = summary_.ranks[i];
    own.seconds += times.seconds;
    own.waited_seconds += time.waited_s + times.idle_s[i];
    own.sent += time.sent;
    own.collectives += time.collectives;
    own.exposed_seconds += time.exposed_s;
    own.gathering_seconds += time.gathering_s;
    own.exchanging_seconds += time.exchanging_s;
    own.exchanged_bytes += time.exchanged_bytes;
    own.weight_bytes = std::max(own.weight_bytes, time.weight_bytes);
    own.whole_weight_bytes = std::max(own.whole_weight_bytes, time.whole_weight_bytes);
    if (is_on_host) own.peak_bytes = std::max(own.peak_bytes, time.peak_bytes);
  }
}

void Trainer::count_predicted_times(const PlannedRun& run) {
  const double predicted_s = run.plans.predicted_s();
  summary_.ranks_predicted_seconds += predicted_s;
  const std::span<const PipelineLayout> layouts = ranks_->layouts();
  const std::vector<JobFootprint> footprints = running_footprints();
  for (int32_t rank = 0; rank < rank_count_of(layouts); ++rank) {
    const auto [replica, worker] = place_of_rank(layouts, rank);
    const auto place = static_cast<size_t>(layouts[replica].place_of(worker));
    const RankSeconds& predicted = run.priced.replicas[replica].ranks[place];
    RankSummary& own = summary_.ranks[static_cast<size_t>(rank)];
    own.predicted_seconds += predicted_s;
    own.predicted_computing_seconds += predicted.computing;
    own.predicted_exposed_seconds += predicted.exposed;
    if (own.peak_bytes > 0) {
      const std::vector<int64_t>& spare = run.plans.replicas[replica].spare_bytes;
      const double kept = spare.empty() ? 0 : bytes_over_priced() * static_cast<double>(spare[place]);
      const int64_t bytes = predicted_bytes_of(footprints, replica, place, own.weight_bytes) + facts_.with_holes(static_cast<int64_t>(kept));
      own.predicted_peak_bytes = std::max(own.predicted_peak_bytes, bytes);
    }
  }
}

int64_t Trainer::predicted_bytes_of(std::span<const JobFootprint> jobs, size_t replica, size_t place, int64_t weight_bytes) const {
  if (ranks_->are_processes()) {
    return predict_memory(backbone_->config(), jobs, options_.policy, facts_of_rank(facts_, replica, place, weight_bytes)).total();
  }
  MemoryFacts facts = facts_;
  set_process_stages(facts, ranks_->layouts());
  const MemoryEstimate rounds =
      predict_rounds(backbone_->config(), jobs, options_.policy, facts_of_rank(facts, replica, place, weight_bytes), RoundKind::training);
  return rounds.activations + rounds.chain_kv + rounds.workspace + rounds.logits;
}

}  // namespace cotune
