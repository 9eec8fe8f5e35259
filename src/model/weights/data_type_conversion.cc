#include "model/weights/data_type_conversion.h"

#include "base/error.h"

namespace cotune {

at::ScalarType scalar_type_of(DataType type) {
  switch (type) {
    case DataType::f64:
      return at::kDouble;
    case DataType::f32:
      return at::kFloat;
    case DataType::f16:
      return at::kHalf;
    case DataType::bf16:
      return at::kBFloat16;
    case DataType::i64:
      return at::kLong;
    case DataType::i32:
      return at::kInt;
    case DataType::i16:
      return at::kShort;
    case DataType::i8:
      return at::kChar;
    case DataType::u8:
      return at::kByte;
    case DataType::boolean:
      return at::kBool;
  }
  COTUNE_CHECK(false, "data type {}", static_cast<int>(type));
}

DataType data_type_of(at::ScalarType type) {
  for (const DataType candidate : {DataType::f64, DataType::f32, DataType::f16, DataType::bf16}) {
    if (scalar_type_of(candidate) == type) return candidate;
  }
  COTUNE_CHECK(false, "{} is no dtype of weights", c10::toString(type));
  return DataType::f32;
}

bool is_weight_type(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

}  // namespace cotune
