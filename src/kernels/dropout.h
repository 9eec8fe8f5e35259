/// Dropout whose mask is a pure function of coordinates, so that it does not depend on what else is in a microbatch, on
/// recomputation, or on threads.
///
/// For a row of example key e at token position t, with the site key s (from job seed, job step and site):
///   r = mix_key(mix_key(s, e), t)  (base/random.h),  lo = low 32 bits of r,  hi = high 32 bits
///   h = round(round((f · 0x9E3779B1) ^ lo) ^ hi)  for feature f of the whole row, in 32-bit arithmetic,
///   round(x): x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16   (MurmurHash3's finaliser)
///   keep = h ≥ floor(probability · 2^32),   mask = keep / (1 − probability)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// A share of below 1 as a probability, which is below 1 too.
inline float dropout_probability(double share) { return std::min(static_cast<float>(share), std::nextafter(1.0F, 0.0F)); }

struct DropoutSite {
  uint64_t key = 0;
  float probability = 0;  ///< of dropping, in [0, 1)
  int64_t first_feature = 0;  ///< what the first column is of the whole row, where x has a part of its columns
};

/// One site's part of a grouped dropout: rows of x, and the row of y that the first of them goes to.
struct DropoutGroup {
  DropoutSite site;
  RowRange rows;
  int64_t target = 0;
};

/// What the masks of a call depend on beside their sites. Both arrays are [rows of x].
struct DropoutRows {
  int64_t features = 0;
  const uint64_t* example_keys = nullptr;
  const int32_t* positions = nullptr;
};

/// Whether feature `feature` of one row is kept: the formula above for one element.
bool dropout_keeps(const DropoutSite& site, uint64_t example_key, int32_t position, int64_t feature);

/// y[target + i] = mask ⊙ x[rows.begin + i] for every group in one call. Groups may read the same rows; each row of y is
/// written by one. y may be the same memory as x where every row stays in its place. Strides in elements. What adds masked
/// rows is expand_add (kernels/expand.h).
void dropout_forward(DType dtype, std::span<const DropoutGroup> groups, const DropoutRows& rows, const void* x,
                     int64_t x_stride, void* y, int64_t y_stride);

}  // namespace cotune::kernels
