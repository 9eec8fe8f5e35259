// The part of a run that divides its ranks anew while it goes on, where they are threads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/deployment/replan.h"
#include "schedule/memory.h"
#include "train/divided_memory.h"
#include "train/job_changes.h"
#include "train/trainer.h"

namespace cotune {
namespace {

constexpr double least_ratio_change = 0.25;  // of measured times, that another division is looked for
constexpr double least_division_gain = 0.05; // of a step's time: predictions of unlike divisions tell no less
constexpr double move_margin = 0.5;

}  // namespace

void Trainer::replan_division() {
  if (!options_.plan_division || ranks_ == nullptr || ranks_->are_processes()) return;
  if (division_answer_.valid()) {
    if (division_answer_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    try {
      if (const std::optional<DivisionAnswer> answer = division_answer_.get()) take_division(*answer);
    } catch (const UserError& error) {
      tell([&](RunObserver& observer) { observer.on_notice(fmt::format("the ranks stay divided as they are: {}", error.what())); });
      options_.plan_division = nullptr;
    }
    return;
  }
  std::vector<int32_t> now;
  JobChanges changes;
  for (const TrainingJob* job : running_jobs()) {
    now.push_back(job->index());
    if (!std::ranges::binary_search(division_jobs_, job->index())) changes.add(job->spec().name, "joins");
  }
  if (now.empty()) return;
  for (const int32_t index : division_jobs_) {
    if (!std::ranges::binary_search(now, index)) changes.add(job(index).spec().name, "leaves");
  }
  std::vector<std::string> causes = changes.texts();
  const double ratio = refit_ != nullptr ? refit_->settled_ratio() : 1;
  if (std::abs(ratio / division_ratio_ - 1) > least_ratio_change) causes.push_back("measured times");
  if (causes.empty()) return;
  DivisionRequest request{.jobs = {}, .time_ratio = ratio, .running = options_.parallel, .tensor_degrees = {}};
  for (const int32_t index : now) {
    JobShape& shape = request.jobs.emplace_back(job(index).shape());
    for (AdapterShape& adapter : shape.adapters) adapter.job = static_cast<int32_t>(request.jobs.size()) - 1;
  }
  for (const auto& [degree, parts] : options_.parts) request.tensor_degrees.push_back(degree);
  if (options_.parts.empty()) request.tensor_degrees.push_back(backbone_->shard().count);
  division_jobs_ = std::move(now);
  division_ratio_ = ratio;
  division_cause_ = fmt::format("{}", fmt::join(causes, ", "));
  division_answer_ = std::async(std::launch::async, options_.plan_division, std::move(request));
}

void Trainer::take_division(const DivisionAnswer& answer) {
  std::vector<int32_t> now;
  double steps_left = std::numeric_limits<double>::infinity();
  for (const TrainingJob* job : running_jobs()) {
    now.push_back(job->index());
    steps_left = std::min(steps_left, static_cast<double>(job->total_steps() - job->state().step));
  }
  // It is asked for anew where the jobs are others meanwhile.
  if (now != division_jobs_ || now.empty() || answer.best.parallel == options_.parallel || answer.kept_seconds <= 0) return;
  const MoveChoice choice = choose_move(answer.kept_seconds, answer.best.seconds, steps_left, expected_move_seconds(), move_margin);
  if (!choice.pays || answer.best.seconds > (1 - least_division_gain) * answer.kept_seconds) return;
  swap_division(answer.best, division_cause_, choice.reason);
}

double Trainer::expected_move_seconds() const {
  double values = 0;
  for (const TrainingJob* job : running_jobs()) {
    const JobFootprint own = job->footprint();
    values += static_cast<double>(parameter_count(backbone_->config(), own.adapters) * (1 + own.moment_count));
  }
  const MoveCosts costs;
  return division_seconds_ + 2 * 4 * values / costs.checkpoint_bandwidth;  // gathered, and shared
}

bool Trainer::fits_divided_as(const Parallel& parallel) const {
  if (tensor_limit_ == 0) return true;
  MemoryFacts facts = facts_;
  set_division(facts, parallel, options_.pipeline_order, options_.interleave, {});
  return LearnedPeak(backbone_->config(), facts).predict(running_footprints(), {}, options_.policy).total() <= tensor_limit_;
}

void Trainer::divide_as(const Parallel& parallel, std::vector<PipelineLayout> layouts) {
  ranks_.reset();
  options_.parallel = parallel;
  options_.layouts = std::move(layouts);
  set_division(facts_, parallel, options_.pipeline_order, options_.interleave, {});
  learned_ = LearnedPeak(backbone_->config(), facts_);
  summary_.ranks.clear();
  start_ranks();
  for (TrainingJob* job : running_jobs()) share_with_ranks(*job);
}

bool Trainer::swap_division(const PlannedDivision& division, const std::string& cause, const std::string& reason) {
  COTUNE_CHECK(ranks_ != nullptr && !ranks_->are_processes(), "only threads are divided anew");
  COTUNE_CHECK(division.parallel.ranks() == options_.ranks, "{} ranks, divided anew among {}", options_.ranks, division.parallel.ranks());
  COTUNE_CHECK(options_.packing.empty(), "replicas that pack as a plan says are divided anew");
  const double begin_s = seconds_since_start();
  const Parallel before = options_.parallel;
  const std::vector<PipelineLayout> layouts(ranks_->layouts().begin(), ranks_->layouts().end());
  DivisionSwap swap{.round = summary_.rounds, .cause = cause, .before = to_string(before), .after = to_string(division.parallel),
                    .reason = reason};
  const auto stays = [&](const std::string& why) {
    tell([&](RunObserver& observer) {
      observer.on_notice(fmt::format("the ranks stay divided as {}, and not as {}: {}", swap.before, swap.after, why));
    });
    return false;
  };
  if (!fits_divided_as(division.parallel)) return stays("the jobs that run would not fit into memory");
  for (TrainingJob* job : running_jobs()) {
    if (job->state().step > 0) gather_from_ranks(*job);
  }
  try {
    divide_as(division.parallel, division.layouts);
  } catch (const MemoryLimitExceeded& trouble) {
    divide_as(before, layouts);
    return stays(trouble.what());
  }
  swap.seconds = seconds_since_start() - begin_s;
  summary_.swaps.push_back(swap);
  tell([&](RunObserver& observer) { observer.on_swap(swap); });
  if (tensor_limit_ > 0) start_jobs();  // jobs take other bytes now
  return true;
}

}  // namespace cotune
