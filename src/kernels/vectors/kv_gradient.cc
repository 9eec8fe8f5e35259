#include "kernels/attention.h"
#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

COTUNE_VECTORS_BEGIN

template <typename T>
void round_row(const float* source, int64_t columns, T* destination) {
  for_lanes(columns, [&](int64_t c, auto lanes) { store(destination + c, load(source + c, lanes), lanes); });
}

COTUNE_VECTORS_END

}  // namespace

void store_kv_gradient(DType dtype, const float* source, int64_t token_count, int64_t columns, void* destination,
                       int64_t stride) {
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (token_count * columns > (1 << 15))
    for (int64_t t = 0; t < token_count; ++t) {
      round_row(source + t * columns, columns, static_cast<T*>(destination) + t * stride);
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
