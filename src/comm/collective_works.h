#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "comm/communicator.h"

namespace c10d {
class Work;
}

namespace cotune {

/// Collectives of one group, which c10d's thread runs, as transfers whose waits end when the group does. c10d's own may wait on for
/// ever: when a link closes, Gloo tells nothing to what it has begun to write into it or to read from it
/// (tcp::Pair::signalException passes by the unbound buffers of operations under way).
class CollectiveWorks {
 public:
  CollectiveWorks();
  /// description: `rank 1: all_reduce of 64 bytes of 4 ranks`
  std::shared_ptr<Transfer> add(const c10::intrusive_ptr<c10d::Work>& work, std::string description);
  /// Waits under way and to come throw: this rank has ended the group.
  void abort();
  /// The same, unless a work is over; text: which link has closed.
  void lose(const std::string& text);
  /// Whether nobody waits for anything that is not over; works that nobody waits for count.
  bool idle() const;
  /// Until idle() as c10d sees it. False where that is not so after `most`.
  bool wait_until_over(std::chrono::milliseconds most) const;

 private:
  struct Ends;
  class Collective;
  const std::shared_ptr<Ends> ends_;
};

}  // namespace cotune
