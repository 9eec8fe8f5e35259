/// Products on AVX2: 6 rows by 16 columns of sums in 12 registers, a panel in two halves. bf16 is widened, on the left when rows are copied and
/// on the right when it is loaded, and multiplied and summed in f32.
#define COTUNE_AVX2
#include <array>
#include <utility>

#include "kernels/matrix_by_vectors.h"
#include "kernels/matrix_kernels.h"

namespace cotune::kernels {
namespace {

constexpr int tile_rows = 6;
alignas(32) constexpr uint32_t upper_halves[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

COTUNE_VECTORS_BEGIN

/// Sums of half a panel, by rows.
template <int height>
struct Sums {
  __m256 low[height], high[height];
};

template <int height>
inline __attribute__((always_inline)) void add_one(Sums<height>& sums, const char* a, int64_t stride, __m256 low, __m256 high) {
#pragma GCC unroll 6
  for (int row = 0; row < height; ++row) {
    const __m256 left = _mm256_broadcast_ss(reinterpret_cast<const float*>(a + row * stride));
    sums.low[row] = _mm256_fmadd_ps(left, low, sums.low[row]);
    sums.high[row] = _mm256_fmadd_ps(left, high, sums.high[row]);
  }
}

/// sums[row] += a[row, 0..k) · b; a by rows of `stride` bytes, in f32; b half a panel. Not inlined, for there the sums are in registers.
template <int height>
__attribute__((noinline)) void add_products(float, Sums<height>& kept, const char* a, int64_t stride, const char* b, int64_t k, Ahead ahead) {
  Sums<height> sums = kept;
  const auto add = [&](const char* left, const char* right) {
    const auto* columns = reinterpret_cast<const float*>(right);
    add_one<height>(sums, left, stride, _mm256_loadu_ps(columns), _mm256_loadu_ps(columns + 8));
  };
  for (; k >= 2; k -= 2, a += 8, b += 2 * lane_row_bytes) {
    ahead.bring();
    add(a, b);
    add(a + 4, b + lane_row_bytes);
  }
  if (k > 0) add(a, b);
  kept = sums;
}
template <int height>
__attribute__((noinline)) void add_products(uint16_t, Sums<height>& kept, const char* a, int64_t stride, const char* b, int64_t k, Ahead ahead) {
  Sums<height> sums = kept;
  const auto* of_lanes = reinterpret_cast<const __m256i*>(upper_halves);
  for (; k > 0; k -= 2, a += 4, b += lane_row_bytes) {
    ahead.bring();
    const auto* pairs = reinterpret_cast<const __m256i*>(b);
    add_one<height>(sums, a, stride, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs), 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(pairs + 1), 16)));
    a += 4;
    // What sixteen registers do not hold beside the sums is loaded again, and rows are found from one address: the compiler must not know it.
    __asm__("" : "+r"(pairs), "+r"(of_lanes), "+r"(a));
    const __m256i upper = _mm256_load_si256(of_lanes);
    add_one<height>(sums, a, stride, _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs), upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(pairs + 1), upper)));
  }
  kept = sums;
}

template <typename T, int height>
void multiply_rows(const Strip& strip) {
  const Tile& tile = strip.tiles[0];
  for (int64_t p = 0; p < strip.panel_count; ++p) {
    for (int64_t half = 0; half < 2; ++half) {
      if (strip.columns <= p * 32 + half * half_columns) {  // of adapters of rank 16
        for (int row = 0; row < height && strip.last; ++row) write_half_row<T>(strip, tile, p * 32 + half * half_columns, row, no_values());
        continue;
      }
      Sums<height> sums;
      float* partial = strip.partial + p * (2 * tile_rows * 32) + half * half_columns;
#pragma GCC unroll 6
      for (int row = 0; row < height; ++row) {
        sums.low[row] = strip.first ? _mm256_setzero_ps() : _mm256_loadu_ps(partial + row * 32);
        sums.high[row] = strip.first ? _mm256_setzero_ps() : _mm256_loadu_ps(partial + row * 32 + 8);
      }
      const char* b = strip.b + p * strip.panel_bytes + half * half_bytes;
      add_products<height>(T{}, sums, tile.a, strip.a_stride, b, strip.k, strip.ahead_of(p, strip.k / 2, half, 2));
      if (!strip.last) {
#pragma GCC unroll 6
        for (int row = 0; row < height; ++row) store(partial + row * 32, {sums.low[row], sums.high[row]});
        continue;
      }
      for (int i = 0; i < tile.term_count; ++i) {
        const TileTerm& term = tile.terms[i];
        const int64_t panel = strip.first_panel + p - term.panel_begin;
        if (panel < 0 || panel >= term.panel_end - term.panel_begin) continue;
        const char* factor = term.panels + panel * term.panel_bytes + half * half_bytes;
        add_products<height>(T{}, sums, term.s, term.s_stride, factor, term.k, {factor, 0});
      }
#pragma GCC unroll 6
      for (int row = 0; row < height; ++row) write_half_row<T>(strip, tile, p * 32 + half * half_columns, row, {sums.low[row], sums.high[row]});
    }
  }
}

void pack_right_f32(const char* right, int64_t stride_bytes, int64_t rows, int64_t padded_rows, int64_t columns, char* panels) {
  for (int64_t column = 0; column < columns; column += 32, panels += padded_rows * lane_row_bytes) {
    for (int64_t row = 0; row < padded_rows; ++row) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t first = column + half * half_columns;
        const auto* from = reinterpret_cast<const float*>(right + row * stride_bytes) + first;
        store_words(panels + row * lane_row_bytes + half * half_bytes, row < rows ? load_words(from, first_lanes(columns - first)) : no_words());
      }
    }
  }
}

COTUNE_VECTORS_END

template <typename T, int... heights>
constexpr auto by_height(std::integer_sequence<int, heights...>) {
  return std::array<void (*)(const Strip&), sizeof...(heights)>{multiply_rows<T, heights + 1>...};
}

template <typename T>
void multiply(const Strip& strip) {
  static constexpr auto table = by_height<T>(std::make_integer_sequence<int, tile_rows>());
  table[static_cast<size_t>(strip.tiles[0].height - 1)](strip);
}

void nothing() {}

template <typename T, bool is_bf16 = sizeof(T) == 2>
constexpr MatrixKernels kernels = {.tile_rows = tile_rows,
                                   .tiles_per_strip = 1,
                                   .k_block = 1024,
                                   .dtype = is_bf16 ? DType::bf16 : DType::f32,
                                   .depth_unit = is_bf16 ? 32 : 1,
                                   .left_element_bytes = 4,
                                   .convert_left = is_bf16 ? widen_row : nullptr,
                                   .begin = nothing,
                                   .end = nothing,
                                   .multiply = multiply<T>,
                                   .pack_right = is_bf16 ? pack_right_bf16 : pack_right_f32,
                                   .transpose_left = transpose_left<T>};

}  // namespace

const MatrixKernels avx2_kernels = kernels<float>;
const MatrixKernels avx2_bf16_kernels = kernels<uint16_t>;

}  // namespace cotune::kernels
