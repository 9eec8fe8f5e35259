#include "base/sudden_end.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace cotune {
namespace {

std::atomic<void (*)()> last_call{nullptr};
static_assert(std::atomic<void (*)()>::is_always_lock_free);

}  // namespace

void call_before_sudden_end(void (*call)()) { last_call = call; }

void before_sudden_end() {
  if (void (*call)() = last_call) call();
}

void write_to_standard_error(std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace cotune
