#include "cluster/replanned_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/never.h"
#include "cluster/instance.h"
#include "cluster/simulate_trace.h"
#include "plan/cost/replica_costs.h"
#include "plan/cost/stage_memory.h"
#include "plan/deployment/step_dispatch.h"
#include "plan/shapes/typical_step.h"
#include "schedule/adapter_shape.h"

namespace cotune {
namespace {

/// What the planner is asked with: for the jobs of a mix.
struct MixProblem {
  std::vector<Configuration> configurations;  ///< the same shapes for every mix, in the same order
  std::vector<BucketCosts> costs;
  std::vector<int64_t> sequences;
  bool fits = false;  ///< some configuration holds the longest row
  MoveCosts moving;
  std::optional<Deployment> best;  ///< as soon as it was asked for
};

class MixProblems {
 public:
  MixProblems(const Trace& trace, const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
              const ReplanSettings& settings)
      : trace_(trace), model_(model), cluster_(cluster), group_(group), settings_(settings) {}

  const MixProblem& of(const JobMix& mix) {
    const auto [found, is_new] = problems_.try_emplace(mix);
    if (is_new) found->second = make(mix);
    return found->second;
  }

  /// With its best deployment. The mix must fit.
  const MixProblem& planned(const JobMix& mix) {
    of(mix);
    MixProblem& problem = problems_.at(mix);
    if (!problem.best) problem.best = plan_deployment(problem.costs, problem.sequences, device_count());
    return problem;
  }

  int64_t device_count() const { return group_.count * group_.devices; }

 private:
  std::vector<JobShape> shapes_of(const JobMix& mix) const {
    std::vector<JobShape> jobs;
    for (const int32_t index : mix.kinds()) {
      jobs.push_back(shape_of(trace_.kinds[static_cast<size_t>(index)], static_cast<int32_t>(jobs.size()), model_));
    }
    return jobs;
  }

  MixProblem make(const JobMix& mix) const {
    const std::vector<JobShape> jobs = shapes_of(mix);
    MixProblem problem{.moving = settings_.costs};
    const std::vector<StepRow> rows = typical_step(jobs);
    int64_t longest = 0;
    for (const StepRow& row : rows) longest = std::max(longest, row.tokens);
    ReplicaLimits limits;
    limits.most_chunk_tokens = std::max(limits.most_chunk_tokens, whole_chunk_steps(longest));
    for (ReplicaCandidate& each : replica_candidates(model_, jobs, cluster_, group_, settings_.dtype, limits)) {
      problem.configurations.push_back(std::move(each.configuration));
    }
    problem.fits = std::any_of(problem.configurations.begin(), problem.configurations.end(),
                               [&](const Configuration& each) { return each.reach() >= longest; });
    if (!problem.fits) return problem;
    const StepBuckets buckets = bucket_rows(rows, settings_.length_buckets, problem.configurations);
    problem.costs = bucket_costs(problem.configurations, buckets.tokens, buckets.mean);
    problem.sequences = buckets.sequences;
    const StageMachine machine{.dtype = settings_.dtype};
    problem.moving.weight_bytes = frozen_bytes(model_, even_stages(model_, 1, 1).front(), machine.element_size());
    problem.moving.adapter_bytes = problem.moving.optimizer_bytes = 0;
    for (const JobShape& job : jobs) {
      for (const AdapterShape& each : job.adapters) {
        const int64_t bytes = 4 * parameter_count(model_, each);
        problem.moving.adapter_bytes += bytes;
        problem.moving.optimizer_bytes += job.moment_count * bytes;
      }
    }
    return problem;
  }

  const Trace& trace_;
  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const ReplanSettings& settings_;
  std::unordered_map<JobMix, MixProblem, JobMixHash> problems_;
};

std::string text_of(std::span<const Configuration> configurations, std::span<const int64_t> replicas) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0) parts.push_back(fmt::format("{}×{}", configurations[i].name(), replicas[i]));
  }
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

class ReplanSimulator {
 public:
  ReplanSimulator(const Trace& trace, std::span<const double> dedicated_round_s, MoveRule rule, MixProblems& problems)
      : trace_(trace), problems_(problems) {
    result_.rule = rule;
    result_.jobs.resize(trace.jobs.size());
    for (size_t j = 0; j < trace.jobs.size(); ++j) {
      const TraceJob& job = trace.jobs[j];
      const double alone_s = dedicated_round_s[static_cast<size_t>(job.kind)];
      if (!problems.of(JobMix({job.kind})).fits) continue;  // it is refused
      if (alone_s == never) {
        throw_user_error(
            "--instance: a job of kind {} does not fit on one alone, and durations of the trace are counted by steps there; give a larger one",
            trace.kinds[static_cast<size_t>(job.kind)].name());
      }
      result_.jobs[j].steps = trained_steps(job, planned_steps(job, alone_s));
    }
  }

  ReplannedTrace run() {
    size_t next = 0;
    while (next < trace_.jobs.size() || !live_.empty()) {
      const double arrival_s = next < trace_.jobs.size() ? trace_.jobs[next].arrival_s : never;
      const double exit_s = next_exit_s();
      advance(std::min(arrival_s, exit_s));
      bool changed = exit_s <= arrival_s && finish_jobs();
      for (; next < trace_.jobs.size() && trace_.jobs[next].arrival_s <= now_; ++next) queue_.push_back(next);
      changed = admit() || changed;
      if (changed) replan_now();
    }
    result_.end_s = now_;
    return std::move(result_);
  }

 private:
  struct LiveJob {
    size_t job = 0;
    double left = 0;  ///< steps
  };

  double least_left() const {
    double least = never;
    for (const LiveJob& each : live_) least = std::min(least, each.left);
    return least;
  }

  double next_exit_s() const { return live_.empty() ? never : std::max(now_, resume_s_) + least_left() * step_s_; }

  void advance(double until_s) {
    const double trained_s = until_s - std::max(now_, std::min(resume_s_, until_s));
    if (trained_s > 0 && !live_.empty()) {
      const double steps = trained_s / step_s_;
      for (LiveJob& each : live_) {
        each.left -= steps;
        result_.tokens += steps * static_cast<double>(trace_.kinds[static_cast<size_t>(trace_.jobs[each.job].kind)].step_tokens());
      }
    }
    now_ = until_s;
  }

  /// The ones with the least left are through by now, whatever rounding says.
  bool finish_jobs() {
    const double through = std::max(0.0, least_left()) + 1e-9;
    const auto gone = std::stable_partition(live_.begin(), live_.end(), [&](const LiveJob& each) { return each.left > through; });
    for (auto each = gone; each != live_.end(); ++each) {
      result_.jobs[each->job].finished_s = now_;
      mix_.remove(trace_.jobs[each->job].kind);
    }
    const bool any = gone != live_.end();
    live_.erase(gone, live_.end());
    return any;
  }

  /// First come, first served: a job that does not fit beside the live ones keeps those behind it waiting.
  bool admit() {
    bool any = false;
    while (!queue_.empty()) {
      const size_t job = queue_.front();
      JobMix joint = mix_;
      joint.add(trace_.jobs[job].kind);
      const bool is_refused = result_.jobs[job].steps == 0;
      if (!is_refused && !problems_.of(joint).fits) return any;
      queue_.pop_front();
      if (is_refused) continue;
      mix_ = std::move(joint);
      live_.push_back({job, static_cast<double>(result_.jobs[job].steps)});
      result_.jobs[job].started_s = now_;
      any = true;
    }
    return any;
  }

  void replan_now() {
    if (mix_.empty()) return;  // the replicas stay up
    const MixProblem& problem = problems_.planned(mix_);
    running_.resize(problem.configurations.size(), 0);
    const double steps = result_.rule == MoveRule::always ? 1e18 : least_left();
    const double margin = result_.rule == MoveRule::when_forced ? 1e18 : 0;
    const Replan plan =
        replan(problem.configurations, problem.costs, problem.sequences, problems_.device_count(), *problem.best, running_, steps,
               problem.moving, margin);
    COTUNE_CHECK(plan.decision != ReplanDecision::stop, "{}", plan.reason);
    ReplanEvent& event = result_.events.emplace_back(ReplanEvent{.time_s = now_,
                                                                 .jobs = mix_.job_count(),
                                                                 .waiting = static_cast<int64_t>(queue_.size()),
                                                                 .decision = plan.decision,
                                                                 .replicas = text_of(problem.configurations, plan.replicas),
                                                                 .kept_s = plan.kept_seconds,
                                                                 .best_s = plan.best_seconds,
                                                                 .gain_s = std::max(0.0, plan.kept_seconds - plan.best_seconds) * least_left(),
                                                                 .move_s = plan.move.seconds,
                                                                 .weight_bytes = plan.move.weight_bytes});
    step_s_ = event.moves() ? plan.best_seconds : plan.kept_seconds;
    running_ = plan.replicas;
    if (!event.moves()) return;
    resume_s_ = std::max(now_, resume_s_) + plan.move.seconds;
    result_.moving_s += plan.move.seconds;
    result_.moves += 1;
    result_.forced += plan.decision == ReplanDecision::must_move ? 1 : 0;
    result_.weight_bytes += plan.move.weight_bytes;
  }

  const Trace& trace_;
  MixProblems& problems_;
  double now_ = 0, resume_s_ = 0, step_s_ = 0;
  std::vector<LiveJob> live_;
  std::deque<size_t> queue_;
  JobMix mix_;
  std::vector<int64_t> running_;
  ReplannedTrace result_;
};

}  // namespace

int64_t ReplannedTrace::finished() const {
  return std::count_if(jobs.begin(), jobs.end(), [](const ReplannedJob& each) { return each.finished_s < never; });
}

double ReplannedTrace::mean_completion_s(const Trace& trace) const {
  double sum = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (jobs[j].finished_s < never) sum += jobs[j].finished_s - trace.jobs[j].arrival_s;
  }
  return finished() > 0 ? sum / static_cast<double>(finished()) : 0;
}

ReplannedTrace replan_trace(const Trace& trace, const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                            std::span<const double> dedicated_round_s, const ReplanSettings& settings) {
  const MoveRule rules[] = {settings.rule};
  return std::move(replan_trace(trace, model, cluster, group, dedicated_round_s, settings, rules).front());
}

std::vector<ReplannedTrace> replan_trace(const Trace& trace, const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                                         std::span<const double> dedicated_round_s, const ReplanSettings& settings,
                                         std::span<const MoveRule> rules) {
  MixProblems problems(trace, model, cluster, group, settings);
  std::vector<ReplannedTrace> results;
  for (const MoveRule rule : rules) results.push_back(ReplanSimulator(trace, dedicated_round_s, rule, problems).run());
  return results;
}

}  // namespace cotune
