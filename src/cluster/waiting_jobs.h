/// The queue: jobs that wait, grouped so that the first one of every sort is at hand.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace cotune {

/// What jobs of one group have in common: whether one of them fits somewhere is the same for all.
struct WaitingGroup {
  int32_t tenant = 0;  ///< 0 where tenants are not told apart
  int32_t kind = 0;
  bool dedicated = false;
  auto operator<=>(const WaitingGroup&) const = default;
};

/// Place in a group: lower goes first.
struct WaitingPlace {
  double rank = 0;
  double arrival_s = 0;
  int64_t job = 0;
  auto operator<=>(const WaitingPlace&) const = default;
};

class WaitingJobs {
 public:
  void add(const WaitingGroup& group, const WaitingPlace& place);
  void remove(const WaitingGroup& group, const WaitingPlace& place);
  int64_t size() const { return size_; }
  /// Groups with a job, each with its places in order.
  const std::map<WaitingGroup, std::set<WaitingPlace>>& groups() const { return groups_; }

 private:
  std::map<WaitingGroup, std::set<WaitingPlace>> groups_;
  int64_t size_ = 0;
};

}  // namespace cotune
