// The part of a run that divides its rounds among ranks.
#include <algorithm>

#include "base/error.h"
#include "train/trainer.h"

namespace cotune {
namespace {

constexpr const char* rest_of_round = "optimizer_step";  // beside operators, on a device
constexpr double most_seconds_at_once = 2;
constexpr int64_t most_rounds_at_once = 16;

}  // namespace

void Trainer::start_ranks() {
  const DeviceCosts costs = options_.costs ? *options_.costs : roofline_costs(backbone_->compute(), options_.device);
  rank_planner_ = std::make_unique<RankPlanner>(backbone_->config(), jobs_, costs, options_.policy, options_.ranks,
                                                options_.pipeline_order);
  ranks_ = std::make_unique<RankThreads>(backbone_, rank_planner_->layout());
  for (const StageShape& stage : ranks_->layout().stages) {
    summary_.ranks.push_back({.first_layer = stage.first_layer, .last_layer = stage.last_layer});
  }
  ranks_->observe([this](int32_t rank, const Operator& op, double seconds) {
    // A device works while the host goes on: the host's times say nothing of it.
    if (options_.device.is_cpu()) operator_seconds_[static_cast<size_t>(rank)][to_string(op.kind)] += seconds;
    break_off_stopped_evaluation();
  });
}

size_t Trainer::add_rounds_ahead(std::vector<JobRound>& rounds) {
  if (ranks_ == nullptr) return 1;
  int64_t count = options_.rounds_at_once;
  if (count == 0 && round_seconds_ == 0) return 1;
  if (count == 0) {
    count = std::clamp<int64_t>(static_cast<int64_t>(most_seconds_at_once / round_seconds_), 1, most_rounds_at_once);
  }
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

void Trainer::run_plans(const std::vector<StepPlan>& plans, std::span<JobRound> rounds) {
  if (ranks_ == nullptr) {
    if (device_times_ != nullptr) device_times_->begin();
    interpreter_.run(plans.front(), rounds);
    if (device_times_ != nullptr) {
      device_times_->mark(rest_of_round);
      device_times_->collect([this](const std::string& name, double seconds) { operator_seconds_.front()[name] += seconds; });
    }
    return;
  }
  const RankPlan plan = rank_planner_->plan(plans, rounds);
  const double begin_s = seconds_since_start();
  ranks_->run(plan, rounds);
  if (evaluating_) return;
  count_rank_times(plan.predicted.makespan_s);
  tell([&](RunObserver& observer) { observer.on_ranks(plan, ranks_->times(), begin_s); });
}

void Trainer::count_rank_times(double predicted_s) {
  summary_.ranks_predicted_seconds += predicted_s;
  const RankTimes& times = ranks_->times();
  for (size_t i = 0; i < summary_.ranks.size(); ++i) {
    summary_.ranks[i].seconds += times.seconds;
    summary_.ranks[i].waited_seconds += times.waited[i] + times.idle[i];
  }
}

}  // namespace cotune
