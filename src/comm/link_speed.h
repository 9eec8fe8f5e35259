#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace cotune {

/// seconds(bytes) = latency_s + bytes / bytes_per_s, one way.
struct LinkSpeed {
  double latency_s = 0;
  double bytes_per_s = 0;
};

/// Of messages between this rank and `peer`, which calls it too: half of the fastest of a few round trips of one byte and of
/// 4 MiB, in memory of this device. Takes some milliseconds on a fast link. begins: true at one of the two. Throws CommunicationEnded.
LinkSpeed measure_link(Communicator& communicator, int32_t peer, bool begins, c10::Device device);

}  // namespace cotune
