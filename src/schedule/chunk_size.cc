#include "schedule/chunk_size.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace cotune {

int64_t chunk_size_for(std::span<const int64_t> padded_lengths, int64_t most) {
  COTUNE_CHECK(!padded_lengths.empty() && most >= least_chunk_size, "{} lengths, chunks of at most {}", padded_lengths.size(), most);
  int64_t divisor = 0;
  for (const int64_t length : padded_lengths) {
    COTUNE_CHECK(length >= 1, "a job has rows of {} tokens", length);
    divisor = std::gcd(divisor, length);
  }
  int64_t size = divisor & -divisor;
  while (size > most) size /= 2;
  return std::max(size, least_chunk_size);
}

}  // namespace cotune
