#include "parquet/arrow_json.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>

namespace cotune {
namespace {

using nlohmann::ordered_json;

template <typename ArrayType>
ordered_json number(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

template <typename ArrayType>
ordered_json text(const arrow::Array& array, int64_t row) {
  return std::string(static_cast<const ArrayType&>(array).GetView(row));
}

template <typename ArrayType>
ordered_json list(const arrow::Array& array, int64_t row) {
  const auto& lists = static_cast<const ArrayType&>(array);
  ordered_json items = ordered_json::array();
  const int64_t begin = lists.value_offset(row), end = begin + lists.value_length(row);
  for (int64_t i = begin; i < end; ++i) items.push_back(json_of(*lists.values(), i));
  return items;
}

ordered_json members(const arrow::StructArray& array, int64_t row) {
  ordered_json object = ordered_json::object();
  for (int i = 0; i < array.num_fields(); ++i) {
    const std::shared_ptr<arrow::Array> field = array.field(i);
    if (!field->IsNull(row)) object[array.struct_type()->field(i)->name()] = json_of(*field, row);
  }
  return object;
}

ordered_json entries(const arrow::MapArray& array, int64_t row) {
  ordered_json object = ordered_json::object();
  for (int64_t i = array.value_offset(row); i < array.value_offset(row) + array.value_length(row); ++i) {
    object[json_of(*array.keys(), i).get<std::string>()] = json_of(*array.items(), i);
  }
  return object;
}

bool is_text(arrow::Type::type id) {
  return id == arrow::Type::STRING || id == arrow::Type::LARGE_STRING || id == arrow::Type::STRING_VIEW;
}

}  // namespace

std::string type_without_json(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA:
    case arrow::Type::BOOL:
    case arrow::Type::INT8:
    case arrow::Type::INT16:
    case arrow::Type::INT32:
    case arrow::Type::INT64:
    case arrow::Type::UINT8:
    case arrow::Type::UINT16:
    case arrow::Type::UINT32:
    case arrow::Type::UINT64:
    case arrow::Type::HALF_FLOAT:
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW: return "";
    case arrow::Type::DICTIONARY: return type_without_json(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::EXTENSION: return type_without_json(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    case arrow::Type::MAP:
      if (!is_text(static_cast<const arrow::MapType&>(type).key_type()->id())) return type.ToString();
      [[fallthrough]];
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::STRUCT:
      for (const auto& field : type.fields()) {
        if (const std::string part = type_without_json(*field->type()); !part.empty()) return part;
      }
      return "";
    default: return type.ToString();
  }
}

ordered_json json_of(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::BOOL: return number<arrow::BooleanArray>(array, row);
    case arrow::Type::INT8: return number<arrow::Int8Array>(array, row);
    case arrow::Type::INT16: return number<arrow::Int16Array>(array, row);
    case arrow::Type::INT32: return number<arrow::Int32Array>(array, row);
    case arrow::Type::INT64: return number<arrow::Int64Array>(array, row);
    case arrow::Type::UINT8: return number<arrow::UInt8Array>(array, row);
    case arrow::Type::UINT16: return number<arrow::UInt16Array>(array, row);
    case arrow::Type::UINT32: return number<arrow::UInt32Array>(array, row);
    case arrow::Type::UINT64: return number<arrow::UInt64Array>(array, row);
    case arrow::Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(static_cast<const arrow::HalfFloatArray&>(array).Value(row)).ToFloat();
    case arrow::Type::FLOAT: return number<arrow::FloatArray>(array, row);
    case arrow::Type::DOUBLE: return number<arrow::DoubleArray>(array, row);
    case arrow::Type::STRING: return text<arrow::StringArray>(array, row);
    case arrow::Type::LARGE_STRING: return text<arrow::LargeStringArray>(array, row);
    case arrow::Type::STRING_VIEW: return text<arrow::StringViewArray>(array, row);
    case arrow::Type::LIST: return list<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST: return list<arrow::LargeListArray>(array, row);
    case arrow::Type::FIXED_SIZE_LIST: return list<arrow::FixedSizeListArray>(array, row);
    case arrow::Type::STRUCT: return members(static_cast<const arrow::StructArray&>(array), row);
    case arrow::Type::MAP: return entries(static_cast<const arrow::MapArray&>(array), row);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return json_of(*coded.dictionary(), coded.GetValueIndex(row));
    }
    case arrow::Type::EXTENSION: return json_of(*static_cast<const arrow::ExtensionArray&>(array).storage(), row);
    default: return nullptr;
  }
}

}  // namespace cotune
