#include "kernels/rope.h"

#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t parallel_elements = 1 << 15;

COTUNE_AVX512_BEGIN

template <typename T>
void rotate_row(T* row, int64_t heads, int64_t head_dim, const float* cosine, const float* sine, bool negate) {
  const int64_t half = head_dim / 2;
  const __m512i flip = _mm512_set1_epi32(negate ? int(0x80000000u) : 0);
  for_lanes(half, [&](int64_t c, __mmask16 mask) {
    const __m512 cos = load(cosine + c, mask);
    const __m512 sin = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(load(sine + c, mask)), flip));
    for (int64_t h = 0; h < heads; ++h) {
      T* low = row + h * head_dim + c;
      T* high = low + half;
      const __m512 a = load(low, mask), b = load(high, mask);
      store(low, _mm512_fnmadd_ps(b, sin, _mm512_mul_ps(a, cos)), mask);
      store(high, _mm512_fmadd_ps(a, sin, _mm512_mul_ps(b, cos)), mask);
    }
  });
}

COTUNE_AVX512_END

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

}  // namespace cotune::kernels
