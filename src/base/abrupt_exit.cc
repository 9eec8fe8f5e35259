#include "base/abrupt_exit.h"

#include <unistd.h>

#include <atomic>

#include "base/descriptor.h"

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
  write_all(STDERR_FILENO, bytes);
}

}  // namespace cotune
