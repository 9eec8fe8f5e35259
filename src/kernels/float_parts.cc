#include "kernels/float_parts.h"

#include <bit>

namespace cotune::kernels {

int exact_part_count(const float* values, int64_t count) {
  // A part holds 8 bits of the significand, the first of which is not stored.
  constexpr uint32_t beyond_one_part = 0xffff, beyond_two_parts = 0xff;
  constexpr int64_t block = 4096;
  uint32_t used = 0;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = begin + block < count ? begin + block : count;
    for (int64_t i = begin; i < end; ++i) used |= std::bit_cast<uint32_t>(values[i]);
    if ((used & beyond_two_parts) != 0) return 3;
  }
  return (used & beyond_one_part) != 0 ? 2 : 1;
}

}  // namespace cotune::kernels
