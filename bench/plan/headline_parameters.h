/// The free parameters of the headline comparisons (data/headline_parameters.json), and results over the corners of their ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace cotune {

using Parameters = std::map<std::string, double>;

/// A parameter that is not varied, by name: a number, or eight of them.
const nlohmann::json& fixed_parameter(const std::string& name);
std::vector<int64_t> fixed_list(const std::string& name);

/// Of a section of the file: `taken` first, then every corner.
std::vector<Parameters> corners_of(const std::string& section);

/// `name value, …`
std::string text_of(const Parameters& parameters);

using ResultOf = std::function<double(const Parameters&)>;

/// A result at `taken`, its least and most over the corners, and where the least is.
struct Range {
  double taken = 0, least = 0, most = 0;
  Parameters at_least;
  std::string text(const char* unit = "×") const;
  /// "" where it is above the limit at every corner, else the mark of a miss with the corner where the least is.
  std::string missed_unless_above(double limit) const;
};
Range over_corners(const std::string& section, const ResultOf& result);

/// `; with one parameter changed: name value: result, …`: one parameter of the section at an end of its range, the others at `taken`. Ends
/// that are taken, and those that change nothing, are left out.
std::string one_at_a_time(const std::string& section, const ResultOf& result, const char* unit = "", int decimals = 2);

/// The value of one parameter, the others at `taken`, at which a result that is monotone in it is `goal`; by bisection between `low` and
/// `high`. NaN where it is on one side of the goal at both.
double value_that_gives(const std::string& section, const std::string& name, double low, double high, double goal, const ResultOf& result);

}  // namespace cotune
