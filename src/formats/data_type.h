/// Element types of tensors in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cotune {

enum class DataType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

/// Bytes of one element.
size_t element_bytes(DataType type);

/// The name in safetensors files: "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL".
std::string_view safetensors_name(DataType type);

/// The inverse of safetensors_name; nothing for a name that is not among them.
std::optional<DataType> data_type_of(std::string_view safetensors_name);

}  // namespace cotune
