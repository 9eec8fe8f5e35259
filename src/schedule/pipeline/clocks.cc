#include "schedule/pipeline/clocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "schedule/pipeline/grouping.h"

namespace cotune {
namespace {

const PipelineMicrobatch& microbatch_at(const PipelineWork& work, int32_t index) {
  return work.microbatches[static_cast<size_t>(index)];
}

bool share_a_job(const PipelineMicrobatch& a, const PipelineMicrobatch& b) {
  return std::ranges::any_of(a.jobs, [&](const JobStep& step) {
    return std::ranges::any_of(b.jobs, [&](const JobStep& other) { return other.job == step.job; });
  });
}

/// Of one direction: by the places of the clock's microbatches.
struct ClockGraphs {
  std::vector<SubgraphDag> forward, backward;
};

ClockGraphs graphs_of(const PipelineClock& clock, size_t stage, const MicrobatchGraphs& graphs) {
  ClockGraphs all;
  for (const int32_t microbatch : clock.microbatches) {
    StageGraphs own = graphs(static_cast<size_t>(microbatch), stage);
    all.forward.push_back(std::move(own.forward));
    all.backward.push_back(std::move(own.backward));
  }
  return all;
}

/// The microbatch that joins those of a clock, of those that are left; -1: none.
int32_t next_of_clock(const PipelineWork& work, const std::vector<int32_t>& members, const std::vector<bool>& taken) {
  int32_t fallback = -1;
  std::vector<const PipelineMicrobatch*> passed;  // that would come after what stands behind them
  const int64_t round = microbatch_at(work, members.front()).round;
  for (auto m = static_cast<size_t>(members.back()) + 1; m < work.microbatches.size(); ++m) {
    const PipelineMicrobatch& candidate = work.microbatches[m];
    if (taken[m]) continue;
    const bool is_free = candidate.round == round && candidate.chain < 0 &&
                         std::ranges::none_of(passed, [&](const auto* each) { return share_a_job(*each, candidate); });
    passed.push_back(&candidate);
    if (!is_free) continue;
    if (fallback < 0) fallback = static_cast<int32_t>(m);
    const bool shares = std::ranges::any_of(members, [&](int32_t each) { return share_a_job(microbatch_at(work, each), candidate); });
    if (!shares) return static_cast<int32_t>(m);
  }
  return fallback;
}

}  // namespace

std::vector<PipelineClock> clocks_of(const PipelineWork& work, int32_t most) {
  std::vector<PipelineClock> clocks;
  std::vector<bool> taken(work.microbatches.size(), false);
  for (size_t m = 0; m < work.microbatches.size(); ++m) {
    if (taken[m]) continue;
    taken[m] = true;
    std::vector<int32_t>& members = clocks.emplace_back().microbatches;
    members.push_back(static_cast<int32_t>(m));
    while (work.microbatches[m].chain < 0 && static_cast<int32_t>(members.size()) < most) {
      const int32_t next = next_of_clock(work, members, taken);
      if (next < 0) break;
      members.push_back(next);
      taken[static_cast<size_t>(next)] = true;
    }
  }
  return clocks;
}

namespace {

/// A hybrid task in one round.
struct RoundTask {
  std::vector<int32_t> microbatches;  ///< ascending
  double seconds = 0;                 ///< of all, on the first stage
  double latency_s() const { return seconds / static_cast<double>(microbatches.size()); }
};

/// Adds the clocks of a round's tasks, by bucket.
void add_clocks(const std::vector<RoundTask>& tasks, double share, std::vector<PipelineClock>& clocks) {
  std::vector<double> latencies;
  for (const RoundTask& task : tasks) latencies.push_back(task.latency_s());
  const auto buckets = static_cast<int64_t>(std::ceil(share * static_cast<double>(tasks.size()) - 1e-9));
  for (const std::vector<int32_t>& bucket : balanced_pairs(latencies, buckets)) {
    size_t most = 0;
    for (const int32_t task : bucket) most = std::max(most, tasks[static_cast<size_t>(task)].microbatches.size());
    for (size_t k = 0; k < most; ++k) {
      std::vector<int32_t>& members = clocks.emplace_back().microbatches;
      for (const int32_t task : bucket) {
        const std::vector<int32_t>& own = tasks[static_cast<size_t>(task)].microbatches;
        if (k < own.size()) members.push_back(own[k]);
      }
      std::ranges::sort(members);
    }
  }
}

/// By round: add_round adds the clocks of its tasks, by the first microbatch of each. Microbatches of tasks with a chain are alone.
template <typename AddRound>
std::vector<PipelineClock> clocks_by_round(const PipelineWork& work, AddRound add_round) {
  std::map<int64_t, std::vector<int32_t>> rounds;
  for (int32_t m = 0; m < static_cast<int32_t>(work.microbatches.size()); ++m) rounds[microbatch_at(work, m).round].push_back(m);
  std::vector<PipelineClock> clocks;
  for (const auto& [round, microbatches] : rounds) {
    std::set<int32_t> alone;  // tasks
    for (const int32_t m : microbatches) {
      if (microbatch_at(work, m).chain >= 0) alone.insert(microbatch_at(work, m).hybrid_task);
    }
    std::map<int32_t, RoundTask> tasks;
    for (const int32_t m : microbatches) {
      const PipelineMicrobatch& each = microbatch_at(work, m);
      if (alone.contains(each.hybrid_task)) {
        clocks.emplace_back().microbatches = {m};
        continue;
      }
      RoundTask& task = tasks[each.hybrid_task];
      task.microbatches.push_back(m);
      task.seconds += each.cost.front().forward_s + each.cost.front().backward_s;
    }
    std::vector<RoundTask> in_order;
    for (auto& [id, task] : tasks) in_order.push_back(std::move(task));
    add_round(in_order, clocks);
  }
  std::ranges::sort(clocks, {}, [](const PipelineClock& clock) { return clock.microbatches.front(); });
  return clocks;
}

}  // namespace

std::vector<PipelineClock> bucketed_clocks(const PipelineWork& work, double share) {
  return clocks_by_round(work,
                         [share](const std::vector<RoundTask>& tasks, std::vector<PipelineClock>& clocks) { add_clocks(tasks, share, clocks); });
}

std::vector<PipelineClock> planned_clocks(const PipelineWork& work, const std::vector<std::vector<int32_t>>& jobs_of_buckets) {
  std::map<int32_t, size_t> bucket_of;  // by job
  for (size_t bucket = 0; bucket < jobs_of_buckets.size(); ++bucket) {
    for (const int32_t job : jobs_of_buckets[bucket]) bucket_of[job] = bucket;
  }
  return clocks_by_round(work, [&](const std::vector<RoundTask>& tasks, std::vector<PipelineClock>& clocks) {
    std::map<size_t, std::vector<RoundTask>> together;
    for (const RoundTask& task : tasks) {
      const auto bucket = bucket_of.find(microbatch_at(work, task.microbatches.front()).jobs.front().job);
      if (bucket == bucket_of.end()) {
        add_clocks({task}, 1, clocks);
      } else {
        together[bucket->second].push_back(task);
      }
    }
    for (const auto& [bucket, own] : together) add_clocks(own, 0.5, clocks);
  });
}

std::vector<LaunchEdge> launch_edges(const PipelineWork& work, const PipelineClock& clock, std::span<const SubgraphDag> backward) {
  std::vector<LaunchEdge> edges;
  for (int32_t later = 1; later < static_cast<int32_t>(backward.size()); ++later) {
    for (int32_t earlier = 0; earlier < later; ++earlier) {
      const SubgraphDag& first = backward[static_cast<size_t>(earlier)];
      const SubgraphDag& second = backward[static_cast<size_t>(later)];
      if (first.empty() || second.empty()) continue;
      const auto member = [&](int32_t place) -> const PipelineMicrobatch& {
        return microbatch_at(work, clock.microbatches[static_cast<size_t>(place)]);
      };
      if (!share_a_job(member(earlier), member(later))) continue;
      edges.push_back({{earlier, 0}, {later, 0}});
      std::map<int32_t, int32_t> gradient_at;
      for (size_t i = 0; i < first.size(); ++i) {
        if (first[i].is_adapter) gradient_at[first[i].site] = static_cast<int32_t>(i);
      }
      for (size_t i = 0; i < second.size(); ++i) {
        const auto found = second[i].is_adapter ? gradient_at.find(second[i].site) : gradient_at.end();
        if (found != gradient_at.end()) edges.push_back({{earlier, found->second}, {later, static_cast<int32_t>(i)}});
      }
    }
  }
  return edges;
}

namespace {

/// Jobs that share a clock, directly or through others, are one hybrid task: orders of tasks keep those of a job's microbatches.
void number_tasks(PipelineWork& merged) {
  std::map<int32_t, int32_t> task_of_job;
  for (const PipelineMicrobatch& clock : merged.microbatches) {
    int32_t task = clock.hybrid_task;
    std::vector<int32_t> joined;
    for (const JobStep& step : clock.jobs) {
      const auto known = task_of_job.try_emplace(step.job, clock.hybrid_task).first;
      joined.push_back(known->second);
      task = std::min(task, known->second);
    }
    for (auto& [job, own] : task_of_job) {
      if (std::ranges::find(joined, own) != joined.end()) own = task;
    }
  }
  for (PipelineMicrobatch& clock : merged.microbatches) clock.hybrid_task = task_of_job.at(clock.jobs.front().job);
}

}  // namespace

PipelineWork launch_clocks(const PipelineWork& work, std::vector<PipelineClock>& clocks, const MicrobatchGraphs& graphs,
                           const StreamRates& rates) {
  PipelineWork merged = work;
  merged.microbatches.clear();
  for (PipelineClock& clock : clocks) {
    PipelineMicrobatch& whole = merged.microbatches.emplace_back(microbatch_at(work, clock.microbatches.front()));
    for (size_t place = 1; place < clock.microbatches.size(); ++place) {
      const PipelineMicrobatch& other = microbatch_at(work, clock.microbatches[place]);
      whole.jobs.insert(whole.jobs.end(), other.jobs.begin(), other.jobs.end());
      whole.message_bytes += other.message_bytes;
      for (size_t stage = 0; stage < whole.cost.size(); ++stage) whole.cost[stage].kept_bytes += other.cost[stage].kept_bytes;
    }
    std::ranges::sort(whole.jobs);
    whole.jobs.erase(std::unique(whole.jobs.begin(), whole.jobs.end()), whole.jobs.end());
    clock.stages.clear();
    for (size_t stage = 0; stage < whole.cost.size(); ++stage) {
      const ClockGraphs own = graphs_of(clock, stage, graphs);
      ChosenLaunch forward = choose_launch_order(own.forward, rates);
      ChosenLaunch backward = choose_launch_order(own.backward, rates, launch_edges(work, clock, own.backward));
      whole.cost[stage].forward_s = forward.overlap.makespan_s;
      whole.cost[stage].backward_s = backward.overlap.makespan_s;
      clock.stages.push_back({std::move(forward.order), std::move(backward.order)});
    }
  }
  number_tasks(merged);
  return merged;
}

std::vector<std::vector<Action>> actions_of_microbatches(const PipelineSchedule& schedule, const PipelineWork& work,
                                                         std::span<const PipelineClock> clocks) {
  std::vector<std::vector<Action>> ranks;
  for (const std::vector<Action>& actions : schedule.ranks) {
    std::vector<Action>& own = ranks.emplace_back();
    for (const Action& action : actions) {
      if (action.microbatch < 0) {
        own.push_back(action);
        continue;
      }
      const bool computes = action.kind == ActionKind::forward || action.kind == ActionKind::backward;
      for (const int32_t member : clocks[static_cast<size_t>(action.microbatch)].microbatches) {
        const PipelineMicrobatch& microbatch = microbatch_at(work, member);
        if (goes_down(action.kind) && lowest_stage(work, microbatch) > action.stage) continue;
        Action& part = own.emplace_back(action);
        part.microbatch = member;
        part.hybrid_task = microbatch.hybrid_task;
        if (action.bytes > 0) part.bytes = microbatch.message_bytes.of(action.kind);
        if (!computes) continue;
        part.clock = action.microbatch;
        break;
      }
    }
  }
  return ranks;
}

void verify(const PipelineWork& work, std::span<const PipelineClock> clocks, const MicrobatchGraphs& graphs) {
  std::vector<bool> seen(work.microbatches.size(), false);
  std::map<int32_t, int32_t> last_of_job;
  for (size_t c = 0; c < clocks.size(); ++c) {
    const PipelineClock& clock = clocks[c];
    COTUNE_CHECK(!clock.microbatches.empty() && std::ranges::is_sorted(clock.microbatches), "clock {} is empty, or not sorted", c);
    for (const int32_t m : clock.microbatches) {
      COTUNE_CHECK(m >= 0 && m < static_cast<int32_t>(seen.size()) && !seen[static_cast<size_t>(m)],
                   "clock {}: microbatch {} does not exist, or is in two clocks", c, m);
      seen[static_cast<size_t>(m)] = true;
      const PipelineMicrobatch& microbatch = microbatch_at(work, m);
      COTUNE_CHECK(clock.microbatches.size() == 1 || microbatch.chain < 0, "clock {}: microbatch {} is of a chain", c, m);
      COTUNE_CHECK(microbatch.round == microbatch_at(work, clock.microbatches.front()).round, "clock {}: microbatch {} is of another round",
                   c, m);
      for (const JobStep& step : microbatch.jobs) {
        const auto [last, is_first] = last_of_job.try_emplace(step.job, m);
        COTUNE_CHECK(is_first || last->second < m, "clock {}: job {} has microbatch {} after microbatch {}", c, step.job, m, last->second);
        last->second = m;
      }
    }
    COTUNE_CHECK(clock.stages.size() == work.stage_rank.size(), "clock {} has launches of {} stages", c, clock.stages.size());
    for (size_t stage = 0; stage < clock.stages.size(); ++stage) {
      const ClockGraphs own = graphs_of(clock, stage, graphs);
      check_order(own.forward, clock.stages[stage].forward);
      check_order(own.backward, clock.stages[stage].backward, launch_edges(work, clock, own.backward));
    }
  }
  COTUNE_CHECK(std::ranges::all_of(seen, [](bool each) { return each; }), "a microbatch is in no clock");
}

}  // namespace cotune
