#include "base/random.h"

#include <cmath>
#include <numbers>
#include <numeric>

namespace cotune {

uint64_t key_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(hash);
}

double normal(uint64_t key, uint64_t index) {
  const double u = 1.0 - uniform(key, 2 * index);  // (0, 1]: the logarithm is finite
  const double v = uniform(key, 2 * index + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mix_key(key, index)) * bound) >> 64);
}

std::vector<int64_t> permutation(uint64_t key, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    const auto j = static_cast<int64_t>(uniform_below(key, static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

}  // namespace cotune
