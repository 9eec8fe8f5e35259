#include "headline_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "rows.h"

namespace cotune {
namespace {

const nlohmann::json& document() {
  static const nlohmann::json document = nlohmann::json::parse(std::ifstream(data_file("headline_parameters.json")));
  return document;
}

Parameters taken_of(const std::string& section) {
  Parameters taken;
  for (const nlohmann::json& each : document().at(section)) taken[each.at("name")] = each.at("taken");
  return taken;
}

}  // namespace

const nlohmann::json& fixed_parameter(const std::string& name) {
  for (const nlohmann::json& each : document().at("fixed")) {
    if (each.at("name") == name) return each.at("value");
  }
  throw_user_error("bench/plan/data/headline_parameters.json: fixed: there is no {}", name);
}

std::vector<int64_t> fixed_list(const std::string& name) { return fixed_parameter(name).get<std::vector<int64_t>>(); }

std::vector<Parameters> corners_of(const std::string& section) {
  const nlohmann::json& entries = document().at(section);
  std::vector<Parameters> all(1 + (size_t{1} << entries.size()), taken_of(section));
  for (size_t k = 0; k < entries.size(); ++k) {
    const std::string name = entries[k].at("name");
    for (size_t corner = 1; corner < all.size(); ++corner) {
      all[corner][name] = entries[k].at(((corner - 1) >> k & 1) != 0 ? "high" : "low");
    }
  }
  return all;
}

std::string text_of(const Parameters& parameters) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : parameters) parts.push_back(fmt::format("{} {:.3g}", name, value));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string Range::text(const char* unit) const { return fmt::format("{:.2f}{} ({:.2f}–{:.2f})", taken, unit, least, most); }

std::string Range::missed_unless_above(double limit) const {
  if (least > limit) return "";
  return fmt::format(" (**missed** with {}: {:.2g})", text_of(at_least), least);
}

Range over_corners(const std::string& section, const ResultOf& result) {
  Range range;
  bool is_first = true;
  for (const Parameters& corner : corners_of(section)) {
    const double value = result(corner);
    if (is_first) range.taken = value;
    // Corners that differ in a parameter which changes nothing are equal but for the last digits: the first of them counts.
    if (is_first || value < range.least - 1e-9 * std::abs(range.least)) range.least = value, range.at_least = corner;
    if (is_first || value > range.most) range.most = value;
    is_first = false;
  }
  return range;
}

std::string one_at_a_time(const std::string& section, const ResultOf& result, const char* unit, int decimals) {
  std::vector<std::string> parts;
  const Parameters taken = taken_of(section);
  const double usual = result(taken);
  for (const nlohmann::json& each : document().at(section)) {
    for (const char* end : {"low", "high"}) {
      const std::string name = each.at("name");
      Parameters changed = taken;
      changed[name] = each.at(end);
      const double value = result(changed);
      if (std::abs(value - usual) <= 1e-9 * std::abs(usual)) continue;
      parts.push_back(fmt::format("{} {:.3g}: {:.{}f}{}", name, changed[name], value, decimals, unit));
    }
  }
  return fmt::format("; with one parameter changed: {}", fmt::join(parts, ", "));
}

double value_that_gives(const std::string& section, const std::string& name, double low, double high, double goal, const ResultOf& result) {
  Parameters parameters = taken_of(section);
  const auto is_above = [&](double value) {
    parameters[name] = value;
    return result(parameters) > goal;
  };
  const bool at_low = is_above(low);
  if (is_above(high) == at_low) return std::numeric_limits<double>::quiet_NaN();
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (is_above(middle) == at_low ? low : high) = middle;
  }
  return low;
}

}  // namespace cotune
