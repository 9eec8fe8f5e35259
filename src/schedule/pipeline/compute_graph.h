/// Forwards and backwards of a pipeline with what each must wait for. Orders are lists of them per rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// The forward or the backward of one microbatch on one stage.
struct Compute {
  int32_t microbatch = 0;
  int32_t stage = 0;
  bool backward = false;
  bool operator==(const Compute&) const = default;
};

/// What each rank computes, in order.
using ComputeOrder = std::vector<std::vector<Compute>>;

/// When each entry of a ComputeOrder starts and ends, in the same places.
struct ComputeSpan {
  double start_s = 0;
  double end_s = 0;
};
using ComputeTimes = std::vector<std::vector<ComputeSpan>>;

struct ComputeEdge {
  int32_t to = 0;
  double delay_s = 0;  ///< from the end of one to the start of the other, at least
};

/// Nodes are numbered 2·(microbatch·stages + stage), plus 1 for backward; nodes that do not exist (backward
/// below the lowest stage) have no edges and no predecessors. Edges:
///   forward (m, s) → forward (m, s+1)      the activation's way over the link
///   backward (m, s) → backward (m, s-1)    the error's
///   forward (m, s) → backward (m, s)
///   forward (m+1, s) → forward (m, s)      within a chain
///   backward → next backward on a stage of a job step, where the job has adapters
///   last backward of a job step on the job's lowest stage → first forwards of its next step there, with the
///   optimizer step as delay. On higher stages that follows, for the forward brings the norm.
class ComputeGraph {
 public:
  ComputeGraph(const PipelineWork& work, const PipelineCluster& cluster);

  int32_t size() const { return static_cast<int32_t>(duration_s_.size()); }
  int32_t node(const Compute& compute) const {
    return 2 * (compute.microbatch * stage_count_ + compute.stage) + (compute.backward ? 1 : 0);
  }
  Compute compute(int32_t node) const {
    return {node / 2 / stage_count_, node / 2 % stage_count_, node % 2 == 1};
  }
  bool exists(int32_t node) const {
    return node % 2 == 0 ||
           node / 2 % stage_count_ >= lowest_stage_[static_cast<size_t>(node / 2 / stage_count_)];
  }
  int32_t lowest_stage(int32_t microbatch) const { return lowest_stage_[static_cast<size_t>(microbatch)]; }
  double duration_s(int32_t node) const { return duration_s_[static_cast<size_t>(node)]; }
  std::span<const ComputeEdge> successors(int32_t node) const {
    const auto at = static_cast<size_t>(node);
    return std::span(edges_).subspan(first_edge_[at], first_edge_[at + 1] - first_edge_[at]);
  }
  const std::vector<int32_t>& predecessor_counts() const { return predecessor_counts_; }

  /// Runs an order: each rank takes its entries one after the other, each as soon as it may. Nothing when the
  /// order holds a cycle of waits, or lacks something that an entry waits for. Shorter entries take
  /// `least_s`: where all take some time, later means after.
  std::optional<ComputeTimes> times(const ComputeOrder& order, double least_s = 0) const;
  double longest_s() const;  ///< of all durations

 private:
  int32_t stage_count_;
  std::vector<int32_t> lowest_stage_;  // by microbatch
  std::vector<double> duration_s_;
  std::vector<ComputeEdge> edges_;   // by the node that they come from
  std::vector<size_t> first_edge_;   // by node, and the end
  std::vector<int32_t> predecessor_counts_;
};

/// The last end of all.
double makespan_s(const ComputeTimes& times);

}  // namespace cotune
