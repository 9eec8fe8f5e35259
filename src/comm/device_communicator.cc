#include "comm/device_communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/failure_text.h"
#include "comm/host_buffer.h"
#include "comm/message_queue.h"

namespace cotune {
namespace {

Channel signal_of(Channel channel) {
  switch (channel) {
    case Channel::activation: return Channel::activation_signal;
    case Channel::error: return Channel::error_signal;
    case Channel::question: return Channel::question_signal;
    case Channel::weights: return Channel::weights_signal;
    default: break;
  }
  COTUNE_CHECK(false, "a message of the communicators' own kind");
}

/// What the threads of a communicator share.
class Life {
 public:
  /// From any thread, also while a group is being made.
  void add(const std::shared_ptr<DeviceGroup>& group) {
    {
      const std::lock_guard lock(mutex_);
      groups_.push_back(group);
    }
    if (ended_) group->abort();
  }
  /// reason: of the first end. Ends what is under way on this rank's device.
  void end(const std::string& reason) {
    std::vector<std::shared_ptr<DeviceGroup>> groups;
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) reason_ = reason;
      ended_ = true;
      groups = groups_;
    }
    for (const std::shared_ptr<DeviceGroup>& group : groups) group->abort();
  }
  bool ended() const { return own_abort || ended_; }
  /// Once ended.
  std::string reason() const {
    if (own_abort) return own_abort_text;
    const std::lock_guard lock(mutex_);
    return reason_;
  }
  /// For this rank's transfers: after its own abort() none is trusted.
  std::atomic<bool> own_abort = false;

 private:
  std::atomic<bool> ended_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
  std::vector<std::shared_ptr<DeviceGroup>> groups_;  ///< all that were made
};

/// Until the device has come to the mark. group: whose it is; nullptr: of no group. Throws what a transfer ends with.
void wait_until_reached(DeviceMark& mark, DeviceGroup* group, Life& life) {
  constexpr std::chrono::microseconds shortest{5}, longest{100};
  std::chrono::microseconds pause = shortest;
  const auto check = [&] {
    if (life.ended()) throw std::runtime_error(life.reason());
    if (group == nullptr) return;
    if (const std::string failure = group->failure(); !failure.empty()) {
      life.end(failure);
      throw std::runtime_error(failure);
    }
  };
  while (!mark.reached()) {
    check();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, longest);
  }
  check();
}

/// Of a message that has been broken off: until the device no longer touches the buffer, whose memory others take then. Where it
/// never stops the buffer stays.
void keep_while_in_use(const at::Tensor& buffer, DeviceMark& mark) {
  constexpr std::chrono::milliseconds pause{1};
  constexpr int most = 10000;
  try {
    for (int i = 0; i < most; ++i) {
      if (mark.reached()) return;
      std::this_thread::sleep_for(pause);
    }
  } catch (const std::exception&) {  // the device has failed
  }
  [[maybe_unused]] auto* const kept = new at::Tensor(buffer);
}

/// A collective that the device has been told of.
class DeviceCollective : public Transfer {
 public:
  DeviceCollective(DeviceGroup::Mark mark, std::vector<at::Tensor> tensors, std::string description, std::shared_ptr<const Life> life)
      : mark_(std::move(mark)), tensors_(std::move(tensors)), description_(std::move(description)), life_(std::move(life)) {}
  /// What takes the tensors' memory next comes after it.
  ~DeviceCollective() override {
    try {
      if (mark_ != nullptr) mark_->order_after();
    } catch (const std::exception&) {  // the device has failed: whatever is asked of it next says so
    }
  }
  bool done() override { return true; }  // wait() does not wait
  void wait() override {
    if (life_->ended()) throw CommunicationEnded(ended_text(description_, life_->reason()));
    if (mark_ == nullptr) return;
    mark_->order_after();
    mark_.reset();
    tensors_.clear();
  }

 private:
  DeviceGroup::Mark mark_;
  std::vector<at::Tensor> tensors_;
  const std::string description_;
  const std::shared_ptr<const Life> life_;
};

class DeviceCommunicator : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<Communicator> host, DeviceGroups& groups, at::Device device)
      : groups_(groups), device_(device), host_(std::move(host)) {
    // A device would wait for ever for a rank that is gone.
    host_->watch_links([life = life_](int32_t peer) { life->end(fmt::format("the link to rank {} has closed", peer)); });
  }

  ~DeviceCommunicator() override {
    const bool is_busy = std::ranges::any_of(lanes_, [](auto& each) { return !each.second.queue.idle(); });
    if (is_busy) abort();
  }

  int32_t rank() const override { return host_->rank(); }
  int32_t size() const override { return host_->size(); }

  std::shared_ptr<SendTransfer> send(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    if (buffer.is_cpu()) return host_->send(buffer, peer, channel);
    return start(buffer, peer, channel, MessageDirection::send);
  }
  std::shared_ptr<Transfer> receive(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    if (buffer.is_cpu()) return host_->receive(buffer, peer, channel);
    return start(buffer, peer, channel, MessageDirection::receive);
  }

  void all_reduce(at::Tensor& values) override {
    if (values.is_cpu()) return host_->all_reduce(values);
    start_all_reduce(values)->wait();
  }

  std::shared_ptr<Transfer> start_all_reduce(at::Tensor& values) override {
    if (values.is_cpu()) return host_->start_all_reduce(values);
    COTUNE_CHECK(values.is_contiguous(), "all_reduce of what is not contiguous");
    return start_collective("all_reduce", {values}, [&](DeviceGroup& group) { return group.all_reduce(values); });
  }

  std::shared_ptr<Transfer> start_all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                                             const std::vector<int64_t>& taken_rows) override {
    if (given.is_cpu()) return host_->start_all_to_all(given, given_rows, taken, taken_rows);
    COTUNE_CHECK(given.is_contiguous() && taken.is_contiguous(), "all_to_all of what is not contiguous");
    return start_collective("all_to_all", {given, taken},
                            [&](DeviceGroup& group) { return group.all_to_all(given, given_rows, taken, taken_rows); });
  }

  std::shared_ptr<Transfer> start_all_gather(const at::Tensor& own, at::Tensor& all) override {
    if (own.is_cpu()) return host_->start_all_gather(own, all);
    COTUNE_CHECK(own.is_contiguous() && all.is_contiguous(), "all_gather of what is not contiguous");
    return start_collective("all_gather", {own, all}, [&](DeviceGroup& group) { return group.all_gather(own, all); });
  }

  void broadcast(at::Tensor& values, int32_t root) override {
    if (values.is_cpu()) return host_->broadcast(values, root);
    COTUNE_CHECK(values.is_contiguous(), "broadcast of what is not contiguous");
    COTUNE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
    start_collective("broadcast", {values}, [&](DeviceGroup& group) { return group.broadcast(values, root); })->wait();
  }

  void barrier() override { host_->barrier(); }

  void settle() override {
    const std::string description = fmt::format("rank {}: collectives of {} ranks", rank(), size());
    throw_if_ended(description);
    if (collectives_ == nullptr) return;
    try {
      wait_until_reached(*groups_.mark(device_), collectives_.get(), *life_);
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description, failure_text(error)));
    }
    // Here all has gone well; so it has where every rank says so, and none has ended the group.
    host_->barrier();
    throw_if_ended(description);
  }

  void watch_links(std::function<void(int32_t peer)> on_closed) override {
    host_->watch_links(std::move(on_closed));
  }

  void abort() noexcept override {
    life_->own_abort = true;
    host_->abort();  // first: peers are to know before what they have with this device ends as though it had gone well
    life_->end(own_abort_text);
  }

 private:
  /// Of one peer, channel and direction.
  struct Lane {
    std::shared_ptr<DeviceGroup> group;  ///< the queue's thread alone uses it; nullptr before the first message
    MessageQueue queue;                  ///< last: its thread ends first
  };

  std::shared_ptr<QueuedTransfer> start(const at::Tensor& buffer, int32_t peer, Channel channel, MessageDirection direction) {
    COTUNE_CHECK(peer >= 0 && peer < size() && peer != rank(), "peer {} of rank {} of {}", peer, rank(), size());
    COTUNE_CHECK(buffer.is_contiguous(), "a message that is not contiguous");
    const Channel signal = signal_of(channel);
    const MessageDescription description{rank(), peer, direction, channel, static_cast<int64_t>(buffer.nbytes())};
    throw_if_ended(description.text());
    auto transfer = std::make_shared<QueuedTransfer>(description, std::shared_ptr<const std::atomic<bool>>(life_, &life_->own_abort));
    // What this thread has given the device: the data of a send; of a receive what has used the buffer's memory before.
    std::shared_ptr<DeviceMark> before = groups_.mark(device_);
    const std::lock_guard lock(start_mutex_);
    Lane& lane = lanes_[{peer, channel, direction}];
    // What it waits for ends with life_ and host_.
    lane.queue.add({.carry = [this, &lane, buffer, peer, signal, direction,
                              before] { carry(lane, buffer, peer, signal, direction, *before); },
                    .cancel = {}},
                   transfer);
    return transfer;
  }

  /// On the lane's thread: tells the peer that this end is ready, waits for its word, and for the message.
  void carry(Lane& lane, const at::Tensor& buffer, int32_t peer, Channel signal, MessageDirection direction, DeviceMark& before) {
    wait_until_reached(before, nullptr, *life_);
    const bool is_first = lane.group == nullptr, sends = direction == MessageDirection::send;
    const at::Tensor word = is_first ? (sends ? groups_.new_id() : host_buffer({DeviceGroups::id_bytes}, at::kByte))
                                     : host_buffer({1}, at::kByte);
    (sends ? host_->send(word, peer, signal) : host_->receive(word, peer, signal))->wait();  // a send's ends when its receive is posted
    if (is_first) {
      lane.group = join(word, sends ? 0 : 1, 2);  // 0 sends to 1
    }
    if (buffer.numel() == 0) return;
    const DeviceGroup::Mark done = sends ? lane.group->send(buffer, 1) : lane.group->receive(buffer, 0);
    try {
      wait_until_reached(*done, lane.group.get(), *life_);
      // It is what was sent if the sender's device says so: one that is stopped leaves the other with anything.
      const at::Tensor sound = host_buffer({1}, at::kByte);
      (sends ? host_->send(sound, peer, signal) : host_->receive(sound, peer, signal))->wait();
    } catch (...) {
      life_->end("a message has been broken off");
      keep_while_in_use(buffer, *done);
      throw;
    }
  }

  std::shared_ptr<DeviceGroup> join(const at::Tensor& id, int32_t rank_in, int32_t count) {
    try {
      std::shared_ptr<DeviceGroup> group = groups_.join(id, rank_in, count, device_, [this] { return life_->ended(); });
      life_->add(group);
      return group;
    } catch (const std::exception& error) {
      const std::string text = fmt::format("{} (COTUNE_GPU_MESSAGES=host does without)", failure_text(error));
      life_->end(text);
      throw SystemError(fmt::format("rank {} cannot join a group of GPUs: {}", rank(), text));
    }
  }

  /// Made by all ranks at their first collective of a device.
  DeviceGroup& collectives() {
    if (collectives_ == nullptr) {
      at::Tensor id = rank() == 0 ? groups_.new_id() : host_buffer({DeviceGroups::id_bytes}, at::kByte);
      host_->broadcast(id, 0);
      collectives_ = join(id, rank(), size());
    }
    return *collectives_;
  }

  /// begin(group): the mark of the collective.
  template <typename Begin>
  std::shared_ptr<Transfer> start_collective(const char* name, std::vector<at::Tensor> tensors, Begin begin) {
    std::string description = fmt::format("rank {}: {} of {} bytes of {} ranks", rank(), name, tensors.front().nbytes(), size());
    throw_if_ended(description);
    DeviceGroup& group = collectives();
    try {
      return std::make_shared<DeviceCollective>(begin(group), std::move(tensors), description, life_);
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description, life_->ended() ? life_->reason() : failure_text(error)));
    }
  }

  void throw_if_ended(const std::string& description) const {
    if (life_->ended()) throw CommunicationEnded(ended_text(description, life_->reason()));
  }

  DeviceGroups& groups_;
  const at::Device device_;
  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
  const std::unique_ptr<Communicator> host_;
  std::shared_ptr<DeviceGroup> collectives_;
  std::mutex start_mutex_;  ///< of lanes_
  std::map<std::tuple<int32_t, Channel, MessageDirection>, Lane> lanes_;  ///< last: their threads use the others
};

}  // namespace

std::unique_ptr<Communicator> device_communicator(std::unique_ptr<Communicator> host, DeviceGroups& groups, c10::Device device) {
  return std::make_unique<DeviceCommunicator>(std::move(host), groups, device);
}

}  // namespace cotune
