#include "schedule/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <set>

#include "base/error.h"

namespace cotune {
namespace {

/// What stands between computation `gap - 1` and computation `gap` of a rank, in this order.
struct Gap {
  std::vector<Action> receives;
  std::vector<Action>
      after;  // of the computation before: sends, free, optimizer steps on lowest stages, norms
  std::vector<Action> before;  // of the computation after: optimizer steps
};

/// A message whose receive is to be posted.
struct Sent {
  Action receive;
  int32_t rank = 0;       // that receives
  double ready_s = 0;     // when it is sent
  size_t latest_gap = 0;  // of the receiving rank: what uses it comes after
  size_t gap = 0;         // of the sender
};

class ScheduleWriter {
 public:
  ScheduleWriter(const PipelineWork& work, const ComputeOrder& order, const PipelineCluster& cluster)
      : work_(work), order_(order), cluster_(cluster), graph_(work, cluster), gaps_(order.size()) {
    check_content();
    const double longest_s = graph_.longest_s();
    const auto times = graph_.times(order, longest_s > 0 ? 1e-6 * longest_s : 1);
    COTUNE_CHECK(times.has_value(), "the order of computations holds a cycle of waits");
    times_ = *times;
    index_of_.resize(static_cast<size_t>(graph_.size()));
    for (size_t rank = 0; rank < order.size(); ++rank) {
      gaps_[rank].resize(order[rank].size() + 1);
      for (size_t i = 0; i < order[rank].size(); ++i) index_of_[static_cast<size_t>(graph_.node(order[rank][i]))] = i;
    }
    for (const PipelineMicrobatch& microbatch : work.microbatches) {
      steps_.insert(microbatch.jobs.begin(), microbatch.jobs.end());
    }
    for (size_t m = 0; m < work.microbatches.size(); ++m) {
      for (const JobStep& step : work.microbatches[m].jobs) last_of_[step] = static_cast<int32_t>(m);
    }
  }

  PipelineSchedule run() {
    for (size_t rank = 0; rank < order_.size(); ++rank) {
      for (size_t i = 0; i < order_[rank].size(); ++i) {
        const Compute& compute = order_[rank][i];
        if (compute.backward) {
          after_backward(static_cast<int32_t>(rank), i, compute);
        } else {
          before_forward(rank, i, compute);
          after_forward(static_cast<int32_t>(rank), i, compute);
        }
      }
    }
    spread_norms();
    post_receives();
    return collect();
  }

 private:
  void check_content() const {
    COTUNE_CHECK(order_.size() == static_cast<size_t>(work_.rank_count), "an order of {} ranks for {}",
                 order_.size(), work_.rank_count);
    std::vector<int32_t> seen(static_cast<size_t>(graph_.size()), 0);
    size_t count = 0;
    for (size_t rank = 0; rank < order_.size(); ++rank) {
      for (const Compute& compute : order_[rank]) {
        const int32_t node = graph_.node(compute);
        COTUNE_CHECK(compute.stage >= 0 && compute.stage < work_.stage_count() && node >= 0 &&
                         node < graph_.size() && graph_.exists(node) &&
                         rank_of(compute.stage) == static_cast<int32_t>(rank),
                     "rank {}: there is nothing to compute for microbatch {} on stage {}", rank,
                     compute.microbatch, compute.stage);
        COTUNE_CHECK(seen[static_cast<size_t>(node)]++ == 0, "rank {}: microbatch {} twice on stage {}", rank,
                     compute.microbatch, compute.stage);
        ++count;
      }
    }
    size_t expected = 0;
    for (int32_t node = 0; node < graph_.size(); ++node) expected += graph_.exists(node) ? 1 : 0;
    COTUNE_CHECK(count == expected, "{} of {} computations are in the order", count, expected);
  }

  int32_t rank_of(int32_t stage) const { return work_.stage_rank[static_cast<size_t>(stage)]; }
  const PipelineMicrobatch& microbatch(const Compute& compute) const {
    return work_.microbatches[static_cast<size_t>(compute.microbatch)];
  }
  int32_t lowest_of(int32_t job) {
    const auto [found, added] = lowest_of_job_.try_emplace(job, 0);
    if (added) found->second = job_of(work_, job).lowest_stage;
    return found->second;
  }

  Action step_action(const JobStep& step, int32_t stage) const {
    return {.kind = ActionKind::optimizer_step, .job = step.job, .job_step = step.step, .stage = stage};
  }

  /// Sends from `rank` in the gap after `i`, and remembers the receive.
  void send(int32_t rank, size_t gap, Action action, double ready_s, size_t latest_gap) {
    const int32_t to = rank_of(action.stage);
    action.peer = to;
    gaps_[static_cast<size_t>(rank)][gap].after.push_back(action);
    action.kind = action.kind == ActionKind::send_activation ? ActionKind::receive_activation
                                                             : ActionKind::receive_error;
    action.peer = rank;
    sent_[{rank, to, action.kind}].push_back({action, to, ready_s, latest_gap, gap});
  }

  void after_forward(int32_t rank, size_t i, const Compute& compute) {
    const int32_t next = compute.stage + 1;
    if (next < work_.stage_count() && rank_of(next) != rank) {
      send(rank, i + 1,
           {.kind = ActionKind::send_activation,
            .hybrid_task = microbatch(compute).hybrid_task,
            .microbatch = compute.microbatch,
            .stage = next,
            .bytes = microbatch(compute).message_bytes.activation},
           times_[static_cast<size_t>(rank)][i].end_s,
           index_of_[static_cast<size_t>(graph_.node({compute.microbatch, next, false}))]);
    }
    if (graph_.lowest_stage(compute.microbatch) > compute.stage) add_free(rank, i, compute);
  }

  void after_backward(int32_t rank, size_t i, const Compute& compute) {
    const int32_t next = compute.stage - 1;
    if (compute.stage > graph_.lowest_stage(compute.microbatch) && rank_of(next) != rank) {
      send(rank, i + 1,
           {.kind = ActionKind::send_error,
            .hybrid_task = microbatch(compute).hybrid_task,
            .microbatch = compute.microbatch,
            .stage = next,
            .bytes = microbatch(compute).message_bytes.error},
           times_[static_cast<size_t>(rank)][i].end_s,
           index_of_[static_cast<size_t>(graph_.node({compute.microbatch, next, true}))]);
    }
    add_free(rank, i, compute);
    for (const JobStep& step : microbatch(compute).jobs) {
      if (lowest_of(step.job) != compute.stage || last_of_.at(step) != compute.microbatch) continue;
      gaps_[static_cast<size_t>(rank)][i + 1].after.push_back(step_action(step, compute.stage));
      if (steps_.contains({step.job, step.step + 1})) continue;
      raise(step, compute.stage, i + 1,
            times_[static_cast<size_t>(rank)][i].end_s + job_of(work_, step.job).optimizer_s);
    }
  }

  void add_free(int32_t rank, size_t i, const Compute& compute) {
    gaps_[static_cast<size_t>(rank)][i + 1].after.push_back({.kind = ActionKind::free,
                                                             .hybrid_task = microbatch(compute).hybrid_task,
                                                             .microbatch = compute.microbatch,
                                                             .stage = compute.stage});
  }

  void before_forward(size_t rank, size_t i, const Compute& compute) {
    for (const JobStep& step : microbatch(compute).jobs) {
      const JobStep last{step.job, step.step - 1};
      if (!steps_.contains(last) || lowest_of(step.job) >= compute.stage) continue;
      if (stepped_.emplace(last, compute.stage).second) {
        gaps_[rank][i].before.push_back(step_action(last, compute.stage));
      }
    }
  }

  /// The norm of a job's last step in the work, on its way up to `stage`.
  struct Norm {
    double arrives_s = 0;
    int64_t number = 0;  // of those raised: what arrives together is taken in this order
    JobStep step;
    int32_t stage = 0;
    bool operator>(const Norm& other) const {
      return std::pair(arrives_s, number) > std::pair(other.arrives_s, other.number);
    }
  };

  /// Sends the norm of a step, known on `stage` at `known_s` in `gap` of its rank, to the stage above.
  void raise(const JobStep& step, int32_t stage, size_t gap, double known_s) {
    const int32_t next = stage + 1;
    if (next == work_.stage_count()) return;
    const int32_t from = rank_of(stage);
    const int32_t to = rank_of(next);
    double arrives_s = known_s;
    if (from != to) {
      arrives_s += cluster_.between(from, to).seconds(norm_message_bytes);
      send(from, gap,
           {.kind = ActionKind::send_activation,
            .job = step.job,
            .job_step = step.step,
            .stage = next,
            .bytes = norm_message_bytes},
           std::min(known_s, next_start_s(from, gap)), gap_at(to, arrives_s));
    }
    norms_.push({arrives_s, raised_++, step, next});
  }

  /// When the computation after a gap starts. The optimizer step in the gap is not in the times: the send
  /// before that computation is not to wait for a receive that comes of it.
  double next_start_s(int32_t rank, size_t gap) const {
    const std::vector<ComputeSpan>& spans = times_[static_cast<size_t>(rank)];
    return gap < spans.size() ? spans[gap].start_s : std::numeric_limits<double>::infinity();
  }

  /// The gap before the first computation of a rank that starts at a moment or later.
  size_t gap_at(int32_t rank, double moment_s) const {
    const std::vector<ComputeSpan>& spans = times_[static_cast<size_t>(rank)];
    const auto next = std::partition_point(spans.begin(), spans.end(),
                                           [&](const ComputeSpan& span) { return span.start_s < moment_s; });
    return static_cast<size_t>(next - spans.begin());
  }

  /// In the order of their moments: then no two norms wait for each other in one gap.
  void spread_norms() {
    while (!norms_.empty()) {
      const Norm norm = norms_.top();
      norms_.pop();
      const int32_t rank = rank_of(norm.stage);
      const size_t gap = gap_at(rank, norm.arrives_s);
      gaps_[static_cast<size_t>(rank)][gap].after.push_back(step_action(norm.step, norm.stage));
      const double free_s = gap == 0 ? 0.0 : times_[static_cast<size_t>(rank)][gap - 1].end_s;
      raise(norm.step, norm.stage, gap,
            std::max(norm.arrives_s, free_s) + job_of(work_, norm.step.job).optimizer_s);
    }
  }

  void post_receives() {
    for (auto& [channel, messages] : sent_) {
      const int32_t to = std::get<1>(channel);
      std::ranges::stable_sort(messages, {}, &Sent::gap);  // norms are sent after the fact
      const std::vector<ComputeSpan>& spans = times_[static_cast<size_t>(to)];
      std::vector<size_t> gaps;
      for (const Sent& message : messages) {
        const auto running = std::partition_point(spans.begin(), spans.end(), [&](const ComputeSpan& span) {
          return span.end_s <= message.ready_s;
        });
        gaps.push_back(std::min(message.latest_gap, static_cast<size_t>(running - spans.begin())));
      }
      for (size_t i = gaps.size(); i-- > 1;) gaps[i - 1] = std::min(gaps[i - 1], gaps[i]);
      for (size_t i = 0; i < gaps.size(); ++i) {
        gaps_[static_cast<size_t>(to)][gaps[i]].receives.push_back(messages[i].receive);
      }
    }
  }

  PipelineSchedule collect() const {
    PipelineSchedule schedule;
    for (size_t rank = 0; rank < gaps_.size(); ++rank) {
      std::vector<Action>& actions = schedule.ranks.emplace_back();
      for (size_t i = 0; i < gaps_[rank].size(); ++i) {
        const Gap& gap = gaps_[rank][i];
        actions.insert(actions.end(), gap.receives.begin(), gap.receives.end());
        actions.insert(actions.end(), gap.after.begin(), gap.after.end());
        actions.insert(actions.end(), gap.before.begin(), gap.before.end());
        if (i == order_[rank].size()) break;
        const Compute& compute = order_[rank][i];
        actions.push_back({.kind = compute.backward ? ActionKind::backward : ActionKind::forward,
                           .hybrid_task = microbatch(compute).hybrid_task,
                           .microbatch = compute.microbatch,
                           .stage = compute.stage});
      }
    }
    return schedule;
  }

  const PipelineWork& work_;
  const ComputeOrder& order_;
  const PipelineCluster& cluster_;
  const ComputeGraph graph_;
  ComputeTimes times_;
  std::vector<std::vector<Gap>> gaps_;             // by rank
  std::vector<size_t> index_of_;                   // by node: place in its rank's order
  std::set<JobStep> steps_;                        // in the work
  std::map<JobStep, int32_t> last_of_;             // its last microbatch
  std::set<std::pair<JobStep, int32_t>> stepped_;  // and the stage
  std::map<int32_t, int32_t> lowest_of_job_;
  std::priority_queue<Norm, std::vector<Norm>, std::greater<>> norms_;
  int64_t raised_ = 0;
  std::map<std::tuple<int32_t, int32_t, ActionKind>, std::vector<Sent>>
      sent_;  // from, to, kind of the receive
};

}  // namespace

PipelineSchedule make_schedule(const PipelineWork& work, const ComputeOrder& order,
                               const PipelineCluster& cluster) {
  check(work);
  return ScheduleWriter(work, order, cluster).run();
}

ComputeOrder compute_order(const PipelineSchedule& schedule) {
  ComputeOrder order;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<Compute>& rank = order.emplace_back();
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward || action.kind == ActionKind::backward) {
        rank.push_back({action.microbatch, action.stage, action.kind == ActionKind::backward});
      }
    }
  }
  return order;
}

}  // namespace cotune
