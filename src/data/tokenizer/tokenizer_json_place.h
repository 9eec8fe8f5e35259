/// A value in a JSON document together with its path, for error messages such as
/// `tokenizer.json: model.merges[3]: expected two tokens`.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace cotune {

/// Every accessor throws UserError, naming the place and what was found, when the value is not of the asked kind. The
/// document and the name must outlive the place. Place objects are cheap; the path is spelled out only in errors.
class JsonPlace {
 public:
  JsonPlace(const nlohmann::json& root, std::string_view name) : value_(&root), name_(name) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError(fmt::format("{}: {}: {}", name_, path(), fmt::format(format, std::forward<Args>(args)...)));
  }

  /// The member of an object; fails when it is missing or null.
  JsonPlace at(std::string_view key) const;
  /// The member of an object, or nothing when it is missing or null.
  std::optional<JsonPlace> find(std::string_view key) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  /// Elements of an array, in order. visit(const JsonPlace&)
  template <typename Visit>
  void each(const Visit& visit) const {
    const size_t count = size();
    for (size_t i = 0; i < count; ++i) visit(element(i));
  }
  size_t size() const;
  JsonPlace element(size_t index) const;

  const std::string& string() const;
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  const nlohmann::json& object() const;
  const nlohmann::json& array() const;

 private:
  JsonPlace(const nlohmann::json& value, const JsonPlace& parent, std::string path)
      : value_(&value), name_(parent.name_), path_(std::move(path)) {}
  std::string path() const { return path_.empty() ? "the whole file" : path_; }
  [[noreturn]] void wrong_kind(std::string_view expected) const;

  const nlohmann::json* value_;
  std::string_view name_;
  std::string path_;
};

}  // namespace cotune
