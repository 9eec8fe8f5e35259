// The part of a run that divides its ranks anew while it goes on.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/within_memory.h"
#include "plan/deployment/replan.h"
#include "schedule/adapter_shape.h"
#include "train/divided_memory.h"
#include "train/job_change_texts.h"
#include "train/trainer.h"

namespace cotune {
namespace {

constexpr double least_ratio_change = 0.25;  // of measured times, that another division is looked for
constexpr double least_division_gain = 0.05; // of a step's time: predictions of unlike divisions tell no less
constexpr double move_margin = 0.5;
constexpr const char* again = "the ranks cannot be divided as {} again: {}";

}  // namespace

void Trainer::replan_division() {
  if (!options_.plan_division || ranks_ == nullptr || stop_asked()) return;
  if (division_answer_.valid()) {
    if (division_answer_.wait_for(std::chrono::seconds(0)) != std::future_status::ready || must_stay_divided()) return;
    try {
      if (const std::optional<DivisionAnswer> answer = division_answer_.get()) take_division(*answer);
    } catch (const UserError& error) {
      tell([&](RunObserver& observer) { observer.on_notice(fmt::format("the ranks stay divided as they are: {}", error.what())); });
      options_.plan_division = nullptr;
    }
    return;
  }
  std::vector<int32_t> now;
  JobChangeTexts changes;
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
  DivisionRequest request{.jobs = {}, .time_ratio = ratio, .running = options_.parallel, .tensor_degrees = {}, .stop = &ends_};
  for (const int32_t index : now) {
    JobShape& shape = request.jobs.emplace_back(job(index).shape());
    for (AdapterShape& adapter : shape.adapters) adapter.job = static_cast<int32_t>(request.jobs.size()) - 1;
  }
  if (!ranks_->are_processes()) {
    for (const auto& [degree, parts] : options_.parts) request.tensor_degrees.push_back(degree);
    if (options_.parts.empty()) request.tensor_degrees.push_back(backbone_->shard().count);
  }
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

/// Processes have what a selection pass adds up with them, and would lose it.
bool Trainer::must_stay_divided() {
  return ranks_->are_processes() && std::ranges::any_of(running_jobs(), [](const TrainingJob* job) { return job->is_selecting(); });
}

double Trainer::expected_move_seconds() const {
  double values = 0;
  for (const TrainingJob* job : running_jobs()) {
    const JobFootprint own = job->footprint();
    values += static_cast<double>(parameter_count(backbone_->config(), own.adapters) * (1 + own.moment_count));
  }
  const MoveCosts costs;
  const bool reads_weights = ranks_->are_processes() && summary_.swaps.empty();  // division_seconds_ has that of the last swap
  const double reading_s = reads_weights ? static_cast<double>(facts_.weight_bytes) / costs.load_bandwidth : 0;
  return division_seconds_ + reading_s + 2 * 4 * values / costs.checkpoint_bandwidth;  // gathered, and shared
}

bool Trainer::fits_divided_as(const PlannedDivision& division) const {
  if (tensor_limit_ == 0) return true;
  MemoryFacts facts = facts_;
  if (ranks_->are_processes()) facts.weight_bytes = division.rank_weight_bytes;
  set_division(facts, division.parallel, options_.pipeline_order, options_.interleave, process_layouts(division.layouts));
  return LearnedPeak(backbone_->config(), facts).predict(running_footprints(), {}, options_.policy).total() <= tensor_limit_;
}

std::span<const PipelineLayout> Trainer::process_layouts(std::span<const PipelineLayout> layouts) const {
  return ranks_->are_processes() ? layouts : std::span<const PipelineLayout>{};
}

void Trainer::divide_as(const Parallel& parallel, std::vector<PipelineLayout> layouts) {
  const double begin_s = seconds_since_start();
  if (ranks_ != nullptr && ranks_->are_processes()) {  // threads that could not be made are none
    facts_.weight_bytes = ranks_->divide(layouts);
  } else {
    ranks_.reset();
  }
  const double divided_s = seconds_since_start() - begin_s;
  options_.parallel = parallel;
  options_.layouts = std::move(layouts);
  const std::vector<RankSummary> before = std::exchange(summary_.ranks, {});
  start_ranks();
  for (size_t rank = 0; ranks_->are_processes() && rank < before.size(); ++rank) {  // whose peaks are of the whole run
    summary_.ranks[rank].predicted_peak_bytes = before[rank].predicted_peak_bytes;
    summary_.ranks[rank].whole_weight_bytes = before[rank].whole_weight_bytes;
  }
  division_seconds_ += divided_s;
  set_division(facts_, parallel, options_.pipeline_order, options_.interleave, process_layouts(ranks_->layouts()));
  learned_ = LearnedPeak(backbone_->config(), facts_);
  for (TrainingJob* job : running_jobs()) share_with_ranks(*job);
}

bool Trainer::swap_division(const PlannedDivision& division, const std::string& cause, const std::string& reason) {
  COTUNE_CHECK(ranks_ != nullptr, "one rank cannot be divided anew");
  COTUNE_CHECK(division.parallel.ranks() == options_.ranks, "{} ranks, divided anew among {}", options_.ranks, division.parallel.ranks());
  COTUNE_CHECK(options_.packing.empty(), "replicas that pack as a plan says are divided anew");
  COTUNE_CHECK(!must_stay_divided(), "processes are divided anew while a job selects");
  COTUNE_CHECK(!ranks_->are_processes() || !division.layouts.empty(), "processes are divided anew without layouts");
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
  if (!fits_divided_as(division)) return stays("the jobs that run would not fit into memory");
  for (TrainingJob* job : running_jobs()) {
    if (job->state().step > 0) gather_from_ranks(*job);
  }
  const auto undone = [&](const std::exception& trouble) {
    try {
      within_memory([&] { divide_as(before, layouts); });
    } catch (const UserError& error) {
      throw SystemError(fmt::format(again, swap.before, error.what()));
    } catch (const MemoryLimitExceeded& error) {
      throw SystemError(fmt::format(again, swap.before, error.what()));
    }
    return stays(trouble.what());
  };
  try {
    within_memory([&] { divide_as(division.parallel, division.layouts); });
  } catch (const MemoryLimitExceeded& trouble) {
    return undone(trouble);
  } catch (const UserError& trouble) {  // of the model's files, which processes read, or of unlike processors: it would come again
    options_.plan_division = nullptr;
    return undone(trouble);
  } catch (const SystemError& trouble) {
    return undone(trouble);
  }
  swap.seconds = seconds_since_start() - begin_s;
  summary_.swaps.push_back(swap);
  tell([&](RunObserver& observer) { observer.on_swap(swap); });
  if (tensor_limit_ > 0) start_jobs();  // jobs take other bytes now
  return true;
}

}  // namespace cotune
