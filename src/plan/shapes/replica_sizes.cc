#include "plan/shapes/replica_sizes.h"

#include <bit>

namespace cotune {
namespace {

bool is_power_of_two(int64_t count) { return std::has_single_bit(static_cast<uint64_t>(count)); }

}  // namespace

bool stands_on_nodes(const NodeGroup& group, int64_t devices) {
  if (devices <= group.devices) return true;
  return devices % group.devices == 0 && devices / group.devices <= group.count;
}

bool is_usual_size(const NodeGroup& group, int64_t tensor_parallel, int64_t pipeline_stages) {
  const int64_t devices = tensor_parallel * pipeline_stages;
  if (!stands_on_nodes(group, devices)) return false;
  if (devices <= group.devices) return group.devices % devices == 0 || is_power_of_two(devices);
  return is_power_of_two(pipeline_stages) || group.count % (devices / group.devices) == 0;
}

}  // namespace cotune
