#include "schedule/gradient_slices.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace cotune {
namespace {

using Holders = std::vector<std::vector<int32_t>>;

int32_t replica_count(const HeldParameter& parameter) {
  int32_t count = 0;
  for (const HeldPart& part : parameter.parts) count = std::max(count, part.replica + 1);
  return count;
}

void check_complete(const Holders& holders, size_t parameter) {
  for (size_t replica = 0; replica < holders.size(); ++replica) {
    COTUNE_CHECK(!holders[replica].empty(), "no rank of replica {} holds a part of parameter {}", replica, parameter);
  }
}

/// Pieces between the borders of all parts.
std::vector<GradientSlice> cut_at_borders(const HeldParameter& parameter, size_t index) {
  std::vector<int64_t> borders{0, parameter.length};
  for (const HeldPart& part : parameter.parts) borders.insert(borders.end(), {part.begin, part.end});
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<GradientSlice> slices;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    GradientSlice slice{.parameter = index, .dimension = parameter.dimension, .begin = borders[i], .end = borders[i + 1]};
    slice.values = (slice.end - slice.begin) * parameter.values_per_index;
    slice.holders.resize(static_cast<size_t>(replica_count(parameter)));
    for (const HeldPart& part : parameter.parts) {
      if (part.begin <= slice.begin && slice.end <= part.end) slice.holders[static_cast<size_t>(part.replica)].push_back(part.rank);
    }
    check_complete(slice.holders, index);
    slices.push_back(std::move(slice));
  }
  return slices;
}

/// Entries that the same ranks hold together.
std::vector<GradientSlice> group_entries(const HeldParameter& parameter, size_t index) {
  std::vector<Holders> holders(static_cast<size_t>(parameter.length), Holders(static_cast<size_t>(replica_count(parameter))));
  const auto take = [&](const HeldPart& part, int64_t entry) {
    holders[static_cast<size_t>(entry)][static_cast<size_t>(part.replica)].push_back(part.rank);
  };
  for (const HeldPart& part : parameter.parts) {
    if (part.has_entries) {
      for (const int64_t entry : part.entries) take(part, entry);
    } else {
      for (int64_t entry = part.begin; entry < part.end; ++entry) take(part, entry);
    }
  }
  std::map<Holders, std::vector<int64_t>> groups;
  for (int64_t entry = 0; entry < parameter.length; ++entry) groups[holders[static_cast<size_t>(entry)]].push_back(entry);
  std::vector<GradientSlice> slices;
  for (auto& [own, entries] : groups) {
    check_complete(own, index);
    const auto count = static_cast<int64_t>(entries.size());
    slices.push_back({.parameter = index,
                      .dimension = parameter.dimension,
                      .entries = std::move(entries),
                      .values = count * parameter.values_per_index,
                      .holders = own});
  }
  return slices;
}

}  // namespace

std::vector<GradientSlice> gradient_slices(std::span<const HeldParameter> parameters) {
  std::vector<GradientSlice> slices;
  std::map<int32_t, int64_t> owned;
  for (size_t index = 0; index < parameters.size(); ++index) {
    const HeldParameter& parameter = parameters[index];
    if (parameter.length == 0) continue;
    const bool has_entries = std::ranges::any_of(parameter.parts, &HeldPart::has_entries);
    for (GradientSlice& slice : has_entries ? group_entries(parameter, index) : cut_at_borders(parameter, index)) {
      slice.owner = slice.holders.front().front();
      for (const std::vector<int32_t>& holders : slice.holders) {
        if (owned[holders.front()] < owned[slice.owner]) slice.owner = holders.front();
      }
      owned[slice.owner] += slice.values;
      slices.push_back(std::move(slice));
    }
  }
  return slices;
}

int64_t values_moved(std::span<const GradientSlice> slices) {
  int64_t moved = 0;
  for (const GradientSlice& slice : slices) {
    for (const std::vector<int32_t>& holders : slice.holders) {
      for (size_t i = 0; i < holders.size(); ++i) {
        if (holders[i] == slice.owner) continue;
        moved += slice.values * (i == 0 ? 2 : 1);
      }
    }
  }
  return moved;
}

}  // namespace cotune
