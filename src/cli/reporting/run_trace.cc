#include "cli/reporting/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/file.h"
#include "base/steady_seconds.h"
#include "schedule/pipeline/simulate.h"
#include "train/training_job.h"

namespace cotune {
namespace {

std::string name_of(const Action& action, const std::map<int32_t, std::string>& jobs) {
  const auto job = jobs.find(action.job);
  switch (action.kind) {
    case ActionKind::forward: return fmt::format("F{}", action.microbatch);
    case ActionKind::recompute: return fmt::format("R{} layer {}", action.microbatch, action.first_layer);
    case ActionKind::backward: return fmt::format("B{}", action.microbatch);
    default: return fmt::format("step {}", job != jobs.end() ? job->second : std::to_string(action.job));
  }
}

}  // namespace

void RunTrace::on_job_started(const TrainingJob& job) { names_[job.index()] = job.spec().name; }

std::string RunTrace::names_of(const std::set<int32_t>& jobs) const {
  std::string names;
  for (const int32_t job : jobs) names += (names.empty() ? "" : ", ") + names_.at(job);
  return names;
}

/// What these are called.
std::string RunTrace::count_rounds(int64_t rounds, bool is_evaluation) {
  int64_t& count = is_evaluation ? evaluation_count_ : round_count_;
  count += rounds;
  const char* kind = is_evaluation ? "evaluation" : "round";
  return rounds == 1 ? fmt::format("{} {}", kind, count) : fmt::format("{}s {}–{}", kind, count - rounds + 1, count);
}

void RunTrace::add_rounds(const std::string& name, bool is_evaluation, std::span<const StepPlan* const> plans, double start_s, double end_s) {
  std::set<int32_t> jobs;
  int64_t tokens = 0;
  for (const StepPlan* plan : plans) {
    for (const BatchShape& batch : plan->batches) jobs.insert(batch.job);
    for (const Microbatch& microbatch : plan->microbatches) tokens += microbatch.token_count();
  }
  rounds_.slices.push_back({.name = name,
                            .category = is_evaluation ? "evaluation" : "round",
                            .start_s = start_s,
                            .end_s = end_s,
                            .jobs = names_of(jobs),
                            .tokens = tokens});
}

void RunTrace::on_computed(const StepPlan& plan, std::span<const SimulatedSpan> spans, bool is_evaluation) {
  const std::string name = count_rounds(1, is_evaluation);
  if (spans.empty() || is_full()) return;
  const StepPlan* const plans[] = {&plan};
  add_rounds(name, is_evaluation, plans, spans.front().start_s, spans.back().end_s);
  for (const SimulatedSpan& span : spans) {
    const Action& action = plan.actions[span.action];
    TracedSlice slice{
        .name = name_of(action, names_), .category = to_string(action.kind), .start_s = span.start_s, .end_s = span.end_s, .jobs = {}};
    std::set<int32_t> jobs;
    if (action.microbatch >= 0) {
      const Microbatch& microbatch = plan.microbatches[static_cast<size_t>(action.microbatch)];
      slice.tokens = microbatch.token_count();
      for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
    } else {
      jobs.insert(action.job);
    }
    slice.jobs = names_of(jobs);
    actions_.slices.push_back(std::move(slice));
  }
}

void RunTrace::on_ranks(const ReplicaPlans& plans, const RankTimes& times, double begin_s, bool is_evaluation) {
  std::vector<const StepPlan*> all;
  size_t rounds = 0;
  for (const RankPlan& replica : plans.replicas) {
    rounds = std::max(rounds, replica.rounds.size());
    for (const StepPlan& plan : replica.rounds) all.push_back(&plan);
  }
  const std::string name = count_rounds(static_cast<int64_t>(rounds), is_evaluation);
  if (is_full()) return;
  add_rounds(name, is_evaluation, all, begin_s, begin_s + times.seconds);
  ranks_.add(plans, times, begin_s, is_evaluation);
}

void RunTrace::on_saving(const TrainingJob&) { saving_since_s_ = steady_seconds(); }

void RunTrace::on_checkpoint(const TrainingJob& job) {
  if (is_full()) return;
  rounds_.slices.push_back(
      {.name = "checkpoint", .category = "checkpoint", .start_s = saving_since_s_, .end_s = steady_seconds(), .jobs = job.spec().name});
}

void RunTrace::on_run_ended(const RunSummary& summary) {
  const double origin_s = rounds_.slices.empty() ? 0 : rounds_.slices.front().start_s;
  TracedTrack tracks[] = {std::move(rounds_), std::move(actions_)};
  for (TracedTrack& track : tracks) {
    for (TracedSlice& slice : track.slices) {
      slice.start_s -= origin_s;
      slice.end_s -= origin_s;
    }
  }
  try {
    write_file_atomically(file_, render_trace(ranks_.runs(summary.emulated, 1, origin_s), tracks, "cotune, " + summary.device));
  } catch (const SystemError& error) {
    write_to_standard_error(fmt::format("{}; the run is complete without the trace\n", error.what()));
  }
}

}  // namespace cotune
