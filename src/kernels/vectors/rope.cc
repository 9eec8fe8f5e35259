#include "kernels/rope.h"

#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t parallel_elements = 1 << 15;

COTUNE_VECTORS_BEGIN

template <typename T>
void rotate_row(T* row, int64_t heads, int64_t head_dim, const float* cosine, const float* sine, bool negate) {
  const int64_t half = head_dim / 2;
  const Words flip = splat_word(negate ? 0x80000000u : 0);
  for_lanes(half, [&](int64_t c, auto lanes) {
    const Vector cos = load(cosine + c, lanes);
    const Vector sin = as_vector(as_words(load(sine + c, lanes)) ^ flip);
    for (int64_t h = 0; h < heads; ++h) {
      T* low = row + h * head_dim + c;
      T* high = low + half;
      const Vector a = load(low, lanes), b = load(high, lanes);
      store(low, subtract_product(a * cos, b, sin), lanes);
      store(high, multiply_add(a, sin, b * cos), lanes);
    }
  });
}

COTUNE_VECTORS_END

}  // namespace

void rotate_in_place(DType dtype, void* x, int64_t tokens, int64_t stride, int64_t heads, int64_t head_dim,
                     const int32_t* positions, const float* cosine, const float* sine, RopeDirection direction) {
  COTUNE_CHECK(head_dim % 2 == 0 && heads * head_dim <= stride, "{} heads of {} in rows of {}", heads, head_dim, stride);
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (tokens * heads * head_dim > parallel_elements)
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t entry = int64_t(positions[t]) * (head_dim / 2);
      rotate_row(static_cast<T*>(x) + t * stride, heads, head_dim, cosine + entry, sine + entry,
                 direction == RopeDirection::backward);
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
