#include "schedule/gradient_slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "schedule/random_batches.h"

namespace cotune {
namespace {

/// Replicas of random degrees, in which a parameter is whole, cut along its dimension, shared in pairs, or held by entries.
std::vector<HeldParameter> random_parameters(Dice& dice) {
  const int64_t replicas = dice.between(1, 4);
  std::vector<int64_t> degrees;
  for (int64_t r = 0; r < replicas; ++r) degrees.push_back(std::array{1, 2, 4, 3}[static_cast<size_t>(dice.between(0, 3))]);
  std::vector<HeldParameter> parameters;
  for (int64_t p = dice.between(1, 6); p > 0; --p) {
    HeldParameter parameter{.dimension = dice.between(0, 1), .length = 12 * dice.between(1, 4), .values_per_index = dice.between(1, 5), .parts = {}};
    const int64_t kind = dice.between(0, 3);
    int32_t rank = 0;
    for (int64_t r = 0; r < replicas; ++r) {
      const int64_t degree = degrees[static_cast<size_t>(r)];
      for (int64_t part = 0; part < degree; ++part, ++rank) {
        HeldPart held{.replica = static_cast<int32_t>(r), .rank = rank, .begin = 0, .end = parameter.length, .entries = {}};
        const int64_t pieces = kind == 2 && degree % 2 == 0 ? degree / 2 : degree;  // in pairs
        const int64_t piece = part * pieces / degree;
        if (kind == 1 || kind == 2) {
          held.begin = piece * parameter.length / pieces;
          held.end = (piece + 1) * parameter.length / pieces;
        } else if (kind == 3 && degree > 1) {
          held.has_entries = true;
          for (int64_t entry = 0; entry < parameter.length; ++entry) {
            if (entry * 7 % degree == part) held.entries.push_back(entry);
          }
        }
        parameter.parts.push_back(held);
      }
    }
    parameters.push_back(parameter);
  }
  return parameters;
}

std::set<int64_t> indices_of(const GradientSlice& slice) {
  std::set<int64_t> indices(slice.entries.begin(), slice.entries.end());
  for (int64_t index = slice.begin; slice.entries.empty() && index < slice.end; ++index) indices.insert(index);
  return indices;
}

bool has(const HeldPart& part, int64_t index) {
  if (part.has_entries) return std::ranges::binary_search(part.entries, index);
  return part.begin <= index && index < part.end;
}

TEST(GradientSlices, CoverEveryValueOnceWithExactlyTheRanksThatHoldIt) {
  for (uint64_t key = 0; key < 300; ++key) {
    Dice dice(key);
    const std::vector<HeldParameter> parameters = random_parameters(dice);
    const std::vector<GradientSlice> slices = gradient_slices(parameters);
    std::map<std::pair<size_t, int64_t>, const GradientSlice*> slice_of;
    for (const GradientSlice& slice : slices) {
      EXPECT_EQ(slice.values, static_cast<int64_t>(indices_of(slice).size()) * parameters[slice.parameter].values_per_index);
      bool owner_gives = false;
      for (const std::vector<int32_t>& holders : slice.holders) owner_gives = owner_gives || holders.front() == slice.owner;
      EXPECT_TRUE(owner_gives);
      for (const int64_t index : indices_of(slice)) {
        EXPECT_TRUE(slice_of.emplace(std::pair(slice.parameter, index), &slice).second) << "key " << key;
      }
    }
    for (size_t p = 0; p < parameters.size(); ++p) {
      for (int64_t index = 0; index < parameters[p].length; ++index) {
        const GradientSlice& slice = *slice_of.at({p, index});
        for (const HeldPart& part : parameters[p].parts) {
          const std::vector<int32_t>& holders = slice.holders[static_cast<size_t>(part.replica)];
          EXPECT_EQ(std::ranges::count(holders, part.rank), has(part, index) ? 1 : 0) << "key " << key;
        }
      }
    }
  }
}

TEST(GradientSlices, MoveNoMoreThanSumsMust) {
  // A value that R replicas hold, H ranks in all, takes R − 1 gifts and H − 1 returns.
  for (uint64_t key = 0; key < 300; ++key) {
    Dice dice(key);
    const std::vector<HeldParameter> parameters = random_parameters(dice);
    int64_t least = 0;
    for (const HeldParameter& parameter : parameters) {
      for (int64_t index = 0; index < parameter.length; ++index) {
        std::set<int32_t> replicas;
        int64_t holders = 0;
        for (const HeldPart& part : parameter.parts) {
          if (!has(part, index)) continue;
          replicas.insert(part.replica);
          ++holders;
        }
        least += parameter.values_per_index * (static_cast<int64_t>(replicas.size()) - 1 + holders - 1);
      }
    }
    EXPECT_EQ(values_moved(gradient_slices(parameters)), least) << "key " << key;
  }
}

TEST(GradientSlices, AreAddedByAllRanksAlike) {
  std::vector<HeldParameter> parameters;
  for (int i = 0; i < 40; ++i) {
    HeldParameter parameter{.length = 16, .values_per_index = 8, .parts = {}};
    for (int32_t rank = 0; rank < 4; ++rank) parameter.parts.push_back({.replica = rank, .rank = rank, .end = 16, .entries = {}});
    parameters.push_back(parameter);
  }
  std::map<int32_t, int64_t> owned;
  for (const GradientSlice& slice : gradient_slices(parameters)) owned[slice.owner] += slice.values;
  for (int32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(owned[rank], 40 * 16 * 8 / 4);
}

TEST(GradientSlices, OfAReplicaThatLacksAPartAreRefused) {
  const HeldParameter parameter{.length = 4,
                                .parts = {{.replica = 0, .rank = 0, .end = 4, .entries = {}}, {.replica = 1, .rank = 1, .end = 3, .entries = {}}}};
  EXPECT_THROW(gradient_slices(std::vector{parameter}), std::exception);
}

}  // namespace
}  // namespace cotune
