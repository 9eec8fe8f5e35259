#include "model/config/config_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace cotune {
namespace {

/// The value for a message. Nested values are only named: their text may be long, and printing them recurses.
std::string describe(const nlohmann::json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object()) return "an object";
  if (value->is_array()) return "a list";
  std::string text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::optional<int32_t> token_id_of(const nlohmann::json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT32_MAX}) return std::nullopt;
  return value.get<int32_t>();
}

}  // namespace

ConfigFields::ConfigFields(const nlohmann::json& object, std::string file_name, std::string prefix,
                           Diagnostics& mistakes)
    : object_(object), file_name_(std::move(file_name)), prefix_(std::move(prefix)), mistakes_(mistakes) {
  COTUNE_CHECK(object.is_object());
}

const nlohmann::json* ConfigFields::find(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::has(std::string_view name) const {
  return find(name) != nullptr;
}
bool ConfigFields::names(std::string_view name) const {
  return object_.contains(name);
}

int64_t ConfigFields::count(std::string_view name, int64_t maximum, std::optional<int64_t> fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
      value->get<uint64_t>() <= static_cast<uint64_t>(maximum)) {
    return value->get<int64_t>();
  }
  refuse(name, fmt::format("a whole number from 1 to {}", maximum));
  return fallback.value_or(1);
}

double ConfigFields::positive_number(std::string_view name, std::optional<double> fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_number() && value->get<double>() > 0 &&
      std::isfinite(value->get<double>())) {
    return value->get<double>();
  }
  refuse(name, "a number above 0");
  return fallback.value_or(1);
}

bool ConfigFields::flag(std::string_view name, bool fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  refuse(name, "true, false");
  return fallback;
}

std::string ConfigFields::text(std::string_view name, std::optional<std::string> fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  refuse(name, "a string");
  return fallback.value_or("");
}

std::vector<int32_t> ConfigFields::token_ids(std::string_view name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return {};
  std::vector<int32_t> ids;
  bool right = true;
  const auto add = [&](const nlohmann::json& item) {
    const auto id = token_id_of(item);
    right = right && id.has_value();
    if (id) ids.push_back(*id);
  };
  if (value->is_array()) {
    for (const auto& item : *value) add(item);
  } else {
    add(*value);
  }
  if (!right) refuse(name, "a token id or a list of token ids");
  return ids;
}

std::optional<ConfigFields> ConfigFields::object(std::string_view name) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    refuse(name, "an object");
    return std::nullopt;
  }
  return ConfigFields(*value, file_name_, fmt::format("{}{}.", prefix_, name), mistakes_);
}

void ConfigFields::refuse(std::string_view name, std::string_view accepted) {
  mistakes_.add(file_name_, 0, fmt::format("{}{}", prefix_, name),
                fmt::format("found {}; accepted: {}", describe(find(name)), accepted));
}

void ConfigFields::require_off(std::string_view name, std::string_view why) {
  const nlohmann::json* value = find(name);
  if (value == nullptr || *value == false || *value == 0) return;
  refuse(name, fmt::format("null, false, 0 ({})", why));
}

}  // namespace cotune
