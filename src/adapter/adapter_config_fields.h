/// Typed reading of an adapter_config.json. Every mistake is collected: `FILE: FIELD: must be ACCEPTED, got FOUND`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/job.h"

namespace cotune {

/// Where there is a fallback, it is the value of a field that is absent or null; without one that is a mistake. The value that comes
/// with a mistake is the fallback or a harmless one.
class AdapterConfigFields {
 public:
  using Json = nlohmann::ordered_json;

  /// config: an object. It and `mistakes` must outlive this.
  AdapterConfigFields(const Json& config, std::string file, Diagnostics& mistakes);

  bool has(const char* name) const { return find(name) != nullptr; }  ///< there and not null
  /// The field's value; nullptr where it is absent or null.
  const Json* find(const char* name) const;

  bool flag(const char* name, bool fallback);
  std::string text(const char* name, std::optional<std::string> fallback = std::nullopt);
  int64_t whole(const char* name, int64_t low, int64_t high);
  /// accepted: `a number above 0`; what is_good says yes to. Numbers are finite.
  double number(const char* name, const char* accepted, const std::function<bool(double)>& is_good,
                std::optional<double> fallback = std::nullopt);
  /// One regular expression on whole names (a text), or a list of names.
  std::vector<std::string> names(const char* name, std::optional<std::vector<std::string>> fallback = std::nullopt);
  /// One number or a list; empty where there is none.
  std::vector<int64_t> layers(const char* name);
  /// Regular expressions on modules' names to values; empty where there is none.
  ModulePattern<int64_t> wholes_by_module(const char* name, int64_t low, int64_t high);
  ModulePattern<double> numbers_by_module(const char* name);

  /// `must be ACCEPTED, got FOUND`. found: nullptr: nothing.
  void refuse(const std::string& name, const std::string& accepted, const Json* found);
  /// Another message about the field.
  void add(const char* name, const std::string& message);

 private:
  template <typename T, typename Read>
  ModulePattern<T> by_module(const char* name, const std::string& accepted, Read read);

  const Json& config_;
  std::string file_;
  Diagnostics& mistakes_;
};

}  // namespace cotune
