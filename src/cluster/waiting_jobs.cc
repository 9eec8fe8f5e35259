#include "cluster/waiting_jobs.h"

#include "base/error.h"

namespace cotune {

void WaitingJobs::add(const WaitingGroup& group, const WaitingPlace& place) {
  COTUNE_CHECK(groups_[group].insert(place).second, "job {} waits already", place.job);
  size_ += 1;
}

void WaitingJobs::remove(const WaitingGroup& group, const WaitingPlace& place) {
  const auto found = groups_.find(group);
  COTUNE_CHECK(found != groups_.end() && found->second.erase(place) == 1, "job {} does not wait", place.job);
  if (found->second.empty()) groups_.erase(found);
  size_ -= 1;
}

}  // namespace cotune
