#include "schedule/pipeline/action_seconds.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace cotune {
namespace {

/// What computes and travels for one of the schedule's microbatches in one direction on one stage, or for one job's step there.
using Subject = std::tuple<bool, int32_t, int32_t, int32_t, int64_t>;

/// Messages name the stage that uses them: a message and what waits for it have one subject.
Subject subject_of(const Action& action, int32_t scheduled_microbatch) {
  return {goes_down(action.kind), scheduled_microbatch, action.stage, action.job, action.job_step};
}

/// The schedule's action of a span or a send.
Subject subject_in(const PipelineSchedule& schedule, size_t rank, size_t index) {
  const Action& action = schedule.ranks[rank][index];
  return subject_of(action, action.microbatch);
}

/// The schedule's microbatch that each of the rounds' is a part of, where it has clocks.
std::map<int32_t, int32_t> clock_of_microbatches(const RankPlan& plan) {
  std::map<int32_t, int32_t> clock_of;
  for (size_t clock = 0; clock < plan.clocks.size(); ++clock) {
    for (const int32_t microbatch : plan.clocks[clock].microbatches) clock_of[microbatch] = static_cast<int32_t>(clock);
  }
  return clock_of;
}

}  // namespace

std::vector<double> action_seconds(const RankPlan& plan, size_t rank, double exchange_s) {
  std::map<Subject, double> computing, under_way;
  const auto keep_longest = [](double& longest, double seconds) { longest = std::max(longest, seconds); };
  if (!plan.predicted.ranks.empty()) {
    for (const SimulatedSpan& span : plan.predicted.ranks[rank].spans) {
      keep_longest(computing[subject_in(plan.schedule, rank, span.action)], span.end_s - span.start_s);
    }
  }
  for (const SimulatedTransfer& transfer : plan.predicted.transfers) {
    const auto from = static_cast<size_t>(transfer.from), to = static_cast<size_t>(transfer.to);
    if (from != rank && to != rank) continue;
    keep_longest(under_way[subject_in(plan.schedule, from, transfer.action)], transfer.end_s - transfer.start_s);
  }
  const auto found_in = [](const std::map<Subject, double>& seconds, const Subject& subject) {
    const auto found = seconds.find(subject);
    return found == seconds.end() ? 0.0 : found->second;
  };
  const std::map<int32_t, int32_t> clock_of = clock_of_microbatches(plan);
  const auto seconds_of = [&](const Action& action) {
    const auto clock = clock_of.find(action.microbatch);
    const Subject subject = subject_of(action, clock == clock_of.end() ? action.microbatch : clock->second);
    switch (action.kind) {
      case ActionKind::forward:
      case ActionKind::recompute:
      case ActionKind::backward: return found_in(computing, subject) + found_in(under_way, subject);
      case ActionKind::optimizer_step: return found_in(computing, subject) + found_in(under_way, subject) + exchange_s;
      case ActionKind::reduce_gradients: return exchange_s;
      case ActionKind::send_activation:
      case ActionKind::send_error: return found_in(under_way, subject);
      default: return 0.0;
    }
  };
  std::vector<double> seconds;
  for (const Action& action : plan.ranks[rank]) seconds.push_back(seconds_of(action));
  return seconds;
}

}  // namespace cotune
