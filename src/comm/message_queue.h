/// Messages of one channel in one direction between this rank and one peer.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/communicator.h"

namespace c10d {
class Work;
}

namespace cotune {

enum class Direction { send, receive };

struct MessageDescription {
  int32_t rank, peer;
  Direction direction;
  Channel channel;
  int64_t bytes;
  /// `rank 1: receiving 64 bytes (activation) from rank 0`
  std::string text() const;
};

/// A message whose end a MessageQueue tells.
class QueuedTransfer : public Transfer {
 public:
  /// aborted: set before abort() ends the messages under way; wait() throws from then on, over or not.
  QueuedTransfer(const MessageDescription& description, std::shared_ptr<const std::atomic<bool>> aborted);
  bool done() override;
  void wait() override;

  void complete();
  /// reason: why the message will never complete.
  void end(const std::string& reason);

 private:
  const MessageDescription description_;
  const std::shared_ptr<const std::atomic<bool>> aborted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string failure_;  ///< empty where it completed
};

/// Waits for messages in their order, in a thread of its own. c10d's works of Gloo cannot be asked whether they are
/// done (Work::isCompleted is false until somebody has waited), and are lost when dropped before that.
class MessageQueue {
 public:
  MessageQueue();
  /// The messages must be over or about to end: waits for them.
  ~MessageQueue();
  void add(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<QueuedTransfer> transfer);
  bool idle();

 private:
  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::shared_ptr<QueuedTransfer> transfer;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  ///< the first is being waited for
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace cotune
