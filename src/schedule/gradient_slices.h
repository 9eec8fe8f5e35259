/// How the gradients of one job are added over replicas of unlike shape (LobRA §2.2, LB-21): every parameter of the adapter is cut
/// at the union of what ranks hold of it, so that a slice is on one rank of each replica, or on several that hold it alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cotune {

/// What one rank holds of a parameter: indices [begin, end) of the dimension that is cut, or single entries.
struct HeldPart {
  int32_t replica = 0;
  int32_t rank = 0;  ///< over all replicas
  int64_t begin = 0, end = 0;
  std::vector<int64_t> entries;  ///< ascending; in place of begin and end, where has_entries
  bool has_entries = false;
};

struct HeldParameter {
  int64_t dimension = 0;         ///< that some rank's part cuts
  int64_t length = 1;            ///< of that dimension
  int64_t values_per_index = 1;  ///< whole size / length
  std::vector<HeldPart> parts;   ///< by replica, then rank; each replica has all of the parameter
};

struct GradientSlice {
  size_t parameter = 0;
  int64_t dimension = 0;
  int64_t begin = 0, end = 0;    ///< of that dimension; without entries
  std::vector<int64_t> entries;  ///< ascending; not empty where some rank holds entries
  int64_t values = 0;
  std::vector<std::vector<int32_t>> holders;  ///< by replica: ranks, of which the first gives its gradient
  int32_t owner = 0;             ///< adds: one of those that give
  bool operator==(const GradientSlice&) const = default;
};

/// In the order of parameters and places. Owners share the adding: each slice goes to that one of its givers which has least
/// so far. Throws InternalError where a replica lacks a part.
std::vector<GradientSlice> gradient_slices(std::span<const HeldParameter> parameters);

/// Values that go over links in one exchange: of every slice those given to its owner, and the sums that come back to all others that
/// hold it. No exchange of sums moves fewer.
int64_t values_moved(std::span<const GradientSlice> slices);

}  // namespace cotune
