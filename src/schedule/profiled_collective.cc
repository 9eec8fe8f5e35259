#include "schedule/profiled_collective.h"

namespace cotune {

std::vector<int64_t> measured_group_sizes(int64_t ranks) {
  std::vector<int64_t> sizes;
  for (int64_t size = 2; size <= ranks; ++size) {
    if (size == 2 || ranks % size == 0) sizes.push_back(size);
  }
  return sizes;
}

std::vector<int64_t> measured_sizes(int64_t largest) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = 64; bytes < largest; bytes *= 8) sizes.push_back(bytes);
  sizes.push_back(largest);
  return sizes;
}

}  // namespace cotune
