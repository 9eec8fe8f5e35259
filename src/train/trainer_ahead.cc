// The part of a run that plans rounds on ranks, while those before them run.
#include <algorithm>
#include <utility>

#include "train/trainer.h"

namespace cotune {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<BatchShape> shapes_of(std::span<const JobRound> rounds) {
  std::vector<BatchShape> shapes;
  for (const JobRound& round : rounds) shapes.push_back(round.batch->shape(round.job, round.adapter->lowest_layer()));
  return shapes;
}

bool all_train(std::span<const JobRound> rounds) {
  return std::ranges::all_of(rounds, [](const JobRound& round) { return round.purpose == RoundPurpose::train; });
}

}  // namespace

StepPlan Trainer::step_plan_of(size_t place, std::span<const JobRound> rounds) {
  const std::vector<BatchShape> shapes = shapes_of(rounds);
  const PackingPolicy policy = round_policy();
  const StepPlan* known = ahead_ && all_train(rounds) ? ahead_->plan_of(place, shapes, policy) : nullptr;
  if (known != nullptr) return *known;
  const auto begin = std::chrono::steady_clock::now();
  StepPlan plan = plan_step(shapes, policy);
  const double seconds = seconds_since(begin);
  count_planning(seconds, seconds);
  return plan;
}

int64_t Trainer::rounds_beginning_with(std::span<const JobRound> first) const {
  if (ahead_ && all_train(first) && ahead_->plans.front().batches == shapes_of(first)) return std::ssize(ahead_->plans);
  return std::max<int64_t>(1, rounds_at_once());
}

std::vector<PlannedRun> Trainer::planned_runs(std::span<const StepPlan> plans, std::span<const JobRound> rounds) {
  const std::map<int32_t, ExchangeMessages> exchanges = exchanges_of(rounds);
  if (!evaluating_) {
    std::optional<RoundsAhead> ahead = std::exchange(ahead_, std::nullopt);
    if (ahead && all_train(rounds) && std::ranges::equal(ahead->plans, plans) && ahead->exchanges == exchanges &&
        ahead->planner_changes == rank_planner_->changes()) {
      summary_.rounds_planned_ahead += std::ssize(plans);
      return std::move(ahead->runs);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  std::vector<PlannedRun> runs = rank_planner_->plan({plans.begin(), plans.end()}, rounds, exchanges);
  const double seconds = seconds_since(begin);
  if (!evaluating_) count_planning(seconds, seconds);
  return runs;
}

std::future<std::optional<RoundsAhead>> Trainer::begin_planning_ahead(std::span<const JobRound> rounds) {
  if (!options_.plan_ahead || evaluating_ || !all_train(rounds) || rounds_at_once() == 0) return {};
  std::map<int32_t, int64_t> next_step;
  for (const JobRound& round : rounds) next_step[round.job] = std::max(next_step[round.job], round.batch->step + 1);
  std::erase_if(next_step, [&](const auto& each) { return each.second >= job(each.first).total_steps(); });
  std::map<int32_t, ExchangeMessages> exchanges = exchanges_of(rounds);
  std::erase_if(exchanges, [&](const auto& each) { return !next_step.contains(each.first); });
  if (next_step.empty()) return {};
  const auto plan = [this, next_step = std::move(next_step), exchanges = std::move(exchanges)]() -> std::optional<RoundsAhead> {
    try {
      return plan_ahead(next_step, exchanges);
    } catch (const std::exception&) {  // comes again, when it is these rounds' turn
      return std::nullopt;
    }
  };
  return std::async(std::launch::async, plan);
}

std::optional<RoundsAhead> Trainer::plan_ahead(const std::map<int32_t, int64_t>& next_step, std::map<int32_t, ExchangeMessages> exchanges) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ahead_of = [&](int32_t index) { return next_step.at(index) - job(index).state().step; };
  int64_t count = rounds_at_once();
  std::vector<TrainingJob*> resident;
  for (TrainingJob* each : running_jobs()) {
    if (!next_step.contains(each->index())) continue;
    resident.push_back(each);
    count = std::min(count, each->steps_at_once(ahead_of(each->index())));
  }
  PackingPolicy policy = options_.policy;
  if (policy.sharing == Sharing::hybrid) policy.hybrid_tasks = planner_.plan(resident, policy, options_.parallel).tasks;
  RoundsAhead result{.plans = {}, .exchanges = std::move(exchanges), .planner_changes = rank_planner_->changes(), .runs = {}};
  std::vector<JobRound> rounds;
  for (int64_t round = 0; round < count; ++round) {
    for (TrainingJob* each : resident) rounds.push_back(each->next_round(ahead_of(each->index()) + round));
    result.plans.push_back(plan_step(shapes_of({rounds.end() - std::ssize(resident), rounds.end()}), policy));
  }
  result.runs = rank_planner_->plan(result.plans, rounds, result.exchanges);
  result.seconds = seconds_since(begin);
  return result;
}

void Trainer::end_planning_ahead(std::future<std::optional<RoundsAhead>> planning) {
  if (!planning.valid()) return;
  const auto begin = std::chrono::steady_clock::now();
  ahead_ = planning.get();
  if (ahead_) count_planning(ahead_->seconds, std::min(ahead_->seconds, seconds_since(begin)));
}

void Trainer::count_planning(double seconds, double exposed_s) {
  summary_.planning_seconds += seconds;
  summary_.planning_exposed_seconds += exposed_s;
}

}  // namespace cotune
