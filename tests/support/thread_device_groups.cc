#include "support/thread_device_groups.h"

#include <ATen/ATen.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace cotune::testing {
namespace {

std::mutex text_mutex;
std::string failure_of_all;
std::atomic<bool> is_held = false;
std::atomic<int64_t> begun = 0;

/// Where the ranks of a group meet. What each brings, on the host, by rank.
struct Room {
  std::mutex mutex;
  std::condition_variable changed;
  int32_t joined = 0;
  std::map<int64_t, std::map<int32_t, at::Tensor>> brought;                                   ///< by number of the collective
  std::map<int64_t, std::map<int32_t, std::vector<int64_t>>> rows;                            ///< the same, of an all_to_all
  std::map<std::tuple<int32_t, int32_t, int64_t>, std::pair<at::Tensor, bool>> messages;      ///< from, to, number; whether it was taken
};

std::shared_ptr<Room> room_of(const at::Tensor& id) {
  static std::mutex mutex;
  static std::map<uint64_t, std::shared_ptr<Room>> rooms;
  uint64_t key = 0;
  std::memcpy(&key, id.const_data_ptr<uint8_t>(), sizeof(key));
  const std::lock_guard lock(mutex);
  std::shared_ptr<Room>& room = rooms[key];
  if (room == nullptr) room = std::make_shared<Room>();
  return room;
}

struct Done {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  void set() {
    const std::lock_guard lock(mutex);
    is_done = true;
    changed.notify_all();
  }
};

class ThreadMark : public DeviceMark {
 public:
  explicit ThreadMark(std::shared_ptr<Done> done) : done_(std::move(done)) {}
  bool reached() override {
    const std::lock_guard lock(done_->mutex);
    return done_->is_done;
  }
  /// The device's operators wait for nothing, so what comes after must.
  void order_after() override {
    std::unique_lock lock(done_->mutex);
    done_->changed.wait(lock, [&] { return done_->is_done; });
  }

 private:
  std::shared_ptr<Done> done_;
};

class NowMark : public DeviceMark {
 public:
  bool reached() override { return !is_held; }
  void order_after() override {}
};

class ThreadGroup : public DeviceGroup {
 public:
  ThreadGroup(std::shared_ptr<Room> room, int32_t rank, int32_t size)
      : room_(std::move(room)), rank_(rank), size_(size), thread_([this] { run(); }) {}
  ~ThreadGroup() override {
    abort();
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  Mark all_reduce(at::Tensor& values) override {
    return collective(values, {}, [this, values](const std::map<int32_t, at::Tensor>& all, const auto&) mutable {
      at::Tensor sum = all.at(0).clone();
      for (int32_t rank = 1; rank < size_; ++rank) sum += all.at(rank);
      values.copy_(sum);
    });
  }
  Mark all_gather(const at::Tensor& own, at::Tensor& all) override {
    return collective(own, {}, [this, all](const std::map<int32_t, at::Tensor>& each, const auto&) mutable {
      std::vector<at::Tensor> parts;
      for (int32_t rank = 0; rank < size_; ++rank) parts.push_back(each.at(rank));
      all.copy_(at::cat(parts).view(all.sizes()));
    });
  }
  Mark all_to_all(const at::Tensor& given, const std::vector<int64_t>& given_rows, at::Tensor& taken, const std::vector<int64_t>&) override {
    return collective(given, given_rows, [this, taken](const std::map<int32_t, at::Tensor>& all, const auto& rows) mutable {
      std::vector<at::Tensor> parts;
      for (int32_t rank = 0; rank < size_; ++rank) {
        int64_t begin = 0;
        for (int32_t before = 0; before < rank_; ++before) begin += rows.at(rank)[static_cast<size_t>(before)];
        parts.push_back(all.at(rank).narrow(0, begin, rows.at(rank)[static_cast<size_t>(rank_)]));
      }
      if (taken.numel() > 0) taken.copy_(at::cat(parts));
    });
  }
  Mark broadcast(at::Tensor& values, int32_t root) override {
    return collective(values, {}, [values, root](const std::map<int32_t, at::Tensor>& all, const auto&) mutable { values.copy_(all.at(root)); });
  }
  Mark send(const at::Tensor& buffer, int32_t peer) override {
    const int64_t number = sent_[peer]++;
    return later([this, buffer, peer, number] {
      ++begun;
      const std::tuple key{rank_, peer, number};
      std::unique_lock lock(room_->mutex);
      room_->messages[key] = {buffer.cpu(), false};
      room_->changed.notify_all();
      room_->changed.wait(lock, [&] { return aborted_ || room_->messages.at(key).second; });
      room_->messages.erase(key);
    });
  }
  Mark receive(const at::Tensor& buffer, int32_t peer) override {
    const int64_t number = received_[peer]++;
    return later([this, buffer, peer, number] {
      ++begun;
      const std::tuple key{peer, rank_, number};
      std::unique_lock lock(room_->mutex);
      room_->changed.wait(lock, [&] { return aborted_ || room_->messages.contains(key); });
      if (aborted_) return;
      auto& [values, is_taken] = room_->messages.at(key);
      const at::Tensor arrived = values;
      is_taken = true;
      room_->changed.notify_all();
      lock.unlock();
      buffer.copy_(arrived);
    });
  }
  void abort() noexcept override {
    aborted_ = true;
    const std::lock_guard lock(room_->mutex);
    room_->changed.notify_all();
  }
  std::string failure() override {
    const std::lock_guard lock(text_mutex);
    return failure_of_all;
  }

 private:
  using Rows = std::map<int32_t, std::vector<int64_t>>;
  template <typename Finish>
  Mark collective(const at::Tensor& own, const std::vector<int64_t>& rows, Finish finish) {
    const int64_t number = collectives_++;
    return later([this, own, rows, finish, number]() mutable {
      std::unique_lock lock(room_->mutex);
      room_->brought[number][rank_] = own.cpu();
      room_->rows[number][rank_] = rows;
      room_->changed.notify_all();
      room_->changed.wait(lock, [&] { return aborted_ || room_->brought[number].size() == static_cast<size_t>(size_); });
      if (room_->brought[number].size() < static_cast<size_t>(size_)) return;
      const std::map<int32_t, at::Tensor> all = room_->brought[number];
      const Rows all_rows = room_->rows[number];
      lock.unlock();
      finish(all, all_rows);
    });
  }
  Mark later(std::function<void()> work) {
    auto done = std::make_shared<Done>();
    const std::lock_guard lock(mutex_);
    work_.push_back([work = std::move(work), done] {
      work();
      done->set();
    });
    changed_.notify_all();
    return std::make_unique<ThreadMark>(done);
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !work_.empty(); });
      if (work_.empty()) return;
      const std::function<void()> next = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      next();
      lock.lock();
    }
  }

  std::shared_ptr<Room> room_;
  const int32_t rank_, size_;
  std::map<int32_t, int64_t> sent_, received_;
  int64_t collectives_ = 0;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

at::Tensor ThreadDeviceGroups::new_id() {
  static std::atomic<uint64_t> count = 0;
  const uint64_t key = ++count;
  at::Tensor id = at::zeros({id_bytes}, at::kByte);
  std::memcpy(id.mutable_data_ptr<uint8_t>(), &key, sizeof(key));
  return id;
}

std::unique_ptr<DeviceGroup> ThreadDeviceGroups::join(const at::Tensor& id, int32_t rank, int32_t size, at::Device,
                                                      const std::function<bool()>& given_up) {
  const std::shared_ptr<Room> room = room_of(id);
  std::unique_lock lock(room->mutex);
  ++room->joined;
  room->changed.notify_all();
  while (!room->changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return room->joined == size; })) {
    if (given_up()) throw std::runtime_error("given up");
  }
  lock.unlock();
  return std::make_unique<ThreadGroup>(room, rank, size);
}

std::unique_ptr<DeviceMark> ThreadDeviceGroups::mark(at::Device) { return std::make_unique<NowMark>(); }

int64_t ThreadDeviceGroups::messages_begun() const { return begun; }
void ThreadDeviceGroups::hold(bool held) { is_held = held; }
void ThreadDeviceGroups::fail(const std::string& text) {
  const std::lock_guard lock(text_mutex);
  failure_of_all = text;
}

ThreadDeviceGroups& ThreadDeviceGroups::instance() {
  static auto* const groups = new ThreadDeviceGroups;
  return *groups;
}

}  // namespace cotune::testing
