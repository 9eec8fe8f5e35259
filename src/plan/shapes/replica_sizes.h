/// How many devices a replica may have on like nodes.
#pragma once

#include <cstdint>

#include "plan/shapes/cluster.h"

namespace cotune {

/// Whether so many devices of these nodes can be one replica: of one node, or of whole ones.
bool stands_on_nodes(const NodeGroup& group, int64_t devices);

/// Whether planning looks at replicas of TP·PP devices there: such as, alone, can take all devices of a node or of all nodes, and powers of
/// two beside them, so that at most twice the least number of stages that would do is among them. In one node TP·PP divides its devices
/// or is a power of two; of several nodes PP is a power of two or their number divides that of all.
bool is_usual_size(const NodeGroup& group, int64_t tensor_parallel, int64_t pipeline_stages);

}  // namespace cotune
