#include "adapter/adapter_config_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jobs/module_pattern.h"

namespace cotune {
namespace {

using Json = AdapterConfigFields::Json;

/// The value for a message. Nested values are only named: their text may be long, and printing them recurses.
std::string describe(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object()) return "an object";
  if (value->is_array()) return "a list";
  const std::string text = value->dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

std::optional<int64_t> whole_in(const Json* value, int64_t low, int64_t high) {
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  const auto number = value->get<int64_t>();
  return low <= number && number <= high ? std::optional(number) : std::nullopt;
}

std::optional<double> finite_number(const Json* value) {
  if (value == nullptr || !value->is_number() || !std::isfinite(value->get<double>())) return std::nullopt;
  return value->get<double>();
}

std::string whole_text(int64_t low, int64_t high) {
  return fmt::format("a whole number from {} to {}", low, high);
}

}  // namespace

AdapterConfigFields::AdapterConfigFields(const Json& config, std::string file, Diagnostics& mistakes)
    : config_(config), file_(std::move(file)), mistakes_(mistakes) {}

const Json* AdapterConfigFields::find(const char* name) const {
  const auto found = config_.find(name);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

bool AdapterConfigFields::flag(const char* name, bool fallback) {
  const Json* value = find(name);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  if (value != nullptr) refuse(name, "true or false", value);
  return fallback;
}

std::string AdapterConfigFields::text(const char* name, std::optional<std::string> fallback) {
  const Json* value = find(name);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr || !fallback) refuse(name, "a text", value);
  return fallback.value_or("");
}

int64_t AdapterConfigFields::whole(const char* name, int64_t low, int64_t high) {
  const Json* value = find(name);
  const std::optional<int64_t> number = whole_in(value, low, high);
  if (!number) refuse(name, whole_text(low, high), value);
  return number.value_or(low);
}

double AdapterConfigFields::number(const char* name, const char* accepted, const std::function<bool(double)>& is_good,
                                   std::optional<double> fallback) {
  const Json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  const std::optional<double> number = finite_number(value);
  if (number && is_good(*number)) return *number;
  refuse(name, accepted, value);
  return fallback.value_or(0);
}

std::vector<std::string> AdapterConfigFields::names(const char* name, std::optional<std::vector<std::string>> fallback) {
  const Json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_string()) {
    // In PEFT a text is an expression on the whole name; one of letters alone would be a module's name here.
    const auto text = value->get<std::string>();
    return {is_plain_module_name(text) ? "(?:" + text + ")" : text};
  }
  const bool is_list =
      value != nullptr && value->is_array() && std::ranges::all_of(*value, [](const Json& item) { return item.is_string(); });
  if (is_list) return value->get<std::vector<std::string>>();
  refuse(name, "a list of module names, or one name or regular expression", value);
  return fallback.value_or(std::vector<std::string>{});
}

std::vector<int64_t> AdapterConfigFields::layers(const char* name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const auto layer = [](const Json& item) { return whole_in(&item, 0, INT64_MAX); };
  if (const std::optional<int64_t> one = layer(*value)) return {*one};
  if (value->is_array() && std::ranges::all_of(*value, [&](const Json& item) { return layer(item).has_value(); })) {
    return value->get<std::vector<int64_t>>();
  }
  refuse(name, "the number of a layer, counted from 0, or a list of such", value);
  return {};
}

template <typename T, typename Read>
ModulePattern<T> AdapterConfigFields::by_module(const char* name, const std::string& accepted, Read read) {
  const Json* value = find(name);
  ModulePattern<T> pattern;
  if (value == nullptr) return pattern;
  if (!value->is_object()) {
    refuse(name, "an object that gives regular expressions on modules' names, each, " + accepted, value);
    return pattern;
  }
  for (const auto& [key, item] : value->items()) {
    const std::optional<T> number = read(&item);
    if (!number) refuse(fmt::format("{}.{}", name, key), accepted, &item);
    pattern.emplace_back(key, number.value_or(T{1}));
  }
  return pattern;
}

ModulePattern<int64_t> AdapterConfigFields::wholes_by_module(const char* name, int64_t low, int64_t high) {
  return by_module<int64_t>(name, whole_text(low, high), [&](const Json* item) { return whole_in(item, low, high); });
}

ModulePattern<double> AdapterConfigFields::numbers_by_module(const char* name) {
  return by_module<double>(name, "a number", finite_number);
}

void AdapterConfigFields::refuse(const std::string& name, const std::string& accepted, const Json* found) {
  mistakes_.add(file_, 0, name, fmt::format("must be {}, got {}", accepted, describe(found)));
}

void AdapterConfigFields::add(const char* name, const std::string& message) {
  mistakes_.add(file_, 0, name, message);
}

}  // namespace cotune
