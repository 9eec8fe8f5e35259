/// What belongs together of a call's groups, on the host.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

/// Items that are alike, in the order of their first ones, each kind's in the order given. `alike` is asked of a kind's first
/// item and another one.
template <typename Item, typename Alike>
std::vector<std::vector<Item>> kinds_of(std::vector<Item> items, Alike alike) {
  std::vector<std::vector<Item>> kinds;
  for (Item& item : items) {
    const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const std::vector<Item>& known) { return alike(known.front(), item); });
    if (kind == kinds.end()) {
      kinds.emplace_back().push_back(std::move(item));
    } else {
      kind->push_back(std::move(item));
    }
  }
  return kinds;
}

inline bool same_rows(const GpuRows& a, const GpuRows& b) { return a.begin == b.begin && a.end == b.end; }

}  // namespace cotune::cuda
