#include "ops/block_store.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace cotune {
namespace {

constexpr size_t alignment = 64;
constexpr size_t page_bytes = 4096;
constexpr size_t huge_page_bytes = size_t{2} << 20;
/// At an arena's end and never part of a block: kernels that read whole vectors past a last row stay inside the mapping.
constexpr size_t slack_bytes = page_bytes;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t red_zone_bytes = alignment;  // behind every block, poisoned
#else
constexpr size_t red_zone_bytes = 0;
#endif

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Address space that begins at a multiple of `granule`; nullptr where there is none.
char* map_memory(size_t bytes, size_t granule) {
  const size_t wanted = bytes + granule;
  void* memory = ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(memory);
  const size_t before = (granule - reinterpret_cast<uintptr_t>(begin) % granule) % granule;
  const size_t after = wanted - before - bytes;
  if (before > 0) ::munmap(begin, before);
  if (after > 0) ::munmap(begin + before + bytes, after);
  if (granule % huge_page_bytes == 0) {
    ::madvise(begin + before, bytes, MADV_HUGEPAGE);  // advice: a system without huge pages goes on with small ones
  } else {
    ::madvise(begin + before, bytes, MADV_NOHUGEPAGE);  // a huge page would hold more than the granules counted
  }
  return begin + before;
}

}  // namespace

BlockStore::BlockStore(BlockStoreOptions options) : options_(options) {
  COTUNE_CHECK(std::has_single_bit(options.granule_bytes) && options.granule_bytes >= page_bytes);
}

BlockStore::~BlockStore() {
  for (const auto& arena : arenas_) {
    ASAN_UNPOISON_MEMORY_REGION(arena->begin, arena->bytes);
    ::munmap(arena->begin, arena->bytes);
  }
}

std::pair<size_t, size_t> BlockStore::granules(const Arena& arena, const char* address, size_t size, bool inner) const {
  const auto begin = static_cast<size_t>(address - arena.begin), end = begin + size;
  const size_t granule = options_.granule_bytes;
  if (!inner) return {begin / granule, round_up(end, granule) / granule};
  // The slack behind the last range belongs to it.
  const size_t last = end + slack_bytes == arena.bytes ? arena.bytes : end;
  const size_t first_whole = round_up(begin, granule) / granule;
  return {first_whole, std::max(first_whole, last / granule)};
}

size_t BlockStore::missing_bytes(const Arena& arena, const char* address, size_t size) const {
  const auto [first, last] = granules(arena, address, size, false);
  const auto begin = arena.held.begin();
  return options_.granule_bytes * static_cast<size_t>(std::count(begin + static_cast<std::ptrdiff_t>(first),
                                                                 begin + static_cast<std::ptrdiff_t>(last), false));
}

BlockStore::Ranges::iterator BlockStore::find_fit(size_t size) {
  const auto smallest = free_.lower_bound({size, nullptr});
  if (smallest == free_.end()) return ranges_.end();
  const auto fit = ranges_.find(smallest->second);
  size_t missing = missing_bytes(*fit->second.arena, fit->first, size);
  if (limit_ == 0 || held_bytes_ + missing <= limit_) return fit;
  // Something has to be given back for it: less for the range that has the most of what it needs.
  auto best = fit;
  for (auto candidate = std::next(smallest); candidate != free_.end() && missing > 0; ++candidate) {
    const auto other = ranges_.find(candidate->second);
    const size_t other_missing = missing_bytes(*other->second.arena, other->first, size);
    if (other_missing < missing) std::tie(best, missing) = std::pair(other, other_missing);
  }
  return best;
}

BlockStore::Ranges::iterator BlockStore::add_arena(size_t size) {
  const size_t smallest = round_up(size + slack_bytes, options_.granule_bytes);
  size_t bytes = std::max(smallest, round_up(options_.arena_bytes, options_.granule_bytes));
  char* begin = map_memory(bytes, options_.granule_bytes);
  if (begin == nullptr && bytes > smallest) begin = map_memory(bytes = smallest, options_.granule_bytes);
  if (begin == nullptr) return ranges_.end();
  auto arena = std::make_unique<Arena>();
  *arena = {begin, bytes, std::vector<bool>(bytes / options_.granule_bytes, false)};
  ASAN_POISON_MEMORY_REGION(begin, bytes);
  const auto range = ranges_.emplace(begin, Range{.size = bytes - slack_bytes, .arena = arena.get()}).first;
  free_.insert({range->second.size, begin});
  arenas_.push_back(std::move(arena));
  return range;
}

void* BlockStore::allocate(size_t bytes, int label) {
  if (bytes > std::numeric_limits<size_t>::max() / 4) return nullptr;
  const size_t size = std::max(alignment, round_up(bytes, alignment)) + red_zone_bytes;
  auto range = find_fit(size);
  if (range == ranges_.end()) range = add_arena(size);
  if (range == ranges_.end()) return nullptr;

  char* const address = range->first;
  Arena& arena = *range->second.arena;
  free_.erase({range->second.size, address});
  if (range->second.size > size) {
    const size_t rest = range->second.size - size;
    ranges_.emplace_hint(std::next(range), address + size, Range{.size = rest, .arena = &arena});
    free_.insert({rest, address + size});
  }
  range->second = {size, &arena, false, bytes, label};
  block_bytes_ += size;

  const size_t missing = missing_bytes(arena, address, size);
  if (limit_ > 0 && held_bytes_ + missing > limit_) {
    give_back_largest_first(held_bytes_ + missing - limit_);
    if (held_bytes_ + missing > limit_) {
      make_free(range);
      return nullptr;
    }
  }
  const auto [first, last] = granules(arena, address, size, false);
  std::fill(arena.held.begin() + static_cast<std::ptrdiff_t>(first), arena.held.begin() + static_cast<std::ptrdiff_t>(last),
            true);
  held_bytes_ += missing;
  ASAN_UNPOISON_MEMORY_REGION(address, bytes);
  return address;
}

BlockStore::Freed BlockStore::free(void* block) {
  const auto range = ranges_.find(static_cast<char*>(block));
  COTUNE_CHECK(range != ranges_.end() && !range->second.free, "freed what is not a block");
  const Freed freed{range->second.requested, range->second.label};
  ASAN_POISON_MEMORY_REGION(range->first, range->second.size);
  make_free(range);
  return freed;
}

BlockStore::Ranges::iterator BlockStore::make_free(Ranges::iterator range) {
  block_bytes_ -= range->second.size;
  range->second = {.size = range->second.size, .arena = range->second.arena};
  const auto joins = [&](Ranges::iterator other) {
    return other->second.free && other->second.arena == range->second.arena;
  };
  if (const auto next = std::next(range); next != ranges_.end() && joins(next)) {
    free_.erase({next->second.size, next->first});
    range->second.size += next->second.size;
    ranges_.erase(next);
  }
  if (range != ranges_.begin() && joins(std::prev(range))) {
    const auto previous = std::prev(range);
    free_.erase({previous->second.size, previous->first});
    previous->second.size += range->second.size;
    ranges_.erase(range);
    range = previous;
  }
  free_.insert({range->second.size, range->first});
  return range;
}

size_t BlockStore::give_back(char* address, size_t most_bytes) {
  const Range& range = ranges_.at(address);
  Arena& arena = *range.arena;
  const size_t granule = options_.granule_bytes;
  const auto [first, last] = granules(arena, address, range.size, true);
  size_t given = 0;
  for (size_t end = last; end > first && given < most_bytes;) {
    if (!arena.held[end - 1]) {
      --end;
      continue;
    }
    size_t begin = end;  // a run of held granules: one call
    while (begin > first && arena.held[begin - 1] && given < most_bytes) {
      arena.held[--begin] = false;
      given += granule;
    }
    ::madvise(arena.begin + begin * granule, (end - begin) * granule, MADV_DONTNEED);
    end = begin;
  }
  held_bytes_ -= given;
  return given;
}

void BlockStore::give_back_largest_first(size_t bytes) {
  for (auto largest = free_.rbegin(); largest != free_.rend() && bytes > 0; ++largest) {
    bytes -= std::min(bytes, give_back(largest->second, bytes));
  }
}

void BlockStore::set_limit(size_t bytes) {
  limit_ = bytes;
  if (limit_ > 0 && held_bytes_ > limit_) give_back_largest_first(held_bytes_ - limit_);
}

void BlockStore::release_unused() { give_back_largest_first(held_bytes_); }

}  // namespace cotune
