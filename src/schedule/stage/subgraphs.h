/// The operators of one microbatch on one stage as subgraphs: the units that several hybrid tasks' work is
/// interleaved in (MuxTune §3.4.2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/operators.h"

namespace cotune {

/// What an operator takes: compute, and the all-reduce after it where it communicates.
struct OperatorTime {
  double compute_s = 0;
  double communication_s = 0;
};

struct Subgraph {
  std::vector<int32_t> operators;     ///< indices in the operator list, ascending
  std::vector<int32_t> predecessors;  ///< indices of subgraphs, ascending; they come earlier in the list
  int32_t depth = 0;        ///< the longest chain of predecessors that compute for it: MuxTune's priority, shallow first
  bool is_adapter = false;  ///< an adapter gradient by itself, which reads nothing that its predecessors communicate
  int32_t site = -1;        ///< of an adapter gradient: which of the model, the same in every microbatch
  double compute_s = 0;
  double communication_s = 0;  ///< after its last operator
  bool operator==(const Subgraph&) const = default;
};

/// A stage's operators of one hybrid task in one direction, clustered, in an order in which they can be launched.
using SubgraphDag = std::vector<Subgraph>;

/// Consecutive operators form a subgraph that ends where tensor parallelism communicates; each adapter
/// gradient, which nobody waits for, is a subgraph by itself. `times`: one per operator. (In forward, and in
/// the input gradient, an adapter is part of its frozen product here, so there is nothing to isolate.)
/// The next subgraph of the layers reuses what adapter gradients read (engine/microbatch_state.h), so those of what a subgraph has made
/// come before it.
SubgraphDag subgraphs_of(std::span<const Operator> operators, std::span<const OperatorTime> times);

/// Throws InternalError when a predecessor does not come earlier, or a time is negative.
void check(const SubgraphDag& dag);

}  // namespace cotune
