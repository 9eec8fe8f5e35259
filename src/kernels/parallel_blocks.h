#pragma once

#include <cstdint>
#include <functional>

namespace cotune::kernels {

/// Calls body(begin, end) for blocks of at most `block` of the elements [0, count), on the OpenMP threads:
/// for elementwise code in files that are compiled without OpenMP. body must not throw.
void parallel_blocks(int64_t count, int64_t block, const std::function<void(int64_t, int64_t)>& body);

}  // namespace cotune::kernels
