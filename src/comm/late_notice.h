#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace cotune {

/// Says what is waited for, from a thread of its own, where this lives for longer than `delay`; once.
class LateNotice {
 public:
  LateNotice(std::chrono::milliseconds delay, std::function<void()> tell)
      : thread_([delay, tell = std::move(tell)](const std::stop_token& ended) {
          std::mutex mutex;
          std::condition_variable_any never;
          std::unique_lock lock(mutex);
          never.wait_for(lock, ended, delay, [] { return false; });
          if (!ended.stop_requested()) tell();
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace cotune
