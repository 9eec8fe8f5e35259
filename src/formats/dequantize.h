/// The values of ggml's block formats, as float (ggml-quants.c, dequantize_row_*; equal to the Python package
/// `gguf`).
///
///   F32, F16, BF16: blocks of one value.
///   Q8_0: 32 values, f16 d, 32 × i8 q:                        value = d · q
///   Q4_0: 32 values, f16 d, 16 bytes:                         value = d · (nibble − 8)
///   Q4_1: 32 values, f16 d, f16 m, 16 bytes:                  value = d · nibble + m
///   Q5_0: 32 values, f16 d, u32 of fifth bits h, 16 bytes:    value = d · (nibble + 16h − 16)
///   Q5_1: 32 values, f16 d, f16 m, u32 h, 16 bytes:           value = d · (nibble + 16h) + m
/// The low nibble of byte i is value i, the high nibble value i + 16.
///   K-quants: 256 values in parts of 16 or 32, whose scales s and minima n are whole numbers themselves:
///   Q2_K, 16 × 16, 2 bits:  value = (d · s) · q − (dmin · n)        Q4_K, 8 × 32, 4 bits, Q5_K, 8 × 32, 5 bits: likewise
///   Q3_K, 16 × 16, 3 bits:  value = (d · s) · (q − 4)               Q6_K, 16 × 16, 6 bits: value = (d · s) · (q − 32)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "formats/gguf.h"

namespace cotune {

float float_from_f16(uint16_t bits);
float float_from_bf16(uint16_t bits);

/// True for the types above.
bool can_dequantize(GgufType type);

/// "F32, F16, BF16, Q8_0, …": for messages.
std::string dequantizable_types();

/// Values and bytes of one block. Throws UserError for a type that can_dequantize refuses.
struct GgufBlock {
  int64_t values = 1;
  int64_t bytes = 4;
};
GgufBlock gguf_block(GgufType type);

/// Writes blocks.size() / gguf_block(type).bytes · gguf_block(type).values floats. `blocks` need not be
/// aligned. Throws InternalError when the sizes disagree or the type cannot be dequantised.
void dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> values);

/// Throws UserError naming file, tensor and type, and the accepted types, unless can_dequantize(tensor.type).
void require_dequantizable(const GgufTensor& tensor, const std::string& file_name);

}  // namespace cotune
