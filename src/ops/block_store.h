/// Memory for tensors: large address ranges (arenas) from the operating system, divided into blocks and used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace cotune {

struct BlockStoreOptions {
  size_t arena_bytes = size_t{1} << 30;   ///< address space taken at once; a larger request gets an arena of its own
  size_t granule_bytes = size_t{2} << 20; ///< what is held is counted, and given back, in whole granules; a power of two,
                                          ///< at least a page. 2 MiB and multiples ask for huge pages
};

/// Blocks by best fit: the smallest free range that is large enough, the lowest of equals. A freed block merges with the
/// free ranges beside it, so an arena without blocks is one free range again: lengths that change from step to step
/// leave no classes of sizes behind.
///
/// Address space costs nothing; a granule is *held* from the first block that touches it until it is given back. Free
/// ranges stay held, because clearing pages anew costs more than most of what a step does to them. Under a limit,
/// granules that no block touches go back to the system, as many as a request needs and those of the largest free ranges
/// first; so a request fails only if blocks alone, in granules, leave no room for it.
///
/// Every block is followed by readable memory to the end of its page. Not thread-safe. Frees its arenas when it ends.
class BlockStore {
 public:
  explicit BlockStore(BlockStoreOptions options = {});
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// `bytes` ≥ 0 bytes, aligned to 64, undefined values. `label` comes back when the block is freed. nullptr where it
  /// would take held_bytes over the limit, or the system has no address space left; nothing has changed then.
  void* allocate(size_t bytes, int label);

  struct Freed {
    size_t bytes = 0;
    int label = 0;
  };
  /// Throws InternalError for what is not a block.
  Freed free(void* block);

  /// 0: none. What is held beyond it and can be given back is given back now.
  void set_limit(size_t bytes);
  size_t limit() const { return limit_; }
  /// Gives back all that no block touches.
  void release_unused();

  size_t held_bytes() const { return held_bytes_; }
  size_t block_bytes() const { return block_bytes_; }  ///< of all blocks, rounded up to 64
  size_t block_count() const { return ranges_.size() - free_.size(); }
  size_t free_range_count() const { return free_.size(); }
  size_t arena_count() const { return arenas_.size(); }

 private:
  struct Arena {
    char* begin = nullptr;
    size_t bytes = 0;
    std::vector<bool> held;  ///< per granule
  };
  struct Range {
    size_t size = 0;
    Arena* arena = nullptr;
    bool free = true;
    size_t requested = 0;
    int label = 0;
  };
  using Ranges = std::map<char*, Range>;

  /// First and past-the-last granule that [address, address + size) touches, or (inner) that it covers whole.
  std::pair<size_t, size_t> granules(const Arena& arena, const char* address, size_t size, bool inner) const;
  size_t missing_bytes(const Arena& arena, const char* address, size_t size) const;
  Ranges::iterator find_fit(size_t size);
  Ranges::iterator add_arena(size_t size);
  Ranges::iterator make_free(Ranges::iterator range);
  size_t give_back(char* address, size_t most_bytes);
  void give_back_largest_first(size_t bytes);

  BlockStoreOptions options_;
  size_t limit_ = 0, held_bytes_ = 0, block_bytes_ = 0;
  std::vector<std::unique_ptr<Arena>> arenas_;
  Ranges ranges_;                             ///< blocks and free ranges; each arena is covered without gaps
  std::set<std::pair<size_t, char*>> free_;   ///< by size, then address
};

}  // namespace cotune
