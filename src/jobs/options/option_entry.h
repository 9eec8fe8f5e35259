/// How an entry of the option table is written: what it accepts, what it is besides, and the field of a spec that it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "jobs/enum_names.h"
#include "jobs/option_table.h"

namespace cotune::options {

inline constexpr double no_bound = std::numeric_limits<double>::infinity();
inline constexpr int64_t most_tokens = 1 << 20;
inline constexpr int64_t most_steps = 1'000'000'000;

using ChoiceAliases = std::vector<std::pair<std::string, std::string>>;

/// Bounds are accepted, but for the low one of `above`.
Accepted of_type(OptionType type);
Accepted whole(int64_t low, int64_t high);
Accepted at_least(double low);
Accepted above(double low, double high = no_bound);
Accepted between(double low, double high);
Accepted share_below_one();  ///< 0 is one, 1 is not
Accepted choice(std::vector<std::string> choices, ChoiceAliases aliases = {});
Accepted hub_name_or(OptionType type);
/// The names of an enum's values.
template <typename Enum>
Accepted choice_of(ChoiceAliases aliases = {}) {
  return choice({enum_names<Enum>.begin(), enum_names<Enum>.end()}, std::move(aliases));
}

/// What few entries say; the members are those of Option.
struct Extra {
  std::vector<std::string> aliases = {};
  std::vector<std::string> root_aliases = {};
  std::string default_note = {};
  bool required = false;
  bool in_defaults = true;
  bool is_recorded = false;
  std::string group = {};
  std::string alternative = {};
  std::optional<Condition> condition = {};
};

/// An option without get and set.
Option describe(Section section, std::string key, Accepted accepted, std::string description, Extra extra);

/// An option that is the field `access` returns a reference to.
template <typename Access>
Option field(Section section, std::string key, Access access, Accepted accepted, std::string description,
             Extra extra = {}) {
  using Field = std::remove_reference_t<decltype(access(OptionTarget{}))>;
  Option option = describe(section, std::move(key), std::move(accepted), std::move(description), std::move(extra));
  if constexpr (std::is_enum_v<Field>) {
    option.get = [access](const OptionTarget& target) -> OptionValue { return std::string(name_of(access(target))); };
    option.set = [access](const OptionTarget& target, const OptionValue& value) {
      const auto& names = enum_names<Field>;
      const auto found = std::find(names.begin(), names.end(), std::get<std::string>(value));
      COTUNE_CHECK(found != names.end());
      access(target) = static_cast<Field>(found - names.begin());
    };
  } else {
    option.get = [access](const OptionTarget& target) -> OptionValue { return access(target); };
    option.set = [access](const OptionTarget& target, const OptionValue& value) {
      access(target) = std::get<Field>(value);
    };
  }
  return option;
}

/// Another way to give a value: `neutral` changes nothing.
Option input_only(Section section, std::string key, OptionValue neutral,
                  std::function<void(const OptionTarget&, const OptionValue&)> set, Accepted accepted,
                  std::string description, Extra extra);

/// `access` of a member of an OptionTarget: COTUNE_FIELD(run->memory).
#define COTUNE_FIELD(member) [](const OptionTarget& target) -> auto& { return target.member; }

}  // namespace cotune::options
