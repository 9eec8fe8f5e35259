/// What the longest row needs by itself, by closed form: memory on the devices there are, or devices of that memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/replica_costs.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// A way to hold the longest row, were memory without end, and as many microbatches as a pipeline needs.
struct Need {
  ReplicaCandidate candidate;
  bool recompute = false;
  int64_t chunk_tokens = 0;  ///< of its microbatches

  const StageMemory& memory() const { return candidate.memory.total() > candidate.row_memory.total() ? candidate.memory : candidate.row_memory; }
  int64_t bytes() const { return memory().total(); }
  int64_t devices() const { return candidate.configuration.devices(); }
  std::string name() const { return candidate.configuration.name() + (recompute ? " with recomputation" : ""); }
};

/// Of configurations whose microbatches take an atom at least, the largest microbatch that fits, and on which; and the longest row, on any.
struct Reach {
  int64_t tokens = 0;
  std::string name;
  int64_t row_tokens = 0;
};

/// These forms leave out the rows that share microbatches with the longest, and the jobs that meet it in a pipeline: a plan may need a little more
/// (fitting_plan.h). Recomputation and sharded weights, as options.savings has them, are among the configurations. What is given must outlive it.
class RowNeeds {
 public:
  RowNeeds(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const PlanOptions& options);

  int64_t longest() const { return longest_; }  ///< tokens of the longest row; an atom where all are shorter
  bool is_short() const { return is_short_; }  ///< all rows are shorter than the smallest microbatch

  /// The one of least memory on these nodes; nothing where none can stand on them.
  std::optional<Need> least(const NodeGroup& group) const;
  Reach reach(const NodeGroup& group, int64_t most_chunk_tokens, int64_t most_row_chunk_tokens) const;

  struct OnNodes {
    Need need;
    int64_t nodes = 0;    ///< as many as a replica takes that is larger than what there is; else all that were looked at, for several
    int64_t devices = 0;  ///< of the replica, or of all
  };
  /// The one of fewest devices of the memory there is, on more nodes of this kind, up to 64 times as many, of those that `holds` says hold;
  /// it is not asked twice about a configuration with one size of microbatches. Numbers of nodes are doubled until one holds, then at most
  /// sixteen below are tried.
  std::optional<OnNodes> fewest_devices(const NodeGroup& group, const std::function<bool(const OnNodes&)>& holds) const;

 private:
  std::vector<int64_t> row_chunks() const;
  /// Plain ones first.
  std::vector<Need> needs(const ClusterSpec& cluster, const NodeGroup& group) const;
  ReplicaLimits limits_with(const MemorySaving& saving) const;

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  std::vector<MemorySaving> savings_;
  int64_t longest_ = 0;
  bool is_short_ = false;
};

/// What is assumed between nodes, for more of them than there are, where the cluster file has no network: the name of a link_preset,
/// infiniband-200, or ethernet-10 between CPUs. "" where it has one.
std::string assumed_network(const ClusterSpec& cluster, const NodeGroup& group);
/// The same cluster with that network.
ClusterSpec with_network(ClusterSpec cluster, const NodeGroup& group);

}  // namespace cotune
