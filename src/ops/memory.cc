#include "ops/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

namespace cotune {
namespace {

thread_local MemoryKind current_kind = MemoryKind::other;

constexpr size_t alignment = 64;
constexpr size_t smallest_reused = size_t{1} << 14;

/// In front of every block.
struct alignas(alignment) BlockHeader {
  size_t requested = 0;
  size_t size = 0;  ///< the size class, header included
  MemoryKind kind = MemoryKind::other;
};

size_t size_class(size_t bytes) {
  if (bytes < smallest_reused) return (bytes + alignment - 1) / alignment * alignment;
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

class BlockStore {
 public:
  void* allocate(size_t requested) {
    const size_t size = size_class(requested + sizeof(BlockHeader));
    const std::lock_guard lock(mutex_);
    BlockHeader* header = take(size);
    header->requested = requested;
    header->kind = current_kind;
    int64_t& bytes = usage_.bytes[static_cast<size_t>(current_kind)];
    int64_t& peak = usage_.peak_bytes[static_cast<size_t>(current_kind)];
    bytes += static_cast<int64_t>(requested);
    peak = std::max(peak, bytes);
    return header + 1;
  }

  void release(void* memory) noexcept {
    if (memory == nullptr) return;
    BlockHeader* header = static_cast<BlockHeader*>(memory) - 1;
    const std::lock_guard lock(mutex_);
    usage_.bytes[static_cast<size_t>(header->kind)] -= static_cast<int64_t>(header->requested);
    if (header->size >= smallest_reused) {
      unused_[header->size].push_back(header);
    } else {
      give_back(header);
    }
  }

  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

  MemoryUsage usage() {
    const std::lock_guard lock(mutex_);
    return usage_;
  }

  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    usage_.peak_bytes = usage_.bytes;
    usage_.peak_held_bytes = usage_.held_bytes;
  }

  void release_unused() {
    const std::lock_guard lock(mutex_);
    drop_unused();
  }

 private:
  BlockHeader* take(size_t size) {
    // The smallest kept block that fits and is at most a quarter larger: lengths change from step to step.
    for (auto found = unused_.lower_bound(size); found != unused_.end() && found->first <= size + size / 4; ++found) {
      if (found->second.empty()) continue;
      BlockHeader* header = found->second.back();
      found->second.pop_back();
      return header;
    }
    if (limit_ > 0 && usage_.held_bytes + static_cast<int64_t>(size) > limit_) drop_unused();
    if (limit_ > 0 && usage_.held_bytes + static_cast<int64_t>(size) > limit_) {
      throw MemoryLimitExceeded(fmt::format("{} bytes for {} would exceed the memory limit of {} bytes; {} are in use",
                                            size, to_string(current_kind), limit_, usage_.held_bytes));
    }
    void* memory = std::aligned_alloc(alignment, size);
    if (memory == nullptr) {
      throw MemoryLimitExceeded(fmt::format("the system refused {} bytes for {}; {} are in use", size,
                                            to_string(current_kind), usage_.held_bytes));
    }
    usage_.held_bytes += static_cast<int64_t>(size);
    usage_.peak_held_bytes = std::max(usage_.peak_held_bytes, usage_.held_bytes);
    return new (memory) BlockHeader{.size = size};
  }

  void give_back(BlockHeader* header) noexcept {
    usage_.held_bytes -= static_cast<int64_t>(header->size);
    std::free(header);
  }

  void drop_unused() {
    for (auto& [size, blocks] : unused_) {
      for (BlockHeader* header : blocks) give_back(header);
      blocks.clear();
    }
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<BlockHeader*>> unused_;
  MemoryUsage usage_;
  int64_t limit_ = 0;
};

BlockStore& store() {
  static auto* blocks = new BlockStore;  // outlives every tensor, static ones included
  return *blocks;
}

void release_block(void* memory) { store().release(memory); }

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_block, c10::Device(c10::DeviceType::CPU)};
    void* memory = store().allocate(bytes);
    return {memory, memory, &release_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

}  // namespace

std::string to_string(MemoryKind kind) {
  static const char* const names[memory_kind_count] = {"weights",  "adapters",  "gradients", "optimizer", "activations",
                                                       "chain_kv", "workspace", "logits",    "other"};
  return names[static_cast<size_t>(kind)];
}

MemoryScope::MemoryScope(MemoryKind kind) : previous_(current_kind) { current_kind = kind; }
MemoryScope::~MemoryScope() { current_kind = previous_; }

int64_t MemoryUsage::live_bytes() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

void install_counting_allocator() {
  static CountingAllocator allocator;
  [[maybe_unused]] static const bool installed = [] {
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
    return true;
  }();
}

void set_memory_limit(int64_t bytes) { store().set_limit(bytes); }
MemoryUsage memory_usage() { return store().usage(); }
void reset_memory_peaks() { store().reset_peaks(); }
void release_unused_memory() { store().release_unused(); }

kernels::MemorySource counted_memory() {
  return {[](void*, size_t bytes) { return store().allocate(bytes); },
          [](void*, void* memory, size_t) noexcept { store().release(memory); }, nullptr};
}

}  // namespace cotune
