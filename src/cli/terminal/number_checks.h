#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cotune {

/// A number from `low` to `high`. Unlike CLI::Range, which compares, it does not take NaN.
inline CLI::Validator number_in(double low, double high) {
  const auto check = [low, high](const std::string& text) {
    double number = 0;
    const bool good = CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
    return good ? std::string() : "must be a number from " + CLI::detail::to_string(low) + " to " +
                                      CLI::detail::to_string(high) + ", got " + text;
  };
  return CLI::Validator(check, "NUMBER");
}

}  // namespace cotune
