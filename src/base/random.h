/// Counter-based random numbers: pure functions of a key, so that a value does not depend on what was drawn before
/// it, on threads, or on which jobs share a microbatch.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace cotune {

/// A bijective 64-bit mixer (the finaliser of SplitMix64, Steele et al. 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// Combines a key with one more coordinate (job step, example, site, …). Order matters.
constexpr uint64_t mix_key(uint64_t key, uint64_t coordinate) { return mix64(key ^ mix64(coordinate)); }

/// A key from text (FNV-1a, then mixed): for names of jobs and sites.
uint64_t key_of(std::string_view text);

/// Uniform in [0, 1) with 53 random bits.
constexpr double uniform(uint64_t key, uint64_t index) { return static_cast<double>(mix_key(key, index) >> 11) * 0x1.0p-53; }

/// Standard normal (Box–Muller over two uniforms of the same key and index).
double normal(uint64_t key, uint64_t index);

/// Uniform integer in [0, bound), bound > 0; unbiased to within 2^-64.
uint64_t uniform_below(uint64_t key, uint64_t index, uint64_t bound);

/// A permutation of 0..count-1 (Fisher–Yates) determined by the key alone.
std::vector<int64_t> permutation(uint64_t key, int64_t count);

}  // namespace cotune
