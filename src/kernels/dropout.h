/// Dropout whose mask is a pure function of coordinates, so that it does not depend on what else is in a microbatch, on
/// recomputation, or on threads.
///
/// For a row of example key e at token position t, with the site key s (from job seed, job step and site):
///   r = mix_key(mix_key(s, e), t)  (base/random.h),  lo = low 32 bits of r,  hi = high 32 bits
///   h = round(round((f · 0x9E3779B1) ^ lo) ^ hi)  for feature f, in 32-bit arithmetic,
///   round(x): x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16   (MurmurHash3's finaliser)
///   keep = h ≥ floor(probability · 2^32),   mask = keep / (1 − probability)
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

struct DropoutSite {
  uint64_t key = 0;
  float probability = 0;  ///< of dropping, in [0, 1)
};

/// The rows a mask applies to. Both arrays are [rows].
struct DropoutRows {
  int64_t rows = 0;
  int64_t features = 0;
  const uint64_t* example_keys = nullptr;
  const int32_t* positions = nullptr;
};

/// Whether feature `feature` of one row is kept: the formula above for one element.
bool dropout_keeps(const DropoutSite& site, uint64_t example_key, int32_t position, int64_t feature);

/// y = mask ⊙ x. y may be the same memory as x. Strides in elements.
void dropout_forward(DType dtype, const DropoutSite& site, const DropoutRows& rows, const void* x, int64_t x_stride,
                     void* y, int64_t y_stride);

/// dx += mask ⊙ dy, in f32, rounded once.
void dropout_backward_add(DType dtype, const DropoutSite& site, const DropoutRows& rows, const void* dy,
                          int64_t dy_stride, void* dx, int64_t dx_stride);

}  // namespace cotune::kernels
