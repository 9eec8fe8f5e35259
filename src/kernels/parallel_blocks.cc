#include "kernels/parallel_blocks.h"

#include <algorithm>

namespace cotune::kernels {

void parallel_blocks(int64_t count, int64_t block, const std::function<void(int64_t, int64_t)>& body) {
  const int64_t blocks = (count + block - 1) / block;
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) body(b * block, std::min((b + 1) * block, count));
}

}  // namespace cotune::kernels
