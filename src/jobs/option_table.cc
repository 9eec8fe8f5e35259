#include "jobs/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "jobs/options/sections.h"

namespace cotune {

std::string_view section_name(Section section) {
  switch (section) {
    case Section::model: return "model";
    case Section::run: return "run";
    case Section::job: return "jobs[]";
    case Section::data: return "data";
    case Section::adapter: return "adapter";
    case Section::train: return "train";
    case Section::sweep: return "sweep";
    case Section::halving: return "halving";
  }
  return "";
}

std::string_view section_path(Section section) { return section == Section::halving ? "sweep.halving" : section_name(section); }

std::span<const Section> sections_in(Section section) {
  static constexpr Section of_job[] = {Section::data, Section::adapter, Section::train, Section::sweep};
  static constexpr Section of_sweep[] = {Section::halving};
  if (section == Section::job) return of_job;
  if (section == Section::sweep) return of_sweep;
  return {};
}

std::string Option::path() const {
  return section == Section::job ? key : fmt::format("{}.{}", section_path(section), key);
}

const std::vector<Option>& option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    options::add_model(all);
    options::add_run(all);
    options::add_job(all);
    options::add_data(all);
    options::add_adapter(all);
    options::add_train(all);
    options::add_sweep(all);
    return all;
  }();
  return table;
}

const Option* find_option(Section section, std::string_view name) {
  for (const Option& option : option_table()) {
    if (option.section != section) continue;
    if (option.key == name || std::count(option.aliases.begin(), option.aliases.end(), name)) return &option;
  }
  return nullptr;
}

OptionValue default_value(const Option& option) {
  ModelSpec model;
  RunSpec run;
  JobSpec job;
  return option.get({&model, &run, &job});
}

bool is_unset(const OptionValue& value) {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_arithmetic_v<Held>) {
          return held == Held{};
        } else {
          return held.empty();
        }
      },
      value);
}

}  // namespace cotune
