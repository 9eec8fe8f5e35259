#include "parquet/arrow_json.h"

#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>

#include <string>
#include <string_view>

namespace cotune {
namespace {

using nlohmann::ordered_json;

constexpr size_t least_value_bytes = 2;  // a digit and a comma

void take(size_t bytes, size_t& left_bytes) {
  if (bytes > left_bytes) throw RowTooLong();
  left_bytes -= bytes;
}

template <typename ArrayType>
ordered_json number(const arrow::Array& array, int64_t row) {
  return static_cast<const ArrayType&>(array).Value(row);
}

template <typename ArrayType>
ordered_json text(const arrow::Array& array, int64_t row, size_t& left_bytes) {
  const std::string_view view = static_cast<const ArrayType&>(array).GetView(row);
  take(view.size(), left_bytes);
  return std::string(view);
}

template <typename ArrayType>
ordered_json list(const arrow::Array& array, int64_t row, size_t& left_bytes) {
  const auto& lists = static_cast<const ArrayType&>(array);
  ordered_json items = ordered_json::array();
  const int64_t begin = lists.value_offset(row), end = begin + lists.value_length(row);
  if (static_cast<size_t>(end - begin) > left_bytes / least_value_bytes) throw RowTooLong();
  items.get_ref<ordered_json::array_t&>().reserve(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) items.push_back(json_of(*lists.values(), i, left_bytes));
  return items;
}

ordered_json members(const arrow::StructArray& array, int64_t row, size_t& left_bytes) {
  ordered_json object = ordered_json::object();
  for (int i = 0; i < array.num_fields(); ++i) {
    const std::shared_ptr<arrow::Array> field = array.field(i);
    if (field->IsNull(row)) continue;
    const std::string& name = array.struct_type()->field(i)->name();
    take(name.size(), left_bytes);
    object[name] = json_of(*field, row, left_bytes);
  }
  return object;
}

ordered_json entries(const arrow::MapArray& array, int64_t row, size_t& left_bytes) {
  ordered_json object = ordered_json::object();
  for (int64_t i = array.value_offset(row); i < array.value_offset(row) + array.value_length(row); ++i) {
    object[json_of(*array.keys(), i, left_bytes).get<std::string>()] = json_of(*array.items(), i, left_bytes);
  }
  return object;
}

bool is_text(const arrow::DataType& type) {
  const arrow::Type::type id = type.id();
  if (id == arrow::Type::DICTIONARY) return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
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
      if (!is_text(*static_cast<const arrow::MapType&>(type).key_type())) return type.ToString();
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

ordered_json json_of(const arrow::Array& array, int64_t row, size_t& left_bytes) {
  take(least_value_bytes, left_bytes);
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
    case arrow::Type::STRING: return text<arrow::StringArray>(array, row, left_bytes);
    case arrow::Type::LARGE_STRING: return text<arrow::LargeStringArray>(array, row, left_bytes);
    case arrow::Type::STRING_VIEW: return text<arrow::StringViewArray>(array, row, left_bytes);
    case arrow::Type::LIST: return list<arrow::ListArray>(array, row, left_bytes);
    case arrow::Type::LARGE_LIST: return list<arrow::LargeListArray>(array, row, left_bytes);
    case arrow::Type::FIXED_SIZE_LIST: return list<arrow::FixedSizeListArray>(array, row, left_bytes);
    case arrow::Type::STRUCT: return members(static_cast<const arrow::StructArray&>(array), row, left_bytes);
    case arrow::Type::MAP: return entries(static_cast<const arrow::MapArray&>(array), row, left_bytes);
    case arrow::Type::DICTIONARY: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
      return json_of(*coded.dictionary(), coded.GetValueIndex(row), left_bytes);
    }
    case arrow::Type::EXTENSION: return json_of(*static_cast<const arrow::ExtensionArray&>(array).storage(), row, left_bytes);
    default: return nullptr;
  }
}

}  // namespace cotune
