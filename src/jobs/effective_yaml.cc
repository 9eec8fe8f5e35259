#include <fmt/format.h>

#include <type_traits>

#include "jobs/jobs_file.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {

namespace {

/// Whether the effective configuration shows the option: where it applies, and is not simply absent.
bool is_shown(const Option& option, const OptionTarget& target, const OptionValue& value) {
  if (option.input_only || (option.condition && !option.condition->holds(target))) return false;
  const bool is_scalar = std::visit([](const auto& held) { return std::is_arithmetic_v<std::decay_t<decltype(held)>>; }, value);
  return !is_unset(value) || (is_scalar && option.group.empty());
}

std::string section_text(Section section, const OptionTarget& target, const std::string& indent) {
  std::string text;
  for (const Option& option : option_table()) {
    if (option.section != section) continue;
    const OptionValue value = option.get(target);
    if (is_shown(option, target, value)) text += fmt::format("{}{}: {}\n", indent, option.key, to_yaml_text(value));
  }
  return text;
}

}  // namespace

std::string to_yaml(const JobsFile& jobs_file) {
  JobsFile copy = jobs_file;
  std::string text = "cotune: 1\n";
  const OptionTarget top{&copy.model, &copy.run, nullptr};
  for (Section section : {Section::model, Section::run}) {
    text += fmt::format("{}:\n{}", section_name(section), section_text(section, top, "  "));
  }
  text += "jobs:\n";
  for (JobSpec& job : copy.jobs) {
    const OptionTarget target{&copy.model, &copy.run, &job};
    std::string own = section_text(Section::job, target, "    ");
    own.replace(0, 4, "  - ");
    text += own;
    for (Section section : {Section::data, Section::adapter, Section::train}) {
      text += fmt::format("    {}:\n{}", section_name(section), section_text(section, target, "      "));
    }
    if (job.sweep.of.empty()) continue;
    text += fmt::format("    sweep:\n{}", section_text(Section::sweep, target, "      "));
    if (job.sweep.halving.is_on()) text += fmt::format("      halving:\n{}", section_text(Section::halving, target, "        "));
  }
  return text;
}

}  // namespace cotune
