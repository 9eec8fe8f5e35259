#include "formats/dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/dequantize_k.h"
#include "formats/gguf_types.h"

namespace cotune {
namespace {

constexpr int64_t block_values = 32;

uint16_t load_u16(const std::byte* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void dequantize_q8_0(const std::byte* block, float* values) {
  const float scale = float_from_f16(load_u16(block));
  for (int64_t i = 0; i < block_values; ++i)
    values[i] = scale * static_cast<float>(std::to_integer<int8_t>(block[2 + i]));
}

void dequantize_q4_0(const std::byte* block, float* values) {
  const float scale = float_from_f16(load_u16(block));
  for (int64_t i = 0; i < block_values / 2; ++i) {
    const int byte = std::to_integer<int>(block[2 + i]);
    values[i] = scale * static_cast<float>((byte & 15) - 8);
    values[i + block_values / 2] = scale * static_cast<float>((byte >> 4) - 8);
  }
}

void dequantize_q4_1(const std::byte* block, float* values) {
  const float scale = float_from_f16(load_u16(block)), minimum = float_from_f16(load_u16(block + 2));
  for (int64_t i = 0; i < block_values / 2; ++i) {
    const int byte = std::to_integer<int>(block[4 + i]);
    values[i] = scale * static_cast<float>(byte & 15) + minimum;
    values[i + block_values / 2] = scale * static_cast<float>(byte >> 4) + minimum;
  }
}

/// The fifth bits are bits of a word: value i's is bit i.
uint32_t load_u32(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void dequantize_q5_0(const std::byte* block, float* values) {
  const float scale = float_from_f16(load_u16(block));
  const uint32_t fifth = load_u32(block + 2);
  for (int64_t i = 0; i < block_values / 2; ++i) {
    const int byte = std::to_integer<int>(block[6 + i]);
    const int low = static_cast<int>(fifth >> i & 1) << 4, high = static_cast<int>(fifth >> (i + block_values / 2) & 1) << 4;
    values[i] = scale * static_cast<float>(((byte & 15) | low) - 16);
    values[i + block_values / 2] = scale * static_cast<float>(((byte >> 4) | high) - 16);
  }
}

void dequantize_q5_1(const std::byte* block, float* values) {
  const float scale = float_from_f16(load_u16(block)), minimum = float_from_f16(load_u16(block + 2));
  const uint32_t fifth = load_u32(block + 4);
  for (int64_t i = 0; i < block_values / 2; ++i) {
    const int byte = std::to_integer<int>(block[8 + i]);
    const int low = static_cast<int>(fifth >> i & 1) << 4, high = static_cast<int>(fifth >> (i + block_values / 2) & 1) << 4;
    values[i] = scale * static_cast<float>((byte & 15) | low) + minimum;
    values[i + block_values / 2] = scale * static_cast<float>((byte >> 4) | high) + minimum;
  }
}

void dequantize_f32(const std::byte* block, float* values) {
  std::memcpy(values, block, sizeof(float));
}
void dequantize_f16(const std::byte* block, float* values) {
  *values = float_from_f16(load_u16(block));
}
void dequantize_bf16(const std::byte* block, float* values) {
  *values = float_from_bf16(load_u16(block));
}

template <auto dequantize_block>
void for_each_block(const std::byte* blocks, int64_t count, GgufBlock block, float* values) {
  for (int64_t i = 0; i < count; ++i) dequantize_block(blocks + i * block.bytes, values + i * block.values);
}

}  // namespace

float float_from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} << 16 & 0x80000000u;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {  // subnormal: magnitude · 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

float float_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

bool can_dequantize(GgufType type) {
  switch (type) {
    case GgufType::F32:
    case GgufType::F16:
    case GgufType::BF16:
    case GgufType::Q8_0:
    case GgufType::Q4_0:
    case GgufType::Q4_1:
    case GgufType::Q5_0:
    case GgufType::Q5_1:
    case GgufType::Q2_K:
    case GgufType::Q3_K:
    case GgufType::Q4_K:
    case GgufType::Q5_K:
    case GgufType::Q6_K:
      return true;
  }
  return false;
}

std::string dequantizable_types() {
  return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";
}

GgufBlock gguf_block(GgufType type) {
  if (!can_dequantize(type)) {
    throw_user_error("cannot read tensors of type {}; accepted: {}", gguf_type_name(type),
                     dequantizable_types());
  }
  const auto layout = gguf_type_layout(static_cast<uint32_t>(type));
  return {layout->block_values, layout->block_bytes};
}

void dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> values) {
  COTUNE_CHECK(can_dequantize(type));
  const GgufBlock block = gguf_block(type);
  const auto count = static_cast<int64_t>(blocks.size()) / block.bytes;
  COTUNE_CHECK(count * block.bytes == static_cast<int64_t>(blocks.size()) &&
                   count * block.values == static_cast<int64_t>(values.size()),
               "{} bytes of {} for {} values", blocks.size(), gguf_type_name(type), values.size());
  switch (type) {
    case GgufType::F32:
      return for_each_block<dequantize_f32>(blocks.data(), count, block, values.data());
    case GgufType::F16:
      return for_each_block<dequantize_f16>(blocks.data(), count, block, values.data());
    case GgufType::BF16:
      return for_each_block<dequantize_bf16>(blocks.data(), count, block, values.data());
    case GgufType::Q8_0:
      return for_each_block<dequantize_q8_0>(blocks.data(), count, block, values.data());
    case GgufType::Q4_0:
      return for_each_block<dequantize_q4_0>(blocks.data(), count, block, values.data());
    case GgufType::Q4_1:
      return for_each_block<dequantize_q4_1>(blocks.data(), count, block, values.data());
    case GgufType::Q5_0:
      return for_each_block<dequantize_q5_0>(blocks.data(), count, block, values.data());
    case GgufType::Q5_1:
      return for_each_block<dequantize_q5_1>(blocks.data(), count, block, values.data());
    case GgufType::Q2_K:
      return for_each_block<dequantize_q2_k>(blocks.data(), count, block, values.data());
    case GgufType::Q3_K:
      return for_each_block<dequantize_q3_k>(blocks.data(), count, block, values.data());
    case GgufType::Q4_K:
      return for_each_block<dequantize_q4_k>(blocks.data(), count, block, values.data());
    case GgufType::Q5_K:
      return for_each_block<dequantize_q5_k>(blocks.data(), count, block, values.data());
    case GgufType::Q6_K:
      return for_each_block<dequantize_q6_k>(blocks.data(), count, block, values.data());
  }
}

void require_dequantizable(const GgufTensor& tensor, const std::string& file_name) {
  if (!can_dequantize(tensor.type)) {
    throw_user_error("{}: tensor '{}': cannot read type {}; accepted: {}", file_name, tensor.name,
                     gguf_type_name(tensor.type), dequantizable_types());
  }
}

}  // namespace cotune
