/// Messages of one channel in one direction between this rank and one peer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/communicator.h"

namespace cotune {

enum class MessageDirection { send, receive };

struct MessageDescription {
  int32_t rank, peer;
  MessageDirection direction;
  Channel channel;
  int64_t bytes;
  /// `rank 1: receiving 64 bytes (activation) from rank 0`
  std::string text() const;
};

/// A message whose end a MessageQueue tells.
class QueuedTransfer : public SendTransfer {
 public:
  /// aborted: set before abort() ends the messages under way; wait() throws from then on, over or not.
  QueuedTransfer(const MessageDescription& description, std::shared_ptr<const std::atomic<bool>> aborted);
  bool done() override;
  void wait() override;
  double over_s() override;

  void complete();
  /// reason: why the message will never complete.
  void end(const std::string& reason);

 private:
  /// failure: empty where it completed.
  void finish(const std::string& failure);

  const MessageDescription description_;
  const std::shared_ptr<const std::atomic<bool>> aborted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  double over_s_ = 0;
  std::string failure_;  ///< empty where it completed
};

/// Waits for messages in their order, in a thread of its own.
class MessageQueue {
 public:
  MessageQueue();
  /// The messages must be over or about to end: waits for them.
  ~MessageQueue();
  struct Carrier {
    std::function<void()> carry;   ///< returns when the message is over; throws what has ended it
    std::function<void()> cancel;  ///< lets carry, under way or to come, throw soon; from another thread; may be empty
  };
  /// The carrier is dropped when it has carried, with what it holds.
  void add(Carrier carrier, std::shared_ptr<QueuedTransfer> transfer);
  bool idle();
  /// Messages that are not over, and those to come, are cancelled.
  void cancel();

 private:
  struct Message {
    std::shared_ptr<Carrier> carrier;
    std::shared_ptr<QueuedTransfer> transfer;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;  ///< the first is being waited for
  bool closing_ = false, cancelled_ = false;
  std::thread thread_;
};

}  // namespace cotune
