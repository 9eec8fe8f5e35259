#include "train/thread_link.h"

namespace cotune {

LinkSpec spec_of(const Link& link) { return {.bandwidth = link.bytes_per_s, .latency = link.latency_s}; }

LinkSpec link_between_threads(const MeasuredTimes* measured) {
  const LinkSpec link = spec_of(thread_link);
  return measured == nullptr ? link : measured->collectives().over(link);
}

}  // namespace cotune
