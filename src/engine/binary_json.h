/// Arrays of numbers as binary values of JSON: in CBOR they take their own bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace cotune {

/// As this machine holds them; what values_of_binary reads.
template <typename Value>
nlohmann::json binary_json(const Value* values, size_t count) {
  std::vector<uint8_t> bytes(count * sizeof(Value));
  if (count > 0) std::memcpy(bytes.data(), values, bytes.size());
  return nlohmann::json::binary(std::move(bytes));
}

template <typename Value>
std::vector<Value> values_of_binary(const nlohmann::json& json) {
  const auto& bytes = json.get_binary();
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace cotune
