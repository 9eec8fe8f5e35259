#include "ops/block_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "ops/memory.h"

namespace cotune::testing {
namespace {

constexpr BlockStoreOptions small_arenas{.arena_bytes = size_t{1} << 20, .granule_bytes = size_t{1} << 14};

/// What the store should hold, kept the slow way.
struct ModelBlock {
  unsigned char* address;
  size_t bytes;
  int label;
};

size_t rounded(size_t bytes) { return std::max<size_t>(64, (bytes + 63) / 64 * 64); }

void fill(const ModelBlock& block) { std::memset(block.address, block.label, block.bytes); }

bool is_filled(const ModelBlock& block) {
  return std::all_of(block.address, block.address + block.bytes,
                     [&](unsigned char byte) { return byte == static_cast<unsigned char>(block.label); });
}

/// Sizes over five orders of magnitude, arenas of their own included.
size_t random_size(uint64_t key, uint64_t index) {
  const uint64_t bits = 1 + uniform_below(key, 4 * index, 21);
  return uniform_below(key, 4 * index + 1, uint64_t{1} << bits);
}

void expect_apart(std::vector<ModelBlock> blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    ASSERT_LE(blocks[i].address + rounded(blocks[i].bytes), blocks[i + 1].address);
  }
}

size_t block_bytes(const std::vector<ModelBlock>& blocks) {
  size_t bytes = 0;
  for (const ModelBlock& block : blocks) bytes += rounded(block.bytes);
  return bytes;
}

/// Random allocations and frees against the model; returns how many were refused.
int64_t play(BlockStore& store, uint64_t key, int64_t rounds) {
  std::vector<ModelBlock> blocks;
  int64_t refused = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    const auto index = static_cast<uint64_t>(round);
    const size_t held_before = store.held_bytes();
    // The number of blocks swings, so that the store fills and empties.
    const bool frees = uniform_below(key, 4 * index + 2, 100) < (round / 200 % 2 == 0 ? 40u : 60u);
    if (frees && !blocks.empty()) {
      const size_t victim = uniform_below(key, 4 * index + 3, blocks.size());
      EXPECT_TRUE(is_filled(blocks[victim]));
      const BlockStore::Freed freed = store.free(blocks[victim].address);
      EXPECT_EQ(freed.bytes, blocks[victim].bytes);
      EXPECT_EQ(freed.label, blocks[victim].label);
      EXPECT_EQ(store.held_bytes(), held_before);
      blocks[victim] = blocks.back();
      blocks.pop_back();
    } else {
      const ModelBlock block{nullptr, random_size(key, index), static_cast<int>(index % 251)};
      auto* address = static_cast<unsigned char*>(store.allocate(block.bytes, block.label));
      if (address == nullptr) {
        EXPECT_GT(store.limit(), 0u);
        EXPECT_LE(store.held_bytes(), held_before);
        ++refused;
      } else {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0u);
        blocks.push_back({address, block.bytes, block.label});
        fill(blocks.back());
      }
    }
    EXPECT_EQ(store.block_count(), blocks.size());
#if !defined(__SANITIZE_ADDRESS__)
    EXPECT_EQ(store.block_bytes(), block_bytes(blocks));
#endif
    EXPECT_GE(store.held_bytes(), store.block_bytes());
    EXPECT_TRUE(store.limit() == 0 || store.held_bytes() <= store.limit());
    if (round % 100 == 0) expect_apart(blocks);
    if (round % 500 == 499) {
      store.release_unused();
      for (const ModelBlock& block : blocks) EXPECT_TRUE(is_filled(block));
    }
    if (::testing::Test::HasFailure()) return refused;
  }
  for (const ModelBlock& block : blocks) {
    EXPECT_TRUE(is_filled(block));
    store.free(block.address);
  }
  EXPECT_EQ(store.block_bytes(), 0u);
  EXPECT_EQ(store.free_range_count(), store.arena_count());  // everything has merged
  store.release_unused();
  EXPECT_EQ(store.held_bytes(), 0u);
  return refused;
}

TEST(BlockStore, AgreesWithASimpleModelOverRandomBlocks) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    BlockStore store(small_arenas);
    EXPECT_EQ(play(store, mix_key(40, seed), 2000), 0) << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(BlockStore, StaysUnderItsLimitAndRefusesWhatDoesNotFit) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    BlockStore store(small_arenas);
    store.set_limit(size_t{3} << 20);
    EXPECT_GT(play(store, mix_key(41, seed), 2000), 0) << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(BlockStore, MergesNeighboursInEveryOrderOfFreeing) {
  std::vector<int> order{0, 1, 2, 3};
  do {
    BlockStore store(small_arenas);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(store.allocate(1000, i));
    for (const int i : order) EXPECT_EQ(store.free(blocks[static_cast<size_t>(i)]).label, i);
    EXPECT_EQ(store.free_range_count(), 1u);
    EXPECT_EQ(store.allocate(4000, 0), blocks[0]);  // the whole range at the front serves again
    EXPECT_EQ(store.arena_count(), 1u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(BlockStore, UsesFreedMemoryAgainInPlaceOfTakingMore) {
  BlockStore store(small_arenas);
  void* const first = store.allocate(300'000, 0);
  void* const second = store.allocate(300'000, 0);
  const size_t held = store.held_bytes();
  store.free(first);
  store.free(second);
  void* const both = store.allocate(590'000, 0);
  EXPECT_EQ(both, first);
  EXPECT_EQ(store.held_bytes(), held);
}

TEST(BlockStore, TakesTheSmallestRangeThatFits) {
  BlockStore store(small_arenas);
  std::vector<void*> blocks;
  for (const size_t bytes : {5000, 64, 1000, 64, 2000, 64}) blocks.push_back(store.allocate(bytes, 0));
  store.free(blocks[0]);
  store.free(blocks[2]);
  store.free(blocks[4]);
  EXPECT_EQ(store.allocate(900, 0), blocks[2]);
  EXPECT_EQ(store.allocate(1500, 0), blocks[4]);
  EXPECT_EQ(store.allocate(3000, 0), blocks[0]);
}

TEST(BlockStore, UnderALimitGivesBackWhatBlocksDoNotNeed) {
  constexpr size_t granule = small_arenas.granule_bytes;
  BlockStore store(small_arenas);
  store.set_limit(22 * granule);
  void* const hole = store.allocate(15 * granule - 64, 0);
  void* const wall = store.allocate(granule - 64, 0);
  store.free(hole);
  EXPECT_EQ(store.held_bytes(), 16 * granule);
  // The hole is too small for this one, and beside it there is too little left under the limit: its granules go back.
  void* const large = store.allocate(19 * granule - 64, 0);
  ASSERT_NE(large, nullptr);
  EXPECT_LE(store.held_bytes(), 22 * granule);
  EXPECT_EQ(store.allocate(5 * granule, 0), nullptr);
  EXPECT_EQ(store.block_count(), 2u);
  store.free(large);
  store.free(wall);
  EXPECT_NE(store.allocate(22 * granule - 64, 0), nullptr);
}

TEST(BlockStore, LoweringTheLimitGivesBackAtOnce) {
  constexpr size_t granule = small_arenas.granule_bytes;
  BlockStore store(small_arenas);
  void* const kept = store.allocate(2 * granule - 64, 0);
  store.free(store.allocate(10 * granule - 64, 0));
  EXPECT_EQ(store.held_bytes(), 12 * granule);
  store.set_limit(5 * granule);
  EXPECT_EQ(store.held_bytes(), 5 * granule);
  store.set_limit(granule);  // what blocks touch stays
  EXPECT_EQ(store.held_bytes(), 2 * granule);
  store.free(kept);
}

TEST(BlockStore, ARequestLargerThanAnArenaGetsOneOfItsOwn) {
  BlockStore store(small_arenas);
  auto* const large = static_cast<unsigned char*>(store.allocate(size_t{5} << 20, 0));
  ASSERT_NE(large, nullptr);
  large[(size_t{5} << 20) - 1] = 1;
  EXPECT_EQ(store.arena_count(), 1u);
  EXPECT_EQ(store.allocate(size_t{1} << 62, 0), nullptr);
}

TEST(BlockStore, RefusesToFreeWhatIsNoBlock) {
  BlockStore store(small_arenas);
  void* const block = store.allocate(100, 0);
  EXPECT_THROW(store.free(static_cast<char*>(block) + 64), InternalError);
  store.free(block);
  EXPECT_THROW(store.free(block), InternalError);
}

TEST(CountedMemory, CountsByKindFromSeveralThreads) {
  const kernels::MemorySource source = counted_memory();
  const MemoryUsage before = memory_usage();
  std::vector<std::thread> threads;
  std::vector<int> damaged(4, 0);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const MemoryScope scope(thread % 2 == 0 ? MemoryKind::activations : MemoryKind::workspace);
      std::vector<ModelBlock> blocks;
      for (uint64_t i = 0; i < 3000; ++i) {
        const ModelBlock block{nullptr, 1 + random_size(static_cast<uint64_t>(thread), i) % 20'000, thread + 1};
        blocks.push_back({static_cast<unsigned char*>(source.allocate(nullptr, block.bytes)), block.bytes, block.label});
        fill(blocks.back());
        if (blocks.size() < 8) continue;
        if (!is_filled(blocks.front())) ++damaged[static_cast<size_t>(thread)];
        source.release(nullptr, blocks.front().address, blocks.front().bytes);
        blocks.erase(blocks.begin());
      }
      for (const ModelBlock& block : blocks) source.release(nullptr, block.address, block.bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, std::vector<int>(4, 0));
  EXPECT_EQ(memory_usage().bytes, before.bytes);
}

/// Blocks of two threads, freed by a third one, of which what stays between rounds is on no account.
TEST(MemoryAccounts, AreOfWhatTheirThreadsAllocateWhereverItIsFreed) {
  const kernels::MemorySource source = counted_memory();
  const auto first = std::make_unique<MemoryAccount>(), second = std::make_unique<MemoryAccount>();
  std::vector<std::pair<void*, size_t>> blocks;
  const auto allocate = [&](MemoryKind kind, size_t bytes) {
    const MemoryScope scope(kind);
    blocks.emplace_back(source.allocate(nullptr, bytes), bytes);
  };
  const auto free_all = [&] {
    for (const auto& [address, bytes] : blocks) source.release(nullptr, address, bytes);
    blocks.clear();
  };
  const MemoryUsage before = memory_usage();
  std::thread([&] {
    const MemoryAccount::Scope scope(*first);
    allocate(MemoryKind::activations, 1000);
    allocate(MemoryKind::workspace, 300);
    for (const MemoryKind kind : {MemoryKind::weights, MemoryKind::adapters, MemoryKind::gradients, MemoryKind::optimizer}) allocate(kind, 5000);
    {
      const MemoryAccount::Scope inner(*second);
      allocate(MemoryKind::logits, 70);
    }
    allocate(MemoryKind::chain_kv, 20);
  }).join();
  allocate(MemoryKind::activations, 9000);
  EXPECT_EQ(first->peak_bytes(), 1320);
  EXPECT_EQ(second->peak_bytes(), 70);
  EXPECT_EQ(memory_usage()[MemoryKind::activations] - before[MemoryKind::activations], 10000);
  free_all();
  EXPECT_EQ(first->peak_bytes(), 1320);
  first->restart_peak();
  EXPECT_EQ(first->peak_bytes(), 0);
  {
    const MemoryAccount short_lived;
    const MemoryAccount::Scope scope(short_lived);
    allocate(MemoryKind::workspace, 40);
  }
  free_all();
  EXPECT_EQ(memory_usage().bytes, before.bytes);
  EXPECT_EQ(second->peak_bytes(), 70);
}

}  // namespace
}  // namespace cotune::testing
