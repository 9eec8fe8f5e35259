#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace cotune {

/// "" where every value of the type has a value in JSON: nulls, booleans, numbers, texts, and lists, structs, maps with text keys
/// and dictionaries of them. Else the part of the type that has none.
std::string type_without_json(const arrow::DataType& type);

/// A row's JSON would be longer than a line may be.
struct RowTooLong {};

/// The value at `row`. Members of structs that are null are left out. left_bytes: how long its text may be; lowered by a
/// lower bound of the length while the value is formed. Throws RowTooLong where too little is left, before more is formed.
nlohmann::ordered_json json_of(const arrow::Array& array, int64_t row, size_t& left_bytes);

}  // namespace cotune
