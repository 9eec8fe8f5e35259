#pragma once

#include <nlohmann/json.hpp>

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

/// The value at `row`. Members of structs that are null are left out.
nlohmann::ordered_json json_of(const arrow::Array& array, int64_t row);

}  // namespace cotune
