/// The shortest makespan that any order of computations can have: a yardstick for small cases.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "schedule/pipeline/compute_graph.h"

namespace cotune {

/// Branch and bound over active schedules (Giffler and Thompson 1960): some optimal schedule is active. At
/// every step the computation that could end first fixes a rank; one of those that could start there before
/// that end goes next. Bounded below by the longest way to the end, and by each rank's work that is left.
class ExactSearch {
 public:
  ExactSearch(const PipelineWork& work, const PipelineCluster& cluster, double known_s)
      : work_(work),
        graph_(work, cluster),
        best_s_(known_s),
        missing_(graph_.predecessor_counts()),
        ready_s_(static_cast<size_t>(graph_.size()), 0.0),
        tail_s_(static_cast<size_t>(graph_.size()), -1.0),
        free_s_(static_cast<size_t>(work.rank_count), 0.0),
        left_s_(static_cast<size_t>(work.rank_count), 0.0) {
    for (int32_t node = 0; node < graph_.size(); ++node) {
      if (!graph_.exists(node)) continue;
      ++left_;
      left_s_[rank_of(node)] += graph_.duration_s(node);
      tail(node);
      if (missing_[static_cast<size_t>(node)] == 0) ready_.push_back(node);
    }
  }

  /// The optimum, or `known_s` where nothing shorter exists. Gives up (is_exact() is false) after
  /// `most_steps`.
  double run(int64_t most_steps) {
    steps_left_ = most_steps;
    search(0);
    return best_s_;
  }
  bool is_exact() const { return steps_left_ > 0; }

 private:
  size_t rank_of(int32_t node) const {
    return static_cast<size_t>(work_.stage_rank[static_cast<size_t>(graph_.compute(node).stage)]);
  }

  /// From a computation's start to the end of all that follows, at least.
  double tail(int32_t node) {
    double& known = tail_s_[static_cast<size_t>(node)];
    if (known >= 0) return known;
    double longest = 0;
    for (const ComputeEdge& edge : graph_.successors(node))
      longest = std::max(longest, edge.delay_s + tail(edge.to));
    return known = graph_.duration_s(node) + longest;
  }

  double start_s(int32_t node) const {
    return std::max(free_s_[rank_of(node)], ready_s_[static_cast<size_t>(node)]);
  }

  double bound_s() const {
    double bound = 0;
    std::vector<double> earliest(free_s_.size(), std::numeric_limits<double>::infinity());
    for (const int32_t node : ready_) {
      bound = std::max(bound, start_s(node) + tail_s_[static_cast<size_t>(node)]);
      earliest[rank_of(node)] = std::min(earliest[rank_of(node)], start_s(node));
    }
    for (size_t rank = 0; rank < free_s_.size(); ++rank) {
      if (left_s_[rank] > 0) bound = std::max(bound, free_s_[rank] + left_s_[rank] + least_tail_s(rank));
    }
    return bound;
  }

  /// After a rank's last computation errors have still to go down the stages below: at least this long.
  double least_tail_s(size_t rank) const {
    double least = std::numeric_limits<double>::infinity();
    for (int32_t node = 0; node < graph_.size(); ++node) {
      if (!graph_.exists(node) || rank_of(node) != rank || ready_s_[static_cast<size_t>(node)] < 0) continue;
      least = std::min(least, tail_s_[static_cast<size_t>(node)] - graph_.duration_s(node));
    }
    return least;
  }

  void search(double makespan_s) {
    if (--steps_left_ <= 0) return;
    if (left_ == 0) {
      best_s_ = std::min(best_s_, makespan_s);
      return;
    }
    if (std::max(makespan_s, bound_s()) >= best_s_ - 1e-9) return;
    int32_t first = ready_.front();
    for (const int32_t node : ready_) {
      if (start_s(node) + graph_.duration_s(node) < start_s(first) + graph_.duration_s(first)) first = node;
    }
    const double end_s = start_s(first) + graph_.duration_s(first);
    std::vector<int32_t> choices;
    for (const int32_t node : ready_) {
      if (rank_of(node) == rank_of(first) && (node == first || start_s(node) < end_s))
        choices.push_back(node);
    }
    std::sort(choices.begin(), choices.end(), [&](int32_t a, int32_t b) {
      return start_s(a) - tail_s_[static_cast<size_t>(a)] < start_s(b) - tail_s_[static_cast<size_t>(b)];
    });
    for (const int32_t node : choices) take(node, makespan_s);
  }

  void take(int32_t node, double makespan_s) {
    const size_t rank = rank_of(node);
    const double free_before = free_s_[rank];
    const std::vector<int32_t> ready_before = ready_;
    const double start = start_s(node);
    const double end = start + graph_.duration_s(node);
    std::vector<double> moments;
    ready_.erase(std::find(ready_.begin(), ready_.end(), node));
    for (const ComputeEdge& edge : graph_.successors(node)) {
      const auto to = static_cast<size_t>(edge.to);
      moments.push_back(ready_s_[to]);
      ready_s_[to] = std::max(ready_s_[to], end + edge.delay_s);
      if (--missing_[to] == 0) ready_.push_back(edge.to);
    }
    free_s_[rank] = end;
    left_s_[rank] -= graph_.duration_s(node);
    --left_;
    const double own_ready = ready_s_[static_cast<size_t>(node)];
    ready_s_[static_cast<size_t>(node)] = -1;  // through
    search(std::max(makespan_s, end));
    ready_s_[static_cast<size_t>(node)] = own_ready;
    ++left_;
    left_s_[rank] += graph_.duration_s(node);
    free_s_[rank] = free_before;
    ready_ = ready_before;
    const std::span<const ComputeEdge> edges = graph_.successors(node);
    for (size_t i = edges.size(); i-- > 0;) {
      ++missing_[static_cast<size_t>(edges[i].to)];
      ready_s_[static_cast<size_t>(edges[i].to)] = moments[i];
    }
  }

  const PipelineWork& work_;
  const ComputeGraph graph_;
  double best_s_;
  std::vector<int32_t> missing_;
  std::vector<double> ready_s_;  // below 0: through
  std::vector<double> tail_s_;
  std::vector<double> free_s_;
  std::vector<double> left_s_;
  std::vector<int32_t> ready_;
  int64_t left_ = 0;
  int64_t steps_left_ = 0;
};

}  // namespace cotune
