/// What surrounds the ranks of a pipeline: links between them, and what slows them down.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace cotune {

/// One direction between two ranks. Carries the bytes of one message at a time.
struct Link {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  double seconds(int64_t bytes) const { return latency_s + static_cast<double>(bytes) / bytes_per_s; }
  bool operator==(const Link&) const = default;
};

/// A rank computes `factor` times slower between two moments.
struct Slowdown {
  int32_t rank = 0;
  double from_s = 0;
  double until_s = std::numeric_limits<double>::infinity();
  double factor = 1;
  bool operator==(const Slowdown&) const = default;
};

struct PipelineCluster {
  Link link;                                          ///< between any two ranks, but for
  std::map<std::pair<int32_t, int32_t>, Link> links;  ///< these ordered pairs (from, to)
  std::vector<Slowdown> slowdowns;
  /// true: messages travel beside the computation (streams of their own). false: a rank stands still while it
  /// sends, and again as long before it uses what it received (mLoRA §3.2.2: 2C_S + 2C_R + D_F + D_B).
  bool overlap = true;
  double transfer_slowdown = 1;  ///< a rank computes so many times slower while a message of it is under way

  const Link& between(int32_t from, int32_t to) const {
    const auto found = links.find({from, to});
    return found == links.end() ? link : found->second;
  }
  bool operator==(const PipelineCluster&) const = default;
};

}  // namespace cotune
