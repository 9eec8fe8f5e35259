#include "schedule/pipeline/list_scheduling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/never.h"

namespace cotune {
namespace {

class ListScheduler {
 public:
  ListScheduler(const PipelineWork& work, const ComputeGraph& graph, const ListPolicy& policy)
      : work_(work),
        policy_(policy),
        graph_(graph),
        missing_(graph_.predecessor_counts()),
        ready_s_(static_cast<size_t>(graph_.size()), 0.0),
        units_(units_of(work)),
        launch_place_(work.microbatches.size()),
        unit_of_(work.microbatches.size()),
        next_launch_(static_cast<size_t>(work.stage_count())),
        waiting_(policy.strict ? static_cast<size_t>(work.stage_count()) * work.microbatches.size() : 0, -1),
        ranks_(static_cast<size_t>(work.rank_count)),
        order_(static_cast<size_t>(work.rank_count)) {
    arrange_launches();
    check_limits();
    if (has_limits()) number_units_of_jobs();
    for (int32_t m = 0; m < static_cast<int32_t>(work.microbatches.size()); ++m) {
      for (int32_t s = 0; s < work.stage_count(); ++s) {
        for (const bool backward : {false, true}) {
          const int32_t node = graph_.node({m, s, backward});
          if (!graph_.exists(node)) continue;
          ++left_;
          slack_s_ = std::max(slack_s_, 1e-9 * graph_.duration_s(node));
          if (missing_[static_cast<size_t>(node)] == 0) make_ready(node);
        }
      }
    }
  }

  ComputeOrder run() {
    while (left_ > 0) {
      size_t best = 0;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].stale) refresh(rank);
        if (ranks_[rank].next_start_s < ranks_[best].next_start_s) best = rank;
      }
      COTUNE_CHECK(ranks_[best].next_start_s < never, "{} computations can never start", left_);
      start(best);
    }
    return std::move(order_);
  }

 private:
  struct Rank {
    double free_s = 0;
    std::vector<int32_t> ready;  // nodes whose predecessors have started, so that their moment is known
    double next_start_s = 0;
    bool stale = true;      // next_start_s is to be found again
    int32_t in_flight = 0;  // places taken, reserved ones of chains included
    int64_t kept_bytes = 0;
  };

  void arrange_launches() {
    std::vector<int32_t> launch = policy_.launch_order;
    if (launch.empty()) {
      launch.resize(units_.size());
      std::iota(launch.begin(), launch.end(), 0);
    }
    COTUNE_CHECK(launch.size() == units_.size(), "{} launches of {} units", launch.size(), units_.size());
    int32_t place = 0;
    for (const int32_t u : launch) {
      const PipelineUnit& unit = units_[static_cast<size_t>(u)];
      for (int32_t m = unit.first + unit.count; m-- > unit.first;) {
        unit_of_[static_cast<size_t>(m)] = u;
        launch_place_[static_cast<size_t>(m)] = place++;
      }
    }
  }

  /// And finds what each unit keeps.
  void check_limits() {
    if (!has_limits()) return;
    COTUNE_CHECK(work_.stage_rank == one_stage_per_rank(work_.rank_count), "limits need one stage per rank");
    for (size_t rank = 0; rank < policy_.kept_bytes_limit.size(); ++rank) {
      for (const PipelineUnit& unit : units_) {
        const int64_t bytes = kept_of_.emplace_back(kept_bytes(unit, rank));
        if (bytes > policy_.kept_bytes_limit[rank]) {
          throw_user_error(
              "rank {} may keep {} bytes, but microbatches {} to {}, which belong together, need {}", rank,
              policy_.kept_bytes_limit[rank], unit.first, unit.first + unit.count - 1, bytes);
        }
      }
    }
  }

  bool is_kept(int32_t microbatch, size_t rank) const {
    return graph_.lowest_stage(microbatch) <= static_cast<int32_t>(rank);
  }

  int64_t kept_bytes(const PipelineUnit& unit, size_t rank) const {
    int64_t bytes = 0;
    for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
      if (is_kept(m, rank)) bytes += work_.microbatches[static_cast<size_t>(m)].cost[rank].kept_bytes;
    }
    return bytes;
  }

  int64_t kept_of(const Compute& compute, size_t rank) const {
    return kept_of_[rank * units_.size() + static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])];
  }

  int32_t kept_count(const PipelineUnit& unit, size_t rank) const {
    int32_t count = 0;
    for (int32_t m = unit.first; m < unit.first + unit.count; ++m) count += is_kept(m, rank) ? 1 : 0;
    return count;
  }

  bool has_limits() const { return !policy_.in_flight_limit.empty() || !policy_.kept_bytes_limit.empty(); }

  Rank& rank_at(int32_t node) {
    return ranks_[static_cast<size_t>(work_.stage_rank[static_cast<size_t>(graph_.compute(node).stage)])];
  }

  /// Where a stage takes forwards in launch order, one that is not next waits aside.
  void make_ready(int32_t node) {
    const Compute compute = graph_.compute(node);
    if (policy_.strict && !compute.backward) {
      const auto stage = static_cast<size_t>(compute.stage);
      const int32_t place = launch_place_[static_cast<size_t>(compute.microbatch)];
      if (place != next_launch_[stage]) {
        waiting_[stage * work_.microbatches.size() + static_cast<size_t>(place)] = node;
        return;
      }
    }
    admit(node);
  }

  /// Under limits, forwards whose unit is not yet the next of its jobs wait aside.
  void admit(int32_t node) {
    const Compute compute = graph_.compute(node);
    if (has_limits() && !compute.backward && takes_place(compute) && !is_next_of_its_jobs(compute)) {
      aside(compute.stage, unit_of_[static_cast<size_t>(compute.microbatch)]) = node;
      return;
    }
    rank_at(node).ready.push_back(node);
    rank_at(node).stale = true;
  }

  void launch_next(size_t stage) {
    const auto place = static_cast<size_t>(++next_launch_[stage]);
    if (place == work_.microbatches.size()) return;
    const int32_t node = waiting_[stage * work_.microbatches.size() + place];
    if (node >= 0) admit(node);
  }

  /// Whether it is the first of its unit on its stage: the others' places are reserved with its own.
  bool takes_place(const Compute& compute) const {
    const PipelineUnit& unit = units_[static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])];
    return compute.microbatch == unit.first + unit.count - 1;
  }

  int32_t& aside(int32_t stage, int32_t unit) { return aside_[static_cast<size_t>(stage) * units_.size() + static_cast<size_t>(unit)]; }

  bool may_start(size_t rank, int32_t node) const {
    const Compute compute = graph_.compute(node);
    if (compute.backward || !takes_place(compute)) return true;
    const PipelineUnit& unit = units_[static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])];
    const Rank& state = ranks_[rank];
    if (!policy_.in_flight_limit.empty() && state.in_flight > 0 &&
        state.in_flight + kept_count(unit, rank) > policy_.in_flight_limit[rank]) {
      return false;
    }
    return policy_.kept_bytes_limit.empty() || state.kept_bytes + kept_of(compute, rank) <= policy_.kept_bytes_limit[rank];
  }

  /// Backwards of a job go in ascending index. Were a small unit to pass a larger one of its job that has no
  /// room yet, it would keep that room, and wait for it for ever.
  void number_units_of_jobs() {
    std::map<int32_t, size_t> index_of_job;
    for (size_t u = 0; u < units_.size(); ++u) {
      std::vector<std::pair<size_t, int32_t>>& places = places_in_job_.emplace_back();
      const PipelineUnit& unit = units_[u];
      for (int32_t m = unit.first; m < unit.first + unit.count; ++m) {
        for (const JobStep& step : work_.microbatches[static_cast<size_t>(m)].jobs) {
          const auto [job, is_new] = index_of_job.try_emplace(step.job, units_of_job_.size());
          if (is_new) units_of_job_.emplace_back();
          std::vector<int32_t>& units = units_of_job_[job->second];
          if (!units.empty() && units.back() == static_cast<int32_t>(u)) continue;
          places.emplace_back(job->second, static_cast<int32_t>(units.size()));
          units.push_back(static_cast<int32_t>(u));
        }
      }
    }
    started_of_job_.assign(static_cast<size_t>(work_.stage_count()), std::vector<int32_t>(units_of_job_.size(), 0));
    aside_.assign(static_cast<size_t>(work_.stage_count()) * units_.size(), -1);
  }

  bool is_next_of_its_jobs(const Compute& compute) const {
    const auto& started = started_of_job_[static_cast<size_t>(compute.stage)];
    for (const auto& [job, place] :
         places_in_job_[static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])]) {
      if (place != started[job]) return false;
    }
    return true;
  }

  void refresh(size_t rank) {
    Rank& state = ranks_[rank];
    double earliest = never;
    for (const int32_t node : state.ready) {
      if (may_start(rank, node)) earliest = std::min(earliest, ready_s_[static_cast<size_t>(node)]);
    }
    state.next_start_s = std::max(earliest, state.free_s);
    state.stale = false;
  }

  /// Whether a goes before b, both being ready.
  bool before(int32_t a, int32_t b) const {
    const Compute x = graph_.compute(a);
    const Compute y = graph_.compute(b);
    if (x.backward != y.backward) return x.backward == policy_.backward_first;
    const double difference = ready_s_[static_cast<size_t>(a)] - ready_s_[static_cast<size_t>(b)];
    if (std::abs(difference) > slack_s_) return difference < 0;
    if (!x.backward && x.microbatch != y.microbatch) {
      return launch_place_[static_cast<size_t>(x.microbatch)] <
             launch_place_[static_cast<size_t>(y.microbatch)];
    }
    return x.microbatch != y.microbatch ? x.microbatch < y.microbatch : x.stage > y.stage;
  }

  void start(size_t rank) {
    Rank& state = ranks_[rank];
    const double now = state.next_start_s + slack_s_;
    size_t chosen = state.ready.size();
    for (size_t i = 0; i < state.ready.size(); ++i) {
      const int32_t node = state.ready[i];
      if (ready_s_[static_cast<size_t>(node)] > now || !may_start(rank, node)) continue;
      if (chosen == state.ready.size() || before(node, state.ready[chosen])) chosen = i;
    }
    const int32_t node = state.ready[chosen];
    state.ready.erase(state.ready.begin() + static_cast<std::ptrdiff_t>(chosen));
    const double end_s =
        std::max(state.free_s, ready_s_[static_cast<size_t>(node)]) + graph_.duration_s(node);
    state.free_s = end_s;
    state.stale = true;
    const Compute compute = graph_.compute(node);
    order_[rank].push_back(compute);
    account(rank, compute);
    --left_;
    for (const ComputeEdge& edge : graph_.successors(node)) {
      const auto to = static_cast<size_t>(edge.to);
      ready_s_[to] = std::max(ready_s_[to], end_s + edge.delay_s);
      if (--missing_[to] == 0) make_ready(edge.to);
    }
  }

  void account(size_t rank, const Compute& compute) {
    if (!compute.backward && policy_.strict) launch_next(static_cast<size_t>(compute.stage));
    if (!has_limits()) return;
    Rank& state = ranks_[rank];
    const PipelineUnit& unit = units_[static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])];
    if (compute.backward) {
      state.in_flight -= 1;
      if (!policy_.kept_bytes_limit.empty()) state.kept_bytes -= work_.microbatches[static_cast<size_t>(compute.microbatch)].cost[rank].kept_bytes;
    } else if (compute.microbatch == unit.first + unit.count - 1) {
      state.in_flight += kept_count(unit, rank);
      if (!policy_.kept_bytes_limit.empty()) state.kept_bytes += kept_of(compute, rank);
      auto& started = started_of_job_[static_cast<size_t>(compute.stage)];
      const auto& places = places_in_job_[static_cast<size_t>(unit_of_[static_cast<size_t>(compute.microbatch)])];
      for (const auto& [job, place] : places) ++started[job];
      for (const auto& [job, place] : places) {
        const auto next = static_cast<size_t>(place) + 1;
        if (next == units_of_job_[job].size()) continue;
        const int32_t waiting = std::exchange(aside(compute.stage, units_of_job_[job][next]), -1);
        if (waiting >= 0) admit(waiting);
      }
    }
  }

  const PipelineWork& work_;
  const ListPolicy& policy_;
  const ComputeGraph& graph_;
  std::vector<int32_t> missing_;
  std::vector<double> ready_s_;
  const std::vector<PipelineUnit> units_;
  std::vector<int32_t> launch_place_;  // by microbatch
  std::vector<int32_t> unit_of_;
  std::vector<int32_t> next_launch_;  // by stage: the next place, under strict
  std::vector<int32_t> waiting_;      // [stage, place]: ready forwards that are not next, under strict; -1: none
  // Under limits: of each unit its jobs, numbered as they come, with the unit's place among the units of each; and how many units of
  // a job have begun their forward, by stage.
  std::vector<std::vector<std::pair<size_t, int32_t>>> places_in_job_;
  std::vector<std::vector<int32_t>> units_of_job_;
  std::vector<std::vector<int32_t>> started_of_job_;
  std::vector<int64_t> kept_of_;  // [rank, unit]: its bytes, under a limit of them
  std::vector<int32_t> aside_;  // [stage, unit]: ready forwards whose unit is not the next of its jobs; -1: none
  std::vector<Rank> ranks_;
  ComputeOrder order_;
  int64_t left_ = 0;
  double slack_s_ = 0;  // of rounding: moments this close are one
};

}  // namespace

ComputeOrder list_schedule(const PipelineWork& work, const PipelineCluster& cluster,
                           const ListPolicy& policy) {
  return list_schedule(work, ComputeGraph(work, cluster), policy);
}

ComputeOrder list_schedule(const PipelineWork& work, const ComputeGraph& graph, const ListPolicy& policy) {
  return ListScheduler(work, graph, policy).run();
}

}  // namespace cotune
