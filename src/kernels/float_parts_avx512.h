/// Inside the kernels on parts: sixteen f32 lanes as three vectors of bf16. Included by translation units
/// compiled for AVX-512 BF16, each of which gets its own copy.
#pragma once

#include <immintrin.h>

#include "kernels/float_parts.h"

namespace cotune::kernels {
namespace {

struct LaneParts {
  __m256i part[largest_part_count];  ///< [0] the largest
};

inline LaneParts split_lanes(__m512 value) {
  LaneParts parts;
  for (__m256i& part : parts.part) {
    part = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
    value = _mm512_sub_ps(value, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16)));
  }
  return parts;
}

}  // namespace
}  // namespace cotune::kernels
