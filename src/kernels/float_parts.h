/// f32 values as sums of bf16 values, so that matrix units for bf16 compute products in f32 (Henry, Tang and
/// Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations",
/// 2019).
///
///   v = v₀ + v₁ + v₂ with v₀ = bf16(v), v₁ = bf16(v − v₀), v₂ = bf16(v − v₀ − v₁)
///
/// Three parts hold the 24 bits of f32 exactly, two hold 16, one holds a bf16. The product of three by three
/// keeps the six pairs that reach 2⁻²⁴ of the largest: its error is that of f32 sums. An infinity, and a
/// value that bf16 rounds to one (above 3.39e38), has a NaN beside it and so gives NaN; values below 2⁻¹¹⁰
/// lose their last bits (denormal parts count as zero).
#pragma once

#include <cstdint>

namespace cotune::kernels {

constexpr int largest_part_count = 3;
constexpr int64_t float_part_depth = 32;  ///< values of k that lie together, part by part

/// How many parts hold each of these values exactly: 1 to 3. Frozen weights were often stored in fewer bits
/// than f32, and each part less is less memory and arithmetic.
int exact_part_count(const float* values, int64_t count);

}  // namespace cotune::kernels
