#include "formats/data_type.h"

#include "base/error.h"

namespace cotune {
namespace {

struct Row {
  DataType type;
  std::string_view name;
  size_t bytes;
};

constexpr Row type_rows[] = {
    {DataType::f64, "F64", 8},      {DataType::f32, "F32", 4}, {DataType::f16, "F16", 2},
    {DataType::bf16, "BF16", 2},    {DataType::i64, "I64", 8}, {DataType::i32, "I32", 4},
    {DataType::i16, "I16", 2},      {DataType::i8, "I8", 1},   {DataType::u8, "U8", 1},
    {DataType::boolean, "BOOL", 1},
};

const Row& row_of(DataType type) {
  const Row& row = type_rows[static_cast<size_t>(type)];
  COTUNE_CHECK(row.type == type);
  return row;
}

}  // namespace

size_t element_bytes(DataType type) {
  return row_of(type).bytes;
}

std::string_view safetensors_name(DataType type) {
  return row_of(type).name;
}

std::optional<DataType> data_type_of(std::string_view safetensors_name) {
  for (const Row& row : type_rows) {
    if (row.name == safetensors_name) return row.type;
  }
  return std::nullopt;
}

}  // namespace cotune
