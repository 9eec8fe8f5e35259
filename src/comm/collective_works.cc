#define USE_DISTRIBUTED
#include "comm/collective_works.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <utility>

#include "comm/failure_text.h"

namespace cotune {

/// What the transfers share with the group.
struct CollectiveWorks::Ends {
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  std::string lost;      ///< why no work will be over any more; empty: they may
  int64_t running = 0;   ///< works that c10d has not ended
  int64_t unawaited = 0; ///< transfers that nobody has waited for
};

class CollectiveWorks::Collective : public Transfer {
 public:
  Collective(std::shared_ptr<Ends> ends, std::string description) : ends_(std::move(ends)), description_(std::move(description)) {}

  /// By c10d. failure: empty where it has gone well.
  void is_over(const std::string& failure) {
    const std::lock_guard lock(ends_->mutex);
    over_ = true;
    failure_ = failure;
    --ends_->running;
    ends_->changed.notify_all();
  }
  bool done() override {
    const std::lock_guard lock(ends_->mutex);
    return over_ || ends_->aborted || !ends_->lost.empty();
  }
  void wait() override {
    std::unique_lock lock(ends_->mutex);
    ends_->changed.wait(lock, [this] { return over_ || ends_->aborted || !ends_->lost.empty(); });
    if (ends_->aborted) throw CommunicationEnded(ended_text(description_, own_abort_text));
    if (!over_) throw CommunicationEnded(ended_text(description_, ends_->lost));
    if (!failure_.empty()) throw CommunicationEnded(ended_text(description_, failure_));
    if (!std::exchange(awaited_, true)) --ends_->unawaited;
  }

 private:
  const std::shared_ptr<Ends> ends_;
  const std::string description_;
  bool over_ = false, awaited_ = false;
  std::string failure_;
};

CollectiveWorks::CollectiveWorks() : ends_(std::make_shared<Ends>()) {}

std::shared_ptr<Transfer> CollectiveWorks::add(const c10::intrusive_ptr<c10d::Work>& work, std::string description) {
  auto collective = std::make_shared<Collective>(ends_, std::move(description));
  {
    const std::lock_guard lock(ends_->mutex);
    ++ends_->running;
    ++ends_->unawaited;
  }
  work->getFuture()->addCallback([collective](c10::ivalue::Future& future) {
    std::string failure;
    if (future.hasError()) {
      try {
        std::rethrow_exception(future.exception_ptr());
      } catch (const std::exception& error) {
        failure = failure_text(error);
      }
    }
    collective->is_over(failure);
  });
  return collective;
}

void CollectiveWorks::abort() {
  const std::lock_guard lock(ends_->mutex);
  ends_->aborted = true;
  ends_->changed.notify_all();
}

void CollectiveWorks::lose(const std::string& text) {
  const std::lock_guard lock(ends_->mutex);
  if (ends_->lost.empty()) ends_->lost = text;
  ends_->changed.notify_all();
}

bool CollectiveWorks::idle() const {
  const std::lock_guard lock(ends_->mutex);
  return ends_->unawaited == 0 && ends_->running == 0;
}

bool CollectiveWorks::wait_until_over(std::chrono::milliseconds most) const {
  std::unique_lock lock(ends_->mutex);
  return ends_->changed.wait_for(lock, most, [this] { return ends_->running == 0; });
}

}  // namespace cotune
