#include "formats/dequantize_k.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "formats/dequantize.h"

namespace cotune {
namespace {

int at(const std::byte* bytes, int i) { return std::to_integer<int>(bytes[i]); }

float f16_at(const std::byte* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return float_from_f16(bits);
}

/// The eight 6-bit scales and minima of Q4_K and Q5_K, packed in 12 bytes.
struct ScalesAndMinima {
  std::array<int, 8> scale, minimum;
};

ScalesAndMinima unpack_12_bytes(const std::byte* packed) {
  ScalesAndMinima result;
  for (int i = 0; i < 4; ++i) {
    const size_t low = static_cast<size_t>(i), high = low + 4;
    result.scale[low] = at(packed, i) & 63;
    result.minimum[low] = at(packed, i + 4) & 63;
    result.scale[high] = (at(packed, i + 8) & 15) | (at(packed, i) >> 6 << 4);
    result.minimum[high] = at(packed, i + 8) >> 4 | (at(packed, i + 4) >> 6 << 4);
  }
  return result;
}

/// Q4_K and Q5_K: four times 64 values, the low nibbles of 32 bytes and then the high ones. high_bits: of Q5_K, or null.
void dequantize_by_64(const std::byte* block, const std::byte* high_bits, const std::byte* nibbles, float* values) {
  const float scale = f16_at(block), minimum = f16_at(block + 2);
  const ScalesAndMinima parts = unpack_12_bytes(block + 4);
  for (int part = 0; part < 8; ++part) {
    const float d = scale * static_cast<float>(parts.scale[static_cast<size_t>(part)]);
    const float m = minimum * static_cast<float>(parts.minimum[static_cast<size_t>(part)]);
    for (int i = 0; i < 32; ++i) {
      int q = at(nibbles, part / 2 * 32 + i) >> (part % 2 * 4) & 15;
      if (high_bits != nullptr) q |= (at(high_bits, i) >> part & 1) << 4;
      values[part * 32 + i] = d * static_cast<float>(q) - m;
    }
  }
}

}  // namespace

void dequantize_q2_k(const std::byte* block, float* values) {
  const std::byte* quants = block + 16;
  const float scale = f16_at(block + 80), minimum = f16_at(block + 82);
  for (int part = 0; part < 16; ++part) {
    const float d = scale * static_cast<float>(at(block, part) & 15), m = minimum * static_cast<float>(at(block, part) >> 4);
    const int begin = part / 8 * 32 + part % 2 * 16, shift = part % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) values[part * 16 + i] = d * static_cast<float>(at(quants, begin + i) >> shift & 3) - m;
  }
}

void dequantize_q3_k(const std::byte* block, float* values) {
  const std::byte *high_bits = block, *quants = block + 32, *scales = block + 96;
  const float scale = f16_at(block + 108);
  for (int part = 0; part < 16; ++part) {
    const int low = at(scales, part % 8) >> (part / 8 * 4) & 15, high = at(scales, 8 + part % 4) >> (part / 4 * 2) & 3;
    const float d = scale * static_cast<float>((low | high << 4) - 32);
    const int half = part / 8, begin = part % 2 * 16, shift = part % 8 / 2;
    for (int i = 0; i < 16; ++i) {
      const int bit = at(high_bits, begin + i) >> (half * 4 + shift) & 1;
      const int q = (at(quants, half * 32 + begin + i) >> (shift * 2) & 3) - (bit == 0 ? 4 : 0);
      values[part * 16 + i] = d * static_cast<float>(q);
    }
  }
}

void dequantize_q4_k(const std::byte* block, float* values) { dequantize_by_64(block, nullptr, block + 16, values); }

void dequantize_q5_k(const std::byte* block, float* values) { dequantize_by_64(block, block + 16, block + 48, values); }

void dequantize_q6_k(const std::byte* block, float* values) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = f16_at(block + 208);
  for (int part = 0; part < 8; ++part) {
    const int half = part / 4, quarter = part % 4;
    for (int i = 0; i < 32; ++i) {
      const int nibble = at(low, half * 64 + quarter % 2 * 32 + i) >> (quarter / 2 * 4) & 15;
      const int q = (nibble | (at(high, half * 32 + i) >> (quarter * 2) & 3) << 4) - 32;
      const float d = scale * static_cast<float>(std::to_integer<int8_t>(scales[part * 2 + i / 16]));
      values[part * 32 + i] = d * static_cast<float>(q);
    }
  }
}

}  // namespace cotune
