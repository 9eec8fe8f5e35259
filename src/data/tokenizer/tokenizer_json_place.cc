#include "data/tokenizer/tokenizer_json_place.h"

namespace cotune {

JsonPlace JsonPlace::at(std::string_view key) const {
  if (auto member = find(key)) return *member;
  fail("'{}' is missing", key);
}

std::optional<JsonPlace> JsonPlace::find(std::string_view key) const {
  const auto& members = object();
  const auto it = members.find(std::string(key));
  if (it == members.end() || it->is_null()) return std::nullopt;
  return JsonPlace(*it, *this, path_.empty() ? std::string(key) : path_ + "." + std::string(key));
}

bool JsonPlace::boolean_or(std::string_view key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : otherwise;
}

const nlohmann::json& JsonPlace::array() const {
  if (!value_->is_array()) wrong_kind("an array");
  return *value_;
}

size_t JsonPlace::size() const { return array().size(); }

JsonPlace JsonPlace::element(size_t index) const {
  return JsonPlace((*value_)[index], *this, fmt::format("{}[{}]", path_, index));
}

const std::string& JsonPlace::string() const {
  if (!value_->is_string()) wrong_kind("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) wrong_kind("true or false");
  return value_->get<bool>();
}

int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer() || (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX)) {
    wrong_kind("an integer");
  }
  return value_->get<int64_t>();
}

double JsonPlace::number() const {
  if (!value_->is_number()) wrong_kind("a number");
  return value_->get<double>();
}

const nlohmann::json& JsonPlace::object() const {
  if (!value_->is_object()) wrong_kind("an object");
  return *value_;
}

void JsonPlace::wrong_kind(std::string_view expected) const {
  fail("expected {}, got {}", expected, value_->type_name());
}

}  // namespace cotune
