#include "data/record_error.h"

#include <fmt/format.h>

namespace cotune {

std::string type_of(const nlohmann::ordered_json& value) {
  if (value.is_string()) return "a string";
  if (value.is_number()) return fmt::format("the number {}", value.dump());
  if (value.is_boolean() || value.is_null()) return value.dump();
  return value.is_array() ? "a list" : "an object";
}

}  // namespace cotune
