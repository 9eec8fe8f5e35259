#include "data/records/record_error.h"

#include <fmt/format.h>

#include <new>

#include "base/error.h"

namespace cotune {

std::string complaint_of(const std::exception& error) {
  if (dynamic_cast<const std::runtime_error*>(&error) != nullptr || dynamic_cast<const InternalError*>(&error) != nullptr) {
    return error.what();
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "takes more memory than there is";
  return fmt::format("bug in cotune: this record ends in an exception ({})", error.what());
}

std::string type_of(const nlohmann::ordered_json& value) {
  if (value.is_string()) return "a string";
  if (value.is_number()) return fmt::format("the number {}", value.dump());
  if (value.is_boolean() || value.is_null()) return value.dump();
  return value.is_array() ? "a list" : "an object";
}

const std::string& string_field(const nlohmann::ordered_json& record, const char* name, const std::string& place) {
  const std::string field = place.empty() ? name : fmt::format("{}.{}", place, name);
  const auto found = record.find(name);
  if (found == record.end()) throw RecordError(field, "missing; expected a string");
  if (!found->is_string()) throw RecordError(field, fmt::format("expected a string, found {}", type_of(*found)));
  return found->get_ref<const std::string&>();
}

bool holds_something(const nlohmann::ordered_json& record, const char* field) {
  const auto found = record.find(field);
  if (found == record.end()) return false;
  return found->is_string() ? !found->get_ref<const std::string&>().empty() : !found->empty();
}

}  // namespace cotune
