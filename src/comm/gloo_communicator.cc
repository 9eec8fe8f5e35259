#define USE_DISTRIBUTED
#define USE_C10D_GLOO
#include "comm/gloo_communicator.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "comm/collective_works.h"
#include "comm/failure_text.h"
#include "comm/host_buffer.h"
#include "comm/message_queue.h"

namespace cotune {
namespace {

// Tags of messages. On the last one nothing is ever sent.
constexpr int tag_of(Channel channel) {
  return static_cast<int>(channel);
}
constexpr int fuse_tag = 8;

constexpr std::chrono::milliseconds no_time_limit = std::chrono::hours(24 * 365);
/// For Gloo to end by itself what has lost its link, and for ranks to end a collective that one of them has left.
constexpr std::chrono::milliseconds patience_with_gloo = std::chrono::seconds(1);
constexpr std::chrono::milliseconds patience_with_ranks = std::chrono::seconds(10);

/// Once, before the first group. c10d's record of past collectives keeps its table of groups without a lock, which
/// groups of several threads break: it is switched off, by a variable that c10d reads at the first collective. And Gloo
/// writes to closed links, whose signal would end the process instead of the message.
void prepare_process() {
  static const bool prepared = [] {
    setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
    struct sigaction action {};
    if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
    return true;
  }();
  (void)prepared;
}

/// The device with its thread, which moves the bytes of all links. While another thread holds a link to send over it,
/// the device's thread asks for that link again and again; where it had displaced the sender from its core, both waited
/// for the scheduler's next tick: 4 ms for an all_reduce of 0.1 ms, whenever cores are scarce. A batch thread
/// (sched(7)) displaces nobody when it wakes. A thread inherits the policy from the one that creates it.
std::shared_ptr<gloo::transport::Device> yielding_device(const std::string& address) {
  return std::async(std::launch::async,
                    [&] {
                      const sched_param none{};
                      sched_setscheduler(0, SCHED_BATCH, &none);
                      return c10d::ProcessGroupGloo::createDeviceForHostname(address);
                    })
      .get();
}

/// Into memory of a device: what is received, or summed, comes to the host, and wait() copies it.
class TransferToDevice : public Transfer {
 public:
  TransferToDevice(std::shared_ptr<Transfer> arrival, at::Tensor host, at::Tensor buffer)
      : arrival_(std::move(arrival)), host_(std::move(host)), buffer_(std::move(buffer)) {}
  bool done() override { return arrival_->done(); }
  void wait() override {
    arrival_->wait();
    if (!host_.defined()) return;
    buffer_.copy_(host_);
    host_.reset();
  }

 private:
  std::shared_ptr<Transfer> arrival_;
  at::Tensor host_, buffer_;
};

/// Of what has no values.
class NothingToTransfer : public Transfer {
 public:
  bool done() override { return true; }
  void wait() override {}
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(const c10::intrusive_ptr<c10d::Store>& store, int32_t rank, int32_t size, const std::string& address,
                   std::chrono::milliseconds joining_time)
      : rank_(rank), size_(size), aborted_(std::make_shared<std::atomic<bool>>(false)) {
    prepare_process();
    auto options = c10d::ProcessGroupGloo::Options::create(joining_time);
    options->threads = 1;  // of collectives, which are called one after another
    options->devices.push_back(yielding_device(address));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    group_->setTimeout(no_time_limit);
    std::vector<at::Tensor> nothing = {fuse_buffer_};
    for (int32_t peer = 0; peer < size; ++peer) {
      if (peer != rank) fuses_[peer] = group_->recv(nothing, peer, fuse_tag);
    }
  }

  ~GlooCommunicator() override {
    const bool is_busy = std::any_of(queues_.begin(), queues_.end(), [](auto& each) { return !each.second.idle(); });
    if (is_busy || !collectives_.idle() || !watchers_.empty()) abort();
    for (auto& [peer, watcher] : watchers_) watcher.join();
    queues_.clear();
    if (collectives_.wait_until_over(patience_with_gloo)) return;
    // Its thread waits for what never comes (CollectiveWorks), and would be waited for.
    static auto* const stuck = new std::vector<c10::intrusive_ptr<c10d::ProcessGroupGloo>>;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    stuck->push_back(std::move(group_));
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  std::shared_ptr<SendTransfer> send(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    return start(buffer.cpu(), peer, channel, MessageDirection::send);
  }
  std::shared_ptr<Transfer> receive(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    if (buffer.is_cpu()) return start(buffer, peer, channel, MessageDirection::receive);
    at::Tensor host = at::empty(buffer.sizes(), buffer.options().device(at::kCPU));
    std::shared_ptr<Transfer> arrival = start(host, peer, channel, MessageDirection::receive);
    return std::make_shared<TransferToDevice>(std::move(arrival), std::move(host), buffer);
  }

  void all_reduce(at::Tensor& values) override {
    collective("all_reduce", values, [&](std::vector<at::Tensor>& tensors) { return group_->allreduce(tensors); });
  }

  std::shared_ptr<Transfer> start_all_reduce(at::Tensor& values) override {
    COTUNE_CHECK(values.is_contiguous(), "all_reduce of what is not contiguous");
    if (values.numel() == 0) return std::make_shared<NothingToTransfer>();
    std::vector<at::Tensor> tensors = {values.cpu()};
    std::shared_ptr<Transfer> sum =
        start_collective(fmt::format("all_reduce of {} bytes", values.nbytes()), [&] { return group_->allreduce(tensors); });
    if (values.is_cpu()) return sum;
    return std::make_shared<TransferToDevice>(std::move(sum), tensors.front(), values);
  }

  std::shared_ptr<Transfer> start_all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken,
                                             const std::vector<int64_t>& taken_rows) override {
    COTUNE_CHECK(given.is_contiguous() && taken.is_contiguous(), "all_to_all of what is not contiguous");
    at::Tensor from = given.cpu(), to = taken.is_cpu() ? taken : at::empty(taken.sizes(), taken.options().device(at::kCPU));
    std::vector<int64_t> from_rows = given_rows, to_rows = taken_rows;
    std::shared_ptr<Transfer> rows = start_collective(fmt::format("all_to_all of {} bytes", given.nbytes()),
                                                      [&] { return group_->alltoall_base(to, from, to_rows, from_rows); });
    if (taken.is_cpu()) return rows;
    return std::make_shared<TransferToDevice>(std::move(rows), to, taken);
  }

  std::shared_ptr<Transfer> start_all_gather(const at::Tensor& own, at::Tensor& all) override {
    COTUNE_CHECK(own.is_contiguous() && all.is_contiguous(), "all_gather of what is not contiguous");
    if (all.numel() == 0) return std::make_shared<NothingToTransfer>();
    at::Tensor from = own.cpu(), to = all.is_cpu() ? all : at::empty(all.sizes(), all.options().device(at::kCPU));
    std::shared_ptr<Transfer> rows =
        start_collective(fmt::format("all_gather of {} bytes", own.nbytes()), [&] { return group_->_allgather_base(to, from); });
    if (all.is_cpu()) return rows;
    return std::make_shared<TransferToDevice>(std::move(rows), to, all);
  }

  void broadcast(at::Tensor& values, int32_t root) override {
    COTUNE_CHECK(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
    collective("broadcast", values, [&](std::vector<at::Tensor>& tensors) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  void barrier() override {
    start_collective("barrier", [&] { return group_->barrier(); })->wait();
  }

  void settle() override { throw_if_aborted(fmt::format("rank {} of {}", rank_, size_)); }

  void watch_links(std::function<void(int32_t peer)> on_closed) override {
    std::vector<int32_t> closed;
    {
      const std::lock_guard lock(closed_mutex_);
      on_closed_.push_back(on_closed);
      closed = closed_;
    }
    for (const int32_t peer : closed) on_closed(peer);
    watch_all();
  }

  void abort() noexcept override {
    *aborted_ = true;
    collectives_.abort();
    // A wait that runs out of time makes Gloo close all links of the group: waits of messages and collectives end with
    // an error here, and at the peers, which see their links closed. A fuse whose link is closed already ends at once.
    {
      const std::lock_guard lock(abort_mutex_);
      for (auto& [peer, fuse] : fuses_) {
        try {
          fuse->wait(std::chrono::milliseconds(1));
        } catch (...) {
        }
      }
      fuses_.clear();
    }
    {
      const std::lock_guard lock(closed_mutex_);
      changed_.notify_all();
    }
    const std::lock_guard lock(start_mutex_);
    for (auto& [lane, queue] : queues_) queue.cancel();
  }

 private:
  /// From now on what waits for this peer ends soon after its link. start_mutex_ is held.
  void watch(int32_t peer) {
    if (watchers_.contains(peer)) return;
    const std::lock_guard lock(abort_mutex_);
    const auto fuse = fuses_.find(peer);
    if (fuse != fuses_.end()) watchers_.emplace(peer, [this, peer, fuse = fuse->second] { wait_for_end_of(peer, *fuse); });
  }
  void watch_all() {
    if (std::exchange(all_are_watched_, true)) return;
    const std::lock_guard lock(start_mutex_);
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) watch(peer);
    }
  }

  /// On a thread of its own. What Gloo has not ended some time after the link will not end by itself.
  void wait_for_end_of(int32_t peer, c10d::Work& fuse) {
    try {
      fuse.wait(no_time_limit);
    } catch (...) {
    }
    if (*aborted_) return;
    std::vector<std::function<void(int32_t)>> told;
    {
      const std::lock_guard lock(closed_mutex_);
      closed_.push_back(peer);
      told = on_closed_;
    }
    for (const auto& on_closed : told) on_closed(peer);
    if (!stays_for(patience_with_gloo)) return;
    {
      const std::lock_guard lock(start_mutex_);
      lost_.insert(peer);
      for (auto& [lane, queue] : queues_) {
        if (std::get<0>(lane) == peer) queue.cancel();
      }
    }
    // A rank that has left a barrier may be gone while others still hear of it from each other.
    if (size_ > 2 && !stays_for(patience_with_ranks)) return;
    collectives_.lose(closed_text(peer));
  }
  /// False where abort() is called meanwhile.
  bool stays_for(std::chrono::milliseconds time) {
    std::unique_lock lock(closed_mutex_);
    return !changed_.wait_for(lock, time, [this] { return aborted_->load(); });
  }
  static std::string closed_text(int32_t peer) { return fmt::format("the link to rank {} has closed", peer); }

  std::shared_ptr<QueuedTransfer> start(const at::Tensor& buffer, int32_t peer, Channel channel, MessageDirection direction) {
    COTUNE_CHECK(peer >= 0 && peer < size_ && peer != rank_, "peer {} of rank {} of {}", peer, rank_, size_);
    COTUNE_CHECK(buffer.is_contiguous(), "a message that is not contiguous");
    const MessageDescription description{rank_, peer, direction, channel, static_cast<int64_t>(buffer.nbytes())};
    std::vector<at::Tensor> tensors = {buffer};
    c10::intrusive_ptr<c10d::Work> work;
    const std::lock_guard lock(start_mutex_);
    if (*aborted_) throw CommunicationEnded(ended_text(description.text(), own_abort_text));
    if (lost_.contains(peer)) throw CommunicationEnded(ended_text(description.text(), closed_text(peer)));
    try {
      work = direction == MessageDirection::send ? group_->send(tensors, peer, tag_of(channel))
                                          : group_->recv(tensors, peer, tag_of(channel));
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description.text(), *aborted_ ? own_abort_text : failure_text(error)));
    }
    auto transfer = std::make_shared<QueuedTransfer>(description, aborted_);
    // Works of Gloo cannot be asked whether they are done (isCompleted is false until somebody has waited), and are lost when dropped
    // before that. Their own time limit is that of joining.
    queues_[{peer, channel, direction}].add({.carry =
                                                 [work, peer] {
                                                   if (!work->wait(no_time_limit)) throw std::runtime_error(closed_text(peer));
                                                 },
                                             .cancel = [work] { work->abort(); }},
                                            transfer);
    watch(peer);
    return transfer;
  }

  template <typename Begin>
  std::shared_ptr<Transfer> start_collective(const std::string& what, Begin begin) {
    const std::string description = fmt::format("rank {}: {} of {} ranks", rank_, what, size_);
    throw_if_aborted(description);
    watch_all();
    try {
      return collectives_.add(begin(), description);
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description, *aborted_ ? own_abort_text : failure_text(error)));
    }
  }

  template <typename Begin>
  void collective(const char* name, at::Tensor& values, Begin begin) {
    COTUNE_CHECK(values.is_contiguous(), "{} of what is not contiguous", name);
    if (values.numel() == 0) return;
    std::vector<at::Tensor> tensors = {values.cpu()};
    start_collective(fmt::format("{} of {} bytes", name, values.nbytes()), [&] { return begin(tensors); })->wait();
    if (!values.is_cpu()) values.copy_(tensors.front());
  }

  void throw_if_aborted(const std::string& description) const {
    if (*aborted_) throw CommunicationEnded(ended_text(description, own_abort_text));
  }

  const int32_t rank_, size_;
  const std::shared_ptr<std::atomic<bool>> aborted_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const at::Tensor fuse_buffer_ = host_buffer({1}, at::kByte);  // groups are made where memory has run out, too
  CollectiveWorks collectives_;
  std::mutex abort_mutex_, start_mutex_;  ///< of fuses_; of queues_ and watchers_. Where both are taken, start_mutex_ comes first
  std::map<int32_t, c10::intrusive_ptr<c10d::Work>> fuses_;  ///< by peer: a receive of what nobody ever sends
  std::map<int32_t, std::thread> watchers_;                  ///< by peer: of those that something was begun with
  bool all_are_watched_ = false;
  std::set<int32_t> lost_;  ///< peers; with start_mutex_
  std::mutex closed_mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> closed_;  ///< peers
  std::vector<std::function<void(int32_t peer)>> on_closed_;  ///< of all who watch; with closed_mutex_
  std::map<std::tuple<int32_t, Channel, MessageDirection>, MessageQueue> queues_;
};

}  // namespace

std::unique_ptr<Communicator> gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store, int32_t rank,
                                                int32_t size, const std::string& address,
                                                std::chrono::milliseconds joining_time) {
  return std::make_unique<GlooCommunicator>(store, rank, size, address, joining_time);
}

}  // namespace cotune
