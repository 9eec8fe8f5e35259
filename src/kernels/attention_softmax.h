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

  /// The first lane that sees the key; 16 and more: none does.
  int64_t first_lane(int64_t key, int64_t group) const { return key + key_minus_query - group * 16; }
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

COTUNE_VECTORS_BEGIN

/// Rows k and k + 1 of sixteen queries as a right operand summed over keys: to[word-row][32].
template <typename T>
inline void store_key_pair(uint32_t* to, int64_t key, int64_t group, Vector row0, Vector row1) {
  if constexpr (elements_per_word<T> == 2) {
    store_words(to + key / 2 * 32 + group * 16, pair_of_bf16(row0, row1));
  } else {
    store_words(to + key * 32 + group * 16, as_words(row0));
    store_words(to + (key + 1) * 32 + group * 16, as_words(row1));
  }
}

/// Sixteen queries of row `key` as a left operand summed over queries: to[key][32 queries].
template <typename T>
inline void store_key_row(uint32_t* to, int64_t key, int64_t group, Vector row) {
  if constexpr (elements_per_word<T> == 2) {
    store(reinterpret_cast<uint16_t*>(to + key * 16 + group * 8), row);
  } else {
    store_words(to + key * 32 + group * 16, as_words(row));
  }
}

/// One key block of the forward pass. scores [key_count][32] f32, unscaled; key_count even; `to_log2` = scale · log2(e).
/// Writes the probabilities against the running maximum as a right operand, updates the state, and scales `out`
/// ([columns][32], the sums so far) where the maximum rose. masked: whether some score is hidden.
template <typename T>
void softmax_block(const float* scores, int64_t key_count, float to_log2, bool masked, const CausalMask& mask,
                   SoftmaxState& state, float* out, int64_t columns, uint32_t* probabilities) {
  const Vector lowest = splat(-INFINITY);
  const Vector scale = splat(to_log2);
  for (int64_t g = 0; g < 2; ++g) {
    const float* s = scores + g * 16;
    const int64_t seen = masked ? mask.key_end(g, key_count) : key_count;
    const int64_t clear = masked ? std::min(seen, std::max<int64_t>(0, g * 16 - mask.key_minus_query)) & ~int64_t(1)
                                 : key_count;
    Vector max0 = lowest, max1 = lowest;
    for (int64_t k = 0; k < clear; k += 2) {
      max0 = larger(max0, load(s + k * 32));
      max1 = larger(max1, load(s + k * 32 + 32));
    }
    for (int64_t k = clear; k < seen; ++k) {
      max0 = blend(lanes_from(mask.first_lane(k, g)), larger(max0, load(s + k * 32)), max0);
    }
    const Vector before = load(state.maximum + g * 16);
    const Vector maximum = larger(before, larger(max0, max1) * scale);
    store(state.maximum + g * 16, maximum);

    Vector sum0 = no_values(), sum1 = no_values();
    int64_t k = 0;
    for (; k < clear; k += 2) {
      const Vector p0 = exp2<T>(multiply_subtract(load(s + k * 32), scale, maximum));
      const Vector p1 = exp2<T>(multiply_subtract(load(s + k * 32 + 32), scale, maximum));
      sum0 = sum0 + p0;
      sum1 = sum1 + p1;
      store_key_pair<T>(probabilities, k, g, p0, p1);
    }
    for (; k < seen; k += 2) {
      const auto masked_exp2 = [&](int64_t key) {
        const Vector x = multiply_subtract(load(s + key * 32), scale, maximum);
        return keep(lanes_from(mask.first_lane(key, g)), exp2<T>(x));
      };
      const Vector p0 = masked_exp2(k), p1 = masked_exp2(k + 1);
      sum0 = sum0 + p0;
      sum1 = sum1 + p1;
      store_key_pair<T>(probabilities, k, g, p0, p1);
    }
    for (; k < key_count; k += 2) {
      store_key_pair<T>(probabilities, k, g, no_values(), no_values());
    }

    const Vector shrink = exp2<T>(before - maximum);
    const Vector sum = load(state.sum + g * 16);
    store(state.sum + g * 16, multiply_add(sum, shrink, sum0 + sum1));
    const bool rose = any_differs(before, maximum);
    if (rose && out != nullptr) {
      for (int64_t c = 0; c < columns; ++c) {
        float* row = out + c * 32 + g * 16;
        store(row, load(row) * shrink);
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
  const Vector to_log2 = splat(scale * log2_of_e);
  const Vector factor = splat(scale);
  for (int64_t g = 0; g < 2; ++g) {
    const Vector lse_lanes = load(lse + g * 16), delta_lanes = load(delta + g * 16);
    const auto pair = [&](int64_t k, auto seen0, auto seen1) {
      const auto row = [&](int64_t key, auto seen, Vector& p, Vector& ds) {
        const int64_t at = key * 32 + g * 16;
        p = exp2<T>(multiply_subtract(load(scores + at), to_log2, lse_lanes));
        p = keep(seen, p);
        ds = p * multiply_subtract(load(dp + at), factor, delta_lanes);
      };
      Vector p0, p1, ds0, ds1;
      row(k, seen0, p0, ds0);
      row(k + 1, seen1, p1, ds1);
      if (to.p_rows != nullptr) {
        store_key_row<T>(to.p_rows, k, g, p0);
        store_key_row<T>(to.p_rows, k + 1, g, p1);
        store_key_row<T>(to.ds_rows, k, g, ds0);
        store_key_row<T>(to.ds_rows, k + 1, g, ds1);
      }
      if (to.ds_pairs != nullptr) store_key_pair<T>(to.ds_pairs, k, g, ds0, ds1);
    };
    if (!masked) {
      for (int64_t k = 0; k < key_count; k += 2) pair(k, AllLanes{}, AllLanes{});
    } else {
      for (int64_t k = 0; k < key_count; k += 2) pair(k, lanes_from(mask.first_lane(k, g)), lanes_from(mask.first_lane(k + 1, g)));
    }
  }
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
