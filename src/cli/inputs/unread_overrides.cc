#include "cli/inputs/unread_overrides.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cotune {

void refuse_unread(const std::map<std::string, OptionPlace>& run_places, const std::set<std::string>& read, const std::string& command,
                   Diagnostics& mistakes) {
  for (const auto& [option, place] : run_places) {
    if (place.line > 0 || read.contains(option)) continue;
    mistakes.add(place.file, 0, place.field,
                 fmt::format("has no effect on `cotune {}`, which reads of `run` {}", command,
                             read.empty() ? "nothing" : fmt::format("{}", fmt::join(read, ", "))));
  }
}

}  // namespace cotune
