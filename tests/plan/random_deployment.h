/// Random dispatch and deployment problems for property tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "plan/deployment/dispatch.h"

namespace cotune {

struct RandomDeployment {
  struct Size {
    uint64_t configurations = 3, buckets = 3, most_sequences = 10, most_replicas = 3;
  };

  RandomDeployment(uint64_t seed, const Size& size) {
    uint64_t next = 0;
    const auto below = [&](uint64_t bound) { return uniform_below(seed, next++, bound); };
    for (uint64_t i = 0; i < size.configurations; ++i) {
      BucketCosts each{.devices = int64_t{1} << below(4)};
      // The last one, always deployed, reaches every bucket.
      const bool is_last = i + 1 == size.configurations;
      const uint64_t reach = is_last ? size.buckets : 1 + below(size.buckets);
      const double slowness = 1 + 0.3 * static_cast<double>(each.devices) * uniform(seed, next++);
      for (uint64_t j = 0; j < reach; ++j) {
        const double tokens = 256.0 * static_cast<double>((j + 1) * (j + 2));
        each.seconds.push_back(tokens * slowness * (1 + 0.2 * uniform(seed, next++)) / static_cast<double>(each.devices) / 1000);
      }
      if (below(3) == 0) each.fill = each.seconds.front() * static_cast<double>(below(4));
      costs.push_back(each);
      replicas.push_back(static_cast<int64_t>(below(size.most_replicas + 1)));
    }
    replicas.back() = std::max<int64_t>(replicas.back(), 1);
    for (uint64_t j = 0; j < size.buckets; ++j) sequences.push_back(static_cast<int64_t>(below(size.most_sequences + 1)));
  }

  std::vector<BucketCosts> costs;
  std::vector<int64_t> replicas;
  std::vector<int64_t> sequences;
};

}  // namespace cotune
