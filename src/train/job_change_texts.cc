#include "train/job_change_texts.h"

#include <fmt/format.h>

#include <algorithm>

namespace cotune {
namespace {

constexpr size_t most_named = 3;

std::string of_several(const std::string& what) { return what.ends_with('s') ? what.substr(0, what.size() - 1) : what; }

}  // namespace

void JobChangeTexts::add(const std::string& job, const std::string& what) {
  const auto found = std::find_if(changes_.begin(), changes_.end(), [&](const Change& change) { return change.what == what; });
  (found != changes_.end() ? *found : changes_.emplace_back(what)).jobs.push_back(job);
}

std::vector<std::string> JobChangeTexts::texts() const {
  std::vector<std::string> texts;
  for (const Change& change : changes_) {
    if (change.jobs.size() > most_named) {
      texts.push_back(fmt::format("{} jobs {}", change.jobs.size(), of_several(change.what)));
      continue;
    }
    for (const std::string& job : change.jobs) texts.push_back(fmt::format("`{}` {}", job, change.what));
  }
  return texts;
}

}  // namespace cotune
