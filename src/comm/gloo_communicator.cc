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
#include <thread>
#include <tuple>

#include "base/error.h"
#include "comm/failure_text.h"
#include "comm/host_buffer.h"
#include "comm/message_queue.h"

namespace cotune {
namespace {

// Tags of messages. On the last one nothing is ever sent.
constexpr int tag_of(Channel channel) {
  return static_cast<int>(channel);
}
constexpr int fuse_tag = 4;

constexpr std::chrono::milliseconds no_time_limit = std::chrono::hours(24 * 365);

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

/// A collective that runs on the group's thread. under_way counts those that nobody has waited for.
class StartedCollective : public Transfer {
 public:
  StartedCollective(c10::intrusive_ptr<c10d::Work> work, std::string description, std::shared_ptr<const std::atomic<bool>> aborted,
                    std::shared_ptr<std::atomic<int64_t>> under_way)
      : work_(std::move(work)), description_(std::move(description)), aborted_(std::move(aborted)), under_way_(std::move(under_way)) {
    ++*under_way_;
  }
  bool done() override { return work_ == nullptr || *aborted_ || work_->isCompleted(); }
  void wait() override {
    if (work_ == nullptr) return;
    try {
      work_->wait();
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description_, *aborted_ ? own_abort_text : failure_text(error)));
    }
    if (*aborted_) throw CommunicationEnded(ended_text(description_, own_abort_text));
    work_.reset();
    --*under_way_;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  const std::string description_;
  const std::shared_ptr<const std::atomic<bool>> aborted_;
  const std::shared_ptr<std::atomic<int64_t>> under_way_;
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
    if (is_busy || *under_way_ > 0 || !watchers_.empty()) abort();
    for (std::thread& watcher : watchers_) watcher.join();
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  std::shared_ptr<Transfer> send(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    return start(buffer.cpu(), peer, channel, Direction::send);
  }
  std::shared_ptr<Transfer> receive(const at::Tensor& buffer, int32_t peer, Channel channel) override {
    if (buffer.is_cpu()) return start(buffer, peer, channel, Direction::receive);
    at::Tensor host = at::empty(buffer.sizes(), buffer.options().device(at::kCPU));
    std::shared_ptr<Transfer> arrival = start(host, peer, channel, Direction::receive);
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
    run("barrier", [&] { return group_->barrier(); });
  }

  void watch_links(std::function<void(int32_t peer)> on_closed) override {
    COTUNE_CHECK(watchers_.empty(), "the links of rank {} are watched already", rank_);
    const std::lock_guard lock(abort_mutex_);
    for (const auto& [peer, fuse] : fuses_) {
      watchers_.emplace_back([peer = peer, fuse = fuse, on_closed, aborted = aborted_] {
        try {
          fuse->wait(no_time_limit);
        } catch (...) {
        }
        if (!*aborted) on_closed(peer);
      });
    }
  }

  void abort() noexcept override {
    *aborted_ = true;
    // A wait that runs out of time makes Gloo close all links of the group: waits of messages and collectives end with
    // an error here, and at the peers, which see their links closed. A fuse whose link is closed already ends at once.
    std::lock_guard lock(abort_mutex_);
    for (auto& [peer, fuse] : fuses_) {
      try {
        fuse->wait(std::chrono::milliseconds(1));
      } catch (...) {
      }
    }
    fuses_.clear();
  }

 private:
  std::shared_ptr<Transfer> start(const at::Tensor& buffer, int32_t peer, Channel channel, Direction direction) {
    COTUNE_CHECK(peer >= 0 && peer < size_ && peer != rank_, "peer {} of rank {} of {}", peer, rank_, size_);
    COTUNE_CHECK(buffer.is_contiguous(), "a message that is not contiguous");
    const MessageDescription description{rank_, peer, direction, channel, static_cast<int64_t>(buffer.nbytes())};
    if (*aborted_) throw CommunicationEnded(ended_text(description.text(), own_abort_text));
    std::vector<at::Tensor> tensors = {buffer};
    c10::intrusive_ptr<c10d::Work> work;
    const std::lock_guard lock(start_mutex_);
    try {
      work = direction == Direction::send ? group_->send(tensors, peer, tag_of(channel))
                                          : group_->recv(tensors, peer, tag_of(channel));
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description.text(), *aborted_ ? own_abort_text : failure_text(error)));
    }
    auto transfer = std::make_shared<QueuedTransfer>(description, aborted_);
    queues_[{peer, channel, direction}].add(std::move(work), transfer);
    return transfer;
  }

  template <typename Begin>
  std::shared_ptr<Transfer> start_collective(const std::string& what, Begin begin) {
    const std::string description = fmt::format("rank {}: {} of {} ranks", rank_, what, size_);
    throw_if_aborted(description);
    try {
      return std::make_shared<StartedCollective>(begin(), description, aborted_, under_way_);
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description, *aborted_ ? own_abort_text : failure_text(error)));
    }
  }

  template <typename Begin>
  void collective(const char* name, at::Tensor& values, Begin begin) {
    COTUNE_CHECK(values.is_contiguous(), "{} of what is not contiguous", name);
    if (values.numel() == 0) return;
    std::vector<at::Tensor> tensors = {values.cpu()};
    run(fmt::format("{} of {} bytes", name, values.nbytes()), [&] { return begin(tensors); });
    if (!values.is_cpu()) values.copy_(tensors.front());
  }

  template <typename Begin>
  void run(const std::string& what, Begin begin) {
    const std::string description = fmt::format("rank {}: {} of {} ranks", rank_, what, size_);
    throw_if_aborted(description);
    try {
      begin()->wait();
    } catch (const std::exception& error) {
      throw CommunicationEnded(ended_text(description, *aborted_ ? own_abort_text : failure_text(error)));
    }
    throw_if_aborted(description);
  }

  void throw_if_aborted(const std::string& description) const {
    if (*aborted_) throw CommunicationEnded(ended_text(description, own_abort_text));
  }

  const int32_t rank_, size_;
  const std::shared_ptr<std::atomic<bool>> aborted_;
  const std::shared_ptr<std::atomic<int64_t>> under_way_ = std::make_shared<std::atomic<int64_t>>(0);
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const at::Tensor fuse_buffer_ = host_buffer({1}, at::kByte);  // groups are made where memory has run out, too
  std::mutex abort_mutex_, start_mutex_;
  std::map<int32_t, c10::intrusive_ptr<c10d::Work>> fuses_;  ///< by peer: a receive of what nobody ever sends
  std::vector<std::thread> watchers_;
  std::map<std::tuple<int32_t, Channel, Direction>, MessageQueue> queues_;
};

}  // namespace

std::unique_ptr<Communicator> gloo_communicator(const c10::intrusive_ptr<c10d::Store>& store, int32_t rank,
                                                int32_t size, const std::string& address,
                                                std::chrono::milliseconds joining_time) {
  return std::make_unique<GlooCommunicator>(store, rank, size, address, joining_time);
}

}  // namespace cotune
