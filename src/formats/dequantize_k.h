/// One block of ggml's K-quants (ggml-quants.c): 256 values, whose parts of 16 or 32 have scales of their own. `values` has
/// room for 256; nothing need be aligned. The formulas are dequantize.h's.
#pragma once

#include <cstddef>

namespace cotune {

void dequantize_q2_k(const std::byte* block, float* values);
void dequantize_q3_k(const std::byte* block, float* values);
void dequantize_q4_k(const std::byte* block, float* values);
void dequantize_q5_k(const std::byte* block, float* values);
void dequantize_q6_k(const std::byte* block, float* values);

}  // namespace cotune
