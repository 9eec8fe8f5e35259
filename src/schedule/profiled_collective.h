/// What messages and collectives between ranks took: `collectives` of profile.json (schedule/profile.h).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cotune {

enum class CollectiveKind { message, all_reduce, reduce_scatter, all_gather };
/// In the order of the enumeration: as files and tables have them.
inline constexpr std::array<std::string_view, 4> collective_names{"message", "all_reduce", "reduce_scatter", "all_gather"};

/// Measured between the ranks of a group while all other ranks of the profile did the same in groups of as many.
struct ProfiledCollective {
  CollectiveKind kind = CollectiveKind::message;
  int64_t ranks = 2;   ///< of the group; a message has 2
  /// Of a message; of the values on each rank that an all-reduce or a reduce-scatter adds; of the rows of all ranks together that an
  /// all-gather collects.
  int64_t bytes = 0;
  double median = 0;   ///< seconds until the group's last rank had it
  double spread = 0;   ///< upper quartile minus lower quartile, over the median
  int64_t count = 0;   ///< measurements, of all groups
  bool operator==(const ProfiledCollective&) const = default;
};

/// Ranks of the groups that are measured among so many: 2, and what divides the ranks into equal groups. Empty for one rank. Ranks that
/// are left over, one of an odd number in groups of 2, do nothing meanwhile.
std::vector<int64_t> measured_group_sizes(int64_t ranks);

/// Bytes that are measured, ascending: 64, eight times as many and so on below `largest`, and `largest`.
std::vector<int64_t> measured_sizes(int64_t largest);

}  // namespace cotune
