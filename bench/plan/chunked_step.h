/// What a step takes when rows stand in single replicas and are cut into chunks: LobRA's Eq. 10 and 12 with the chunks that exist, where
/// planning charges a row its share of a full chunk. A chunk holds rows of one bucket, at most ⌊M/s⌋ of them.
#pragma once

#include <span>
#include <vector>

#include "plan/deployment/configuration.h"
#include "plan/deployment/dispatch.h"
#include "plan/shapes/length_buckets.h"

namespace cotune {

/// Seconds of every replica for a dispatch, those of configuration 0 first. Of each bucket a configuration's replicas take
/// its rows in turn, beginning where the last bucket left off.
std::vector<double> replica_seconds(std::span<const Configuration> configurations, std::span<const int64_t> replicas,
                                    const LengthBuckets& buckets, const Dispatch& dispatch);

/// Seconds of every replica when whole chunks count in the dispatch itself: longest buckets first, each row to the replica
/// that ends soonest with it, then rows are moved away from the slowest replica while that ends it sooner.
std::vector<double> chunked_dispatch_seconds(std::span<const Configuration> configurations, std::span<const int64_t> replicas,
                                             const LengthBuckets& buckets);

}  // namespace cotune
