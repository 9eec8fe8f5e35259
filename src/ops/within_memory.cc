#include "ops/within_memory.h"

#include <c10/util/Exception.h>

#include <new>

#include "ops/memory.h"

namespace cotune {

void rethrow_within_memory() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw MemoryLimitExceeded(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    throw MemoryLimitExceeded("the machine has no more memory");
  }
}

}  // namespace cotune
