#include "jobs/merge_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

namespace cotune {

namespace {

bool is_default_level(OptionLevel level) { return level < OptionLevel::job; }

/// The group's members in `merged`, and the rule of merge_layers applied to them.
void settle_group(const std::string& group, OptionLayer& merged, MistakeList& mistakes, std::set<const Option*>& used) {
  std::vector<OptionLayer::iterator> members;
  for (auto it = merged.begin(); it != merged.end(); ++it) {
    if (it->first->group == group) members.push_back(it);
  }
  if (members.empty()) return;
  const auto is_set = [](OptionLayer::iterator it) { return it->second.is_mistaken || !is_unset(it->second.value); };
  const auto weaker = [&](OptionLayer::iterator a, OptionLayer::iterator b) {
    return std::pair(a->second.level, is_set(a)) < std::pair(b->second.level, is_set(b));
  };
  const OptionLayer::iterator winner = *std::max_element(members.begin(), members.end(), weaker);
  for (OptionLayer::iterator member : members) {
    if (member->first->alternative == winner->first->alternative) continue;
    if (member->second.level == winner->second.level && is_set(member)) {
      mistakes.add(member->second, fmt::format("`{}` and `{}` exclude each other: give one", winner->first->key,
                                               member->first->key));
    }
    used.insert(member->first);
    merged.erase(member);
  }
}

/// What weaker levels say of the same setting under its other names.
void take_back_other_names(const Option& option, OptionLevel level, OptionLayer& merged, std::set<const Option*>& used) {
  if (option.group.empty()) return;
  std::erase_if(merged, [&](const auto& entry) {
    const auto& [other, given] = entry;
    const bool is_same = other->group == option.group && other->alternative == option.alternative && given.level < level;
    if (is_same) used.insert(other);
    return is_same;
  });
}

}  // namespace

OptionLayer merge_layers(std::initializer_list<const OptionLayer*> layers, MistakeList& mistakes, std::set<const Option*>& used) {
  OptionLayer merged;
  for (const OptionLayer* layer : layers) {
    for (const auto& [option, given] : *layer) {
      const bool is_neutral = option->input_only && (is_unset(given.value) || given.value == option->get(OptionTarget{}));
      const bool says_nothing = is_neutral && !given.is_mistaken;
      if (given.is_null || says_nothing) {
        if (merged.erase(option) > 0) used.insert(option);  // what a lower level says of it is taken back
        if (says_nothing && !given.is_null) take_back_other_names(*option, given.level, merged, used);
      } else {
        merged.insert_or_assign(option, given);
      }
    }
  }
  std::set<std::string> groups;
  for (const auto& [option, given] : merged) {
    if (!option->group.empty()) groups.insert(option->group);
  }
  for (const std::string& group : groups) settle_group(group, merged, mistakes, used);
  return merged;
}

void set_options(const OptionLayer& merged, const OptionTarget& target, MistakeList& mistakes,
                 std::set<const Option*>& used) {
  std::set<std::string> unknown;  // options that are mistakes, or have an effect only where one of these holds
  for (const auto& [option, given] : merged) {
    if (given.is_mistaken) unknown.insert(option->path());
    if (option->condition && !option->condition->holds(target)) {
      if (std::ranges::any_of(option->condition->reads, [&](const std::string& path) { return unknown.contains(path); })) {
        unknown.insert(option->path());
        used.insert(option);
        continue;
      }
      const bool is_fine = is_default_level(given.level) || (option->condition->unset_is_fine && is_unset(given.value));
      if (!is_fine) mistakes.add_superfluous(given.file, given.line, given.field, option->condition->complaint(option->key, target));
      continue;
    }
    used.insert(option);
    if (!given.is_mistaken) option->set(target, given.value);
  }
}

const GivenOption* find_given(const OptionLayer& layer, std::string_view path) {
  for (const auto& [option, given] : layer) {
    if (option->path() == path) return &given;
  }
  return nullptr;
}

}  // namespace cotune
