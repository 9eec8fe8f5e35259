#include "schedule/pipeline/compute_graph.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace cotune {
namespace {

struct Edge {
  int32_t from = 0;
  ComputeEdge edge;
};

}  // namespace

ComputeGraph::ComputeGraph(const PipelineWork& work, const PipelineCluster& cluster)
    : stage_count_(work.stage_count()) {
  const auto microbatch_count = static_cast<int32_t>(work.microbatches.size());
  const auto node_count = static_cast<size_t>(2 * microbatch_count * stage_count_);
  duration_s_.resize(node_count);
  predecessor_counts_.resize(node_count);
  std::vector<Edge> edges;  // in the order that they are found in
  edges.reserve(3 * node_count);
  const auto add_edge = [&](int32_t from, int32_t to, double delay_s) { edges.push_back({from, {to, delay_s}}); };

  std::map<int32_t, const PipelineJob*> jobs;
  for (const PipelineJob& job : work.jobs) jobs[job.job] = &job;
  std::map<JobStep, int32_t> last_of;  // the latest microbatch of a job step so far
  for (int32_t m = 0; m < microbatch_count; ++m) {
    const PipelineMicrobatch& microbatch = work.microbatches[static_cast<size_t>(m)];
    int32_t lowest = stage_count_;
    for (const JobStep& step : microbatch.jobs) lowest = std::min(lowest, jobs.at(step.job)->lowest_stage);
    lowest_stage_.push_back(lowest);

    const auto transfer_s = [&](int32_t from, int32_t to, int64_t bytes) {
      const int32_t a = work.stage_rank[static_cast<size_t>(from)];
      const int32_t b = work.stage_rank[static_cast<size_t>(to)];
      return a == b ? 0.0
                    : (cluster.overlap ? 1 : 2) * cluster.between(a, b).seconds(bytes);
    };
    for (int32_t s = 0; s < stage_count_; ++s) {
      const StageCost& cost = microbatch.cost[static_cast<size_t>(s)];
      const int32_t forward = node({m, s, false});
      const int32_t backward = node({m, s, true});
      duration_s_[static_cast<size_t>(forward)] = cost.forward_s;
      duration_s_[static_cast<size_t>(backward)] = cost.backward_s;
      if (s > 0) add_edge(node({m, s - 1, false}), forward, transfer_s(s - 1, s, microbatch.message_bytes.activation));
      if (s >= lowest) add_edge(forward, backward, 0);
      if (s > lowest) add_edge(backward, node({m, s - 1, true}), transfer_s(s, s - 1, microbatch.message_bytes.error));
      if (m > 0 && microbatch.chain >= 0 &&
          work.microbatches[static_cast<size_t>(m - 1)].chain == microbatch.chain) {
        add_edge(forward, node({m - 1, s, false}), 0);
      }
    }
    for (const JobStep& step : microbatch.jobs) {
      const PipelineJob& job = *jobs.at(step.job);
      if (const auto found = last_of.find(step); found != last_of.end()) {
        for (int32_t s = job.lowest_stage; s < stage_count_; ++s) {
          add_edge(node({found->second, s, true}), node({m, s, true}), 0);
        }
      }
      if (const auto before = last_of.find({step.job, step.step - 1}); before != last_of.end()) {
        add_edge(node({before->second, job.lowest_stage, true}), node({m, job.lowest_stage, false}),
                 job.optimizer_s);
      }
      last_of[step] = m;
    }
  }

  first_edge_.assign(node_count + 1, 0);
  for (const Edge& each : edges) {
    ++first_edge_[static_cast<size_t>(each.from) + 1];
    ++predecessor_counts_[static_cast<size_t>(each.edge.to)];
  }
  std::partial_sum(first_edge_.begin(), first_edge_.end(), first_edge_.begin());
  edges_.resize(edges.size());
  std::vector<size_t> next(first_edge_.begin(), first_edge_.end() - 1);
  for (const Edge& each : edges) edges_[next[static_cast<size_t>(each.from)]++] = each.edge;
}

std::optional<ComputeTimes> ComputeGraph::times(const ComputeOrder& order, double least_s) const {
  std::vector<int32_t> missing = predecessor_counts_;
  std::vector<double> ready_s(duration_s_.size(), 0.0);
  ComputeTimes times(order.size());
  std::vector<int32_t> rank_of(duration_s_.size(), -1);
  size_t left = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    times[rank].reserve(order[rank].size());
    for (const Compute& compute : order[rank])
      rank_of[static_cast<size_t>(node(compute))] = static_cast<int32_t>(rank);
    left += order[rank].size();
  }
  std::vector<size_t> waiting(order.size());  // ranks whose next entry may have become ready
  for (size_t rank = 0; rank < order.size(); ++rank) waiting[rank] = rank;
  while (!waiting.empty()) {
    const size_t rank = waiting.back();
    waiting.pop_back();
    while (times[rank].size() < order[rank].size()) {
      const int32_t at = node(order[rank][times[rank].size()]);
      if (missing[static_cast<size_t>(at)] != 0) break;
      const double free_s = times[rank].empty() ? 0.0 : times[rank].back().end_s;
      const double start_s = std::max(free_s, ready_s[static_cast<size_t>(at)]);
      const double end_s = start_s + std::max(duration_s(at), least_s);
      times[rank].push_back({start_s, end_s});
      --left;
      for (const ComputeEdge& edge : successors(at)) {
        const auto to = static_cast<size_t>(edge.to);
        ready_s[to] = std::max(ready_s[to], end_s + edge.delay_s);
        if (--missing[to] == 0 && rank_of[to] >= 0 && rank_of[to] != static_cast<int32_t>(rank)) {
          waiting.push_back(static_cast<size_t>(rank_of[to]));
        }
      }
    }
  }
  if (left != 0) return std::nullopt;
  return times;
}

double ComputeGraph::longest_s() const {
  return duration_s_.empty() ? 0.0 : *std::max_element(duration_s_.begin(), duration_s_.end());
}

double makespan_s(const ComputeTimes& times) {
  double last = 0;
  for (const std::vector<ComputeSpan>& rank : times) {
    if (!rank.empty()) last = std::max(last, rank.back().end_s);
  }
  return last;
}

}  // namespace cotune
