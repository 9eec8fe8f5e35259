/// Work that several threads do, with results in the order in which it was given.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace cotune {

/// For one thread that gives and takes. Threads start with the first work; the destructor leaves work that no thread has begun undone.
template <typename Work, typename Result>
class OrderedWork {
 public:
  /// `make` is called on several threads at once.
  OrderedWork(int threads, std::function<Result(Work&)> make) : thread_count_(threads), make_(std::move(make)) {}
  ~OrderedWork() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;

  void give(Work work) {
    {
      const std::lock_guard lock(mutex_);
      items_.emplace_back().work = std::move(work);
    }
    has_work_.notify_one();
    start_threads();
  }

  /// Given, and not taken yet.
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

  /// The result of the oldest work, when it is done; throws what `make` threw. count() > 0.
  Result take() {
    std::unique_lock lock(mutex_);
    COTUNE_CHECK(!items_.empty());
    has_result_.wait(lock, [this] { return items_.front().is_done; });
    Item item = std::move(items_.front());
    items_.pop_front();
    --begun_;
    lock.unlock();
    if (item.failure) std::rethrow_exception(item.failure);
    return std::move(item.result);
  }

 private:
  struct Item {
    Work work;
    Result result;
    std::exception_ptr failure;
    bool is_done = false;
  };

  /// Fewer where the system has no more; at least one.
  void start_threads() {
    while (static_cast<int>(threads_.size()) < thread_count_) {
      try {
        threads_.emplace_back([this] { run(); });
      } catch (const std::system_error&) {
        if (threads_.empty()) throw;
        thread_count_ = static_cast<int>(threads_.size());
      }
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return ends_ || begun_ < items_.size(); });
      if (ends_) return;
      Item& item = items_[begun_++];  // stays where it is: a deque changes at its ends only
      lock.unlock();
      try {
        item.result = make_(item.work);
      } catch (...) {
        item.failure = std::current_exception();
      }
      lock.lock();
      item.is_done = true;
      has_result_.notify_one();
    }
  }

  int thread_count_;
  std::function<Result(Work&)> make_;
  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_result_;
  std::deque<Item> items_;
  size_t begun_ = 0;  ///< of items_, from the front
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cotune
