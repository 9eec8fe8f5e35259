#include "comm/message_queue.h"

#include <fmt/format.h>

#include "base/steady_seconds.h"
#include "comm/failure_text.h"

namespace cotune {

std::string MessageDescription::text() const {
  const bool sends = direction == MessageDirection::send;
  return fmt::format("rank {}: {} {} bytes ({}) {} rank {}", rank, sends ? "sending" : "receiving", bytes,
                     to_string(channel), sends ? "to" : "from", peer);
}

std::string to_string(Channel channel) {
  switch (channel) {
    case Channel::activation: return "activation";
    case Channel::error: return "error";
    case Channel::question: return "question";
    case Channel::weights: return "weights";
    case Channel::activation_signal: return "signal of an activation";
    case Channel::error_signal: return "signal of an error";
    case Channel::question_signal: return "signal of a question";
    case Channel::weights_signal: return "signal of weights";
  }
  return "";
}

QueuedTransfer::QueuedTransfer(const MessageDescription& description, std::shared_ptr<const std::atomic<bool>> aborted)
    : description_(description), aborted_(std::move(aborted)) {}

bool QueuedTransfer::done() {
  std::lock_guard lock(mutex_);
  return over_ || *aborted_;
}

void QueuedTransfer::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return over_; });
  if (*aborted_) throw CommunicationEnded(ended_text(description_.text(), own_abort_text));
  if (!failure_.empty()) throw CommunicationEnded(ended_text(description_.text(), failure_));
}

double QueuedTransfer::over_s() {
  std::lock_guard lock(mutex_);
  return over_s_;
}

void QueuedTransfer::complete() { finish(""); }
void QueuedTransfer::end(const std::string& reason) { finish(reason); }

void QueuedTransfer::finish(const std::string& failure) {
  std::lock_guard lock(mutex_);
  over_ = true;
  over_s_ = steady_seconds();
  failure_ = failure;
  changed_.notify_all();
}

MessageQueue::MessageQueue() : thread_([this] { run(); }) {}

MessageQueue::~MessageQueue() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void MessageQueue::add(Carrier carrier, std::shared_ptr<QueuedTransfer> transfer) {
  std::lock_guard lock(mutex_);
  if (cancelled_ && carrier.cancel) carrier.cancel();
  messages_.push_back({std::make_shared<Carrier>(std::move(carrier)), std::move(transfer)});
  changed_.notify_all();
}

bool MessageQueue::idle() {
  std::lock_guard lock(mutex_);
  return messages_.empty();
}

void MessageQueue::cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (const Message& message : messages_) {
    if (message.carrier->cancel) message.carrier->cancel();
  }
}

void MessageQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || !messages_.empty(); });
    if (messages_.empty()) return;
    Message message = messages_.front();
    lock.unlock();
    std::string failure;
    try {
      message.carrier->carry();
    } catch (const std::exception& error) {
      failure = failure_text(error);
    }
    message.carrier.reset();
    lock.lock();
    messages_.pop_front();  // with the last hold of the buffer, unless somebody keeps the transfer
    failure.empty() ? message.transfer->complete() : message.transfer->end(failure);
  }
}

}  // namespace cotune
