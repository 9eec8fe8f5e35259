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

/// Collectives of one group that c10d's thread runs, as transfers whose waits end when the group does. Those of c10d's own may not: Gloo
/// does not tell what it has begun to write into a link that the link has closed (tcp::Pair::signalException passes by the unbound
/// buffers among the operations that are being written), and waits on.
class CollectiveWorks {
 public:
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
  const std::shared_ptr<Ends> ends_ = make_ends();
  static std::shared_ptr<Ends> make_ends();
};

}  // namespace cotune
