#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cotune {

/// work(0) … work(count − 1), each once, on up to so many threads at once, this one among them. Returns when all are done; if some threw, what the
/// one of the lowest index threw leaves then.
void parallel_for(size_t count, int64_t threads, const std::function<void(size_t index)>& work);

}  // namespace cotune
