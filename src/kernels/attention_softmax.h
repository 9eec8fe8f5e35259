/// The element-wise part of attention on one block: keys down the rows, 32 queries across two vectors, so that the
/// softmax needs no sums across lanes. Included by the attention kernels only.
#pragma once

#include <cmath>

#include "kernels/attention_pack.h"

namespace cotune::kernels {
namespace {

/// Which keys of a block the queries see: key row k is seen by lane i when k + key_minus_query ≤ i.
struct CausalMask {
  int64_t key_minus_query;  ///< position of the block's first key minus that of the first query

  __mmask16 lanes(int64_t key, int64_t group) const {
    const int64_t hidden = key + key_minus_query - group * 16;
    return hidden <= 0 ? __mmask16(0xffff) : hidden >= 16 ? __mmask16(0) : __mmask16(0xffff << hidden);
  }
  /// Keys from here on are hidden from the whole group.
  int64_t key_end(int64_t group, int64_t key_count) const {
    return std::clamp<int64_t>(group * 16 + 16 - key_minus_query, 0, key_count);
  }
};

/// Online softmax of a strip of 32 queries, in units of log2.
struct SoftmaxState {
  alignas(64) float maximum[32];
  alignas(64) float sum[32];
};

COTUNE_AVX512_BEGIN

inline __m512i interleave_index() {
  return _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
                          3, 18, 2, 17, 1, 16, 0);
}

/// Rows k and k + 1 of sixteen queries as a right operand summed over keys: to[word-row][32].
inline void store_key_pair(uint16_t, uint32_t* to, int64_t key, int64_t group, __m512 row0, __m512 row1) {
  const __m512i words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(row1, row0));
  _mm512_store_si512(to + key / 2 * 32 + group * 16, _mm512_permutexvar_epi16(interleave_index(), words));
}
inline void store_key_pair(float, uint32_t* to, int64_t key, int64_t group, __m512 row0, __m512 row1) {
  _mm512_store_si512(to + key * 32 + group * 16, _mm512_castps_si512(row0));
  _mm512_store_si512(to + (key + 1) * 32 + group * 16, _mm512_castps_si512(row1));
}

/// Sixteen queries of row `key` as a left operand summed over queries: to[key][32 queries].
inline void store_key_row(uint16_t, uint32_t* to, int64_t key, int64_t group, __m512 row) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to + key * 16 + group * 8),
                     reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(row)));
}
inline void store_key_row(float, uint32_t* to, int64_t key, int64_t group, __m512 row) {
  _mm512_store_si512(to + key * 32 + group * 16, _mm512_castps_si512(row));
}

/// One key block of the forward pass. scores [key_count][32] f32, unscaled; key_count even; `to_log2` = scale · log2(e).
/// Writes the probabilities against the running maximum as a right operand, updates the state, and scales `out`
/// ([columns][32], the sums so far) where the maximum rose. masked: whether some score is hidden.
template <typename T>
void softmax_block(const float* scores, int64_t key_count, float to_log2, bool masked, const CausalMask& mask,
                   SoftmaxState& state, float* out, int64_t columns, uint32_t* probabilities) {
  const __m512 lowest = _mm512_set1_ps(-INFINITY);
  const __m512 scale = _mm512_set1_ps(to_log2);
  for (int64_t g = 0; g < 2; ++g) {
    const float* s = scores + g * 16;
    const int64_t seen = masked ? mask.key_end(g, key_count) : key_count;
    const int64_t clear = masked ? std::min(seen, std::max<int64_t>(0, g * 16 - mask.key_minus_query)) & ~int64_t(1)
                                 : key_count;
    __m512 max0 = lowest, max1 = lowest;
    for (int64_t k = 0; k < clear; k += 2) {
      max0 = _mm512_max_ps(max0, _mm512_load_ps(s + k * 32));
      max1 = _mm512_max_ps(max1, _mm512_load_ps(s + k * 32 + 32));
    }
    for (int64_t k = clear; k < seen; ++k) {
      max0 = _mm512_mask_max_ps(max0, mask.lanes(k, g), max0, _mm512_load_ps(s + k * 32));
    }
    const __m512 before = _mm512_load_ps(state.maximum + g * 16);
    const __m512 maximum = _mm512_max_ps(before, _mm512_mul_ps(_mm512_max_ps(max0, max1), scale));
    _mm512_store_ps(state.maximum + g * 16, maximum);

    __m512 sum0 = _mm512_setzero_ps(), sum1 = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k < clear; k += 2) {
      const __m512 p0 = exp2<T>(_mm512_fmsub_ps(_mm512_load_ps(s + k * 32), scale, maximum));
      const __m512 p1 = exp2<T>(_mm512_fmsub_ps(_mm512_load_ps(s + k * 32 + 32), scale, maximum));
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      store_key_pair(T{}, probabilities, k, g, p0, p1);
    }
    for (; k < seen; k += 2) {
      const auto masked_exp2 = [&](int64_t key) {
        const __m512 x = _mm512_fmsub_ps(_mm512_load_ps(s + key * 32), scale, maximum);
        return _mm512_maskz_mov_ps(mask.lanes(key, g), exp2<T>(x));
      };
      const __m512 p0 = masked_exp2(k), p1 = masked_exp2(k + 1);
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      store_key_pair(T{}, probabilities, k, g, p0, p1);
    }
    for (; k < key_count; k += 2) {
      store_key_pair(T{}, probabilities, k, g, _mm512_setzero_ps(), _mm512_setzero_ps());
    }

    const __m512 shrink = exp2<T>(_mm512_sub_ps(before, maximum));
    const __m512 sum = _mm512_load_ps(state.sum + g * 16);
    _mm512_store_ps(state.sum + g * 16, _mm512_fmadd_ps(sum, shrink, _mm512_add_ps(sum0, sum1)));
    const bool rose = _mm512_cmp_ps_mask(before, maximum, _CMP_NEQ_OQ) != 0;
    if (rose && out != nullptr) {
      for (int64_t c = 0; c < columns; ++c) {
        float* row = out + c * 32 + g * 16;
        _mm512_store_ps(row, _mm512_mul_ps(_mm512_load_ps(row), shrink));
      }
    }
  }
}

/// Where one block of the backward pass goes; a null pointer is left out.
struct BackwardOperands {
  uint32_t* p_rows;    ///< P as a left operand summed over queries
  uint32_t* ds_rows;   ///< dS the same
  uint32_t* ds_pairs;  ///< dS as a right operand summed over keys
};

/// scores, dp [key_count][32] f32, unscaled; lse in units of log2; delta already times scale.
/// P = 2^(scores · to_log2 − lse),  dS = P (dp · scale − delta).
template <typename T>
void softmax_backward_block(const float* scores, const float* dp, int64_t key_count, float scale, bool masked,
                            const CausalMask& mask, const float* lse, const float* delta, const BackwardOperands& to) {
  const __m512 to_log2 = _mm512_set1_ps(scale * log2_of_e);
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t g = 0; g < 2; ++g) {
    const __m512 lse_lanes = _mm512_load_ps(lse + g * 16), delta_lanes = _mm512_load_ps(delta + g * 16);
    const auto pair = [&](int64_t k, __mmask16 seen0, __mmask16 seen1) {
      const auto row = [&](int64_t key, __mmask16 seen, __m512& p, __m512& ds) {
        const int64_t at = key * 32 + g * 16;
        p = exp2<T>(_mm512_fmsub_ps(_mm512_load_ps(scores + at), to_log2, lse_lanes));
        p = _mm512_maskz_mov_ps(seen, p);
        ds = _mm512_mul_ps(p, _mm512_fmsub_ps(_mm512_load_ps(dp + at), factor, delta_lanes));
      };
      __m512 p0, p1, ds0, ds1;
      row(k, seen0, p0, ds0);
      row(k + 1, seen1, p1, ds1);
      if (to.p_rows != nullptr) {
        store_key_row(T{}, to.p_rows, k, g, p0);
        store_key_row(T{}, to.p_rows, k + 1, g, p1);
        store_key_row(T{}, to.ds_rows, k, g, ds0);
        store_key_row(T{}, to.ds_rows, k + 1, g, ds1);
      }
      if (to.ds_pairs != nullptr) store_key_pair(T{}, to.ds_pairs, k, g, ds0, ds1);
    };
    if (!masked) {
      for (int64_t k = 0; k < key_count; k += 2) pair(k, 0xffff, 0xffff);
    } else {
      for (int64_t k = 0; k < key_count; k += 2) pair(k, mask.lanes(k, g), mask.lanes(k + 1, g));
    }
  }
}

COTUNE_AVX512_END

}  // namespace
}  // namespace cotune::kernels
