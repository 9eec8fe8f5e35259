/// Typed reading of the fields of a config.json, which collects every mistake instead of stopping at the
/// first.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"

namespace cotune {

/// One JSON object. A field that is absent or null is the fallback; without a fallback it is a mistake. A
/// field of the wrong type or outside its range is a mistake; the value returned then is the fallback or a
/// harmless one.
class ConfigFields {
 public:
  /// `prefix` comes before field names in messages ("rope_scaling."). The object and `mistakes` must outlive
  /// this.
  ConfigFields(const nlohmann::json& object, std::string file_name, std::string prefix,
               Diagnostics& mistakes);

  bool has(std::string_view name) const;    ///< there and not null
  bool names(std::string_view name) const;  ///< there, be it null
  bool is_null(std::string_view name) const { return names(name) && !has(name); }

  int64_t count(std::string_view name, int64_t maximum,
                std::optional<int64_t> fallback = std::nullopt);  ///< 1 … maximum
  double positive_number(std::string_view name, std::optional<double> fallback = std::nullopt);
  bool flag(std::string_view name, bool fallback);
  std::string text(std::string_view name, std::optional<std::string> fallback = std::nullopt);
  /// One id or a list of ids, 0 … 2^31 − 1; empty when absent.
  std::vector<int32_t> token_ids(std::string_view name);
  /// A nested object; nothing when absent or not an object (which is a mistake).
  std::optional<ConfigFields> object(std::string_view name);

  /// A mistake: "FIELD: found FOUND; accepted: ACCEPTED". FOUND is the JSON text of the field, or "nothing".
  void refuse(std::string_view name, std::string_view accepted);
  /// Refuses the field unless it is absent, null, false or 0.
  void require_off(std::string_view name, std::string_view why);

 private:
  const nlohmann::json* find(std::string_view name) const;

  const nlohmann::json& object_;
  std::string file_name_;
  std::string prefix_;
  Diagnostics& mistakes_;
};

}  // namespace cotune
