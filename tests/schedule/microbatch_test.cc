#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "schedule/microbatch.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

std::vector<std::vector<int64_t>> lengths_of(const std::vector<Atom>& atoms) {
  std::vector<std::vector<int64_t>> lengths;
  for (const Atom& atom : atoms) {
    lengths.emplace_back();
    for (const Segment& segment : atom.segments) lengths.back().push_back(segment.length);
  }
  return lengths;
}

using Lengths = std::vector<std::vector<int64_t>>;

TEST(CutIntoAtoms, FillsAtomsWithRowsInBatchOrder) {
  EXPECT_EQ(lengths_of(cut_into_atoms({.row_lengths = {100, 100, 56, 1, 255, 2}})),
            (Lengths{{100, 100, 56}, {1, 255}, {2}}));
}

TEST(CutIntoAtoms, CutsALongRowAtMultiplesOfAnAtomFromItsStart) {
  const std::vector<Atom> atoms = cut_into_atoms({.job = 4, .row_lengths = {10, 600, 30}});
  EXPECT_EQ(lengths_of(atoms), (Lengths{{10}, {256}, {256}, {88, 30}}));
  EXPECT_EQ(atoms[2], (Atom{.job = 4, .index = 2, .segments = {{1, 256, 256, 0, 600}}}));
}

TEST(CutIntoAtoms, CountsPadsInAtomsOfThePaddedLayout) {
  EXPECT_EQ(lengths_of(cut_into_atoms({.row_lengths = {100, 1, 1, 120, 300}}, {.layout = Layout::padded})),
            (Lengths{{100, 1}, {1, 120}, {256}, {44}}));
}

TEST(CutIntoAtoms, PacksRowsFirstFitDecreasingAndPadsTheLastChunk) {
  const std::vector<Atom> atoms =
      cut_into_atoms({.row_lengths = {3, 10, 5, 7, 2}}, {.layout = Layout::chunked, .chunk_size = 4, .capacity = 8});
  // Packed rows of 12: {10, 2}, {7, 5}, {3}; chunks of 4, two an atom.
  EXPECT_EQ(lengths_of(atoms), (Lengths{{4, 4}, {2, 2}, {4, 3, 1}, {4, 3}}));
  EXPECT_EQ(atoms[1].segments[0], (Segment{1, 8, 2, 0, 10}));
  EXPECT_EQ(atoms[2].segments[2], (Segment{2, 0, 1, 0, 5}));
  EXPECT_EQ(atoms[3].segments[1], (Segment{0, 0, 3, 1, 3}));
}

TEST(CutIntoAtoms, AChunkLargerThanAnAtomIsAnAtomOfItsOwn) {
  EXPECT_EQ(lengths_of(cut_into_atoms({.row_lengths = {700}}, {.layout = Layout::chunked, .chunk_size = 512})),
            (Lengths{{512}, {188}}));
}

TEST(CutIntoAtoms, EveryLayoutHoldsEveryTokenOnceInOrder) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(mix_key(1, seed));
    for (const BatchShape& batch : random_round(dice)) {
      for (Layout layout : {Layout::ragged, Layout::chunked, Layout::padded}) {
        const AtomRule rule{.layout = layout, .chunk_size = dice.between(1, 256)};
        std::vector<int64_t> covered(batch.row_lengths.size(), 0);
        int32_t index = 0;
        for (const Atom& atom : cut_into_atoms(batch, rule)) {
          EXPECT_EQ(atom.index, index++);
          ASSERT_FALSE(atom.segments.empty());
          EXPECT_LE(atom.token_count(), atom_tokens);
          for (const Segment& segment : atom.segments) {
            EXPECT_EQ(segment.position, covered[static_cast<size_t>(segment.row)]);
            covered[static_cast<size_t>(segment.row)] += segment.length;
            if (segment.position > 0 && &segment != &atom.segments.front()) {
              EXPECT_EQ((&segment)[-1].row, segment.row);
            }
          }
        }
        EXPECT_EQ(covered, batch.row_lengths);
      }
    }
  }
}

TEST(CutIntoAtoms, ChunksHaveOneSizeWithTheirPads) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(mix_key(2, seed));
    for (const BatchShape& batch : random_round(dice)) {
      const int64_t chunk = dice.between(1, 256);
      for (const Atom& atom : cut_into_atoms(batch, {.layout = Layout::chunked, .chunk_size = chunk})) {
        EXPECT_EQ(atom.token_count() % chunk, 0);
        int64_t offset = 0;
        for (const Segment& segment : atom.segments) {
          EXPECT_LE(offset % chunk + segment.length + segment.pad, chunk);
          offset += segment.length + segment.pad;
        }
      }
    }
  }
}

TEST(CutIntoAtoms, RowsInChunksAreCutOnTheGridOfAttention) {
  int64_t cuts = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(mix_key(3, seed));
    const int64_t chunk = std::array{16, 32, 64, 96, 128, 256, 320}[static_cast<size_t>(dice.between(0, 6))];
    for (const BatchShape& batch : random_round(dice)) {
      for (const Atom& atom : cut_into_atoms(batch, {.layout = Layout::chunked, .chunk_size = chunk})) {
        EXPECT_EQ(atom.segments.front().position % row_cut_tokens, 0) << "chunk " << chunk << ", seed " << seed;
        cuts += atom.segments.front().position > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(cuts, 100);
}

TEST(CutIntoAtoms, RefusesEmptyBatchesAndRows) {
  EXPECT_THROW(cut_into_atoms({.job = 1}), InternalError);
  EXPECT_THROW(cut_into_atoms({.row_lengths = {3, 0}}), InternalError);
}

TEST(RowParts, JoinAdjacentSegmentsOfARowAcrossAtoms) {
  Microbatch microbatch;
  microbatch.atoms = cut_into_atoms({.job = 2, .row_lengths = {600, 30}});
  const std::vector<RowPart> parts = row_parts(microbatch);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0], (RowPart{2, 0, 0, 600, 0, 600, 0, 2, 0}));
  EXPECT_EQ(parts[1], (RowPart{2, 1, 0, 30, 0, 30, 600, 2, 1}));
}

}  // namespace
}  // namespace cotune
