#include "ops/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <vector>

namespace cotune {
namespace {

thread_local MemoryKind current_kind = MemoryKind::other;
thread_local int current_account = 0;  ///< 0: that of all that is on no other

bool is_of_rounds(MemoryKind kind) {
  return kind == MemoryKind::activations || kind == MemoryKind::chain_kv || kind == MemoryKind::workspace || kind == MemoryKind::logits;
}

/// What a block counts as, in the label that the store keeps for it.
struct BlockLabel {
  MemoryKind kind;
  int account;
  static BlockLabel current() { return {current_kind, is_of_rounds(current_kind) ? current_account : 0}; }
  static BlockLabel of(int number) { return {static_cast<MemoryKind>(number % memory_kind_count), number / memory_kind_count}; }
  int number() const { return account * memory_kind_count + static_cast<int>(kind); }
};

class CountedMemory {
 public:
  explicit CountedMemory(size_t granule_bytes) : store_({.granule_bytes = granule_bytes}) {}

  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const BlockLabel label = BlockLabel::current();
    void* memory = store_.allocate(bytes, label.number());
    if (memory == nullptr) throw_exceeded(bytes);
    const auto count = [bytes](int64_t& live, int64_t& peak) {
      live += static_cast<int64_t>(bytes);
      peak = std::max(peak, live);
    };
    const auto kind = static_cast<size_t>(label.kind);
    count(usage_.bytes[kind], usage_.peak_bytes[kind]);
    Account& account = accounts_[static_cast<size_t>(label.account)];
    count(account.bytes, account.peak_bytes);
    const int64_t all = usage_.live_bytes();
    usage_.peak_live_bytes = std::max(usage_.peak_live_bytes, all);
    usage_.recent_peak_live_bytes = std::max(usage_.recent_peak_live_bytes, all);
    usage_.held_bytes = static_cast<int64_t>(store_.held_bytes());
    usage_.peak_held_bytes = std::max(usage_.peak_held_bytes, usage_.held_bytes);
    return memory;
  }

  void release(void* memory) noexcept {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    const BlockStore::Freed freed = store_.free(memory);
    const BlockLabel label = BlockLabel::of(freed.label);
    usage_.bytes[static_cast<size_t>(label.kind)] -= static_cast<int64_t>(freed.bytes);
    accounts_[static_cast<size_t>(label.account)].bytes -= static_cast<int64_t>(freed.bytes);
  }

  int open_account() {
    const std::lock_guard lock(mutex_);
    accounts_.emplace_back();
    return static_cast<int>(accounts_.size()) - 1;
  }
  int64_t account_peak(int number) {
    const std::lock_guard lock(mutex_);
    return accounts_[static_cast<size_t>(number)].peak_bytes;
  }
  void restart_account_peak(int number) {
    const std::lock_guard lock(mutex_);
    Account& account = accounts_[static_cast<size_t>(number)];
    account.peak_bytes = account.bytes;
  }

  void set_limit(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    store_.set_limit(static_cast<size_t>(bytes));
    usage_.held_bytes = static_cast<int64_t>(store_.held_bytes());
  }

  MemoryUsage usage() {
    const std::lock_guard lock(mutex_);
    return usage_;
  }

  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    usage_.peak_bytes = usage_.bytes;
    usage_.peak_live_bytes = usage_.live_bytes();
    usage_.peak_held_bytes = usage_.held_bytes;
  }

  void restart_recent_peak() {
    const std::lock_guard lock(mutex_);
    usage_.recent_peak_live_bytes = usage_.live_bytes();
  }

  void release_unused() {
    const std::lock_guard lock(mutex_);
    store_.release_unused();
    usage_.held_bytes = static_cast<int64_t>(store_.held_bytes());
  }

 private:
  [[noreturn]] void throw_exceeded(size_t bytes) {
    if (store_.limit() > 0) {
      throw MemoryLimitExceeded(fmt::format("{} bytes for {} would exceed the memory limit of {} bytes; {} are in use",
                                            bytes, to_string(current_kind), store_.limit(), usage_.live_bytes()));
    }
    throw MemoryLimitExceeded(fmt::format("the system refused {} bytes for {}; {} are in use", bytes,
                                          to_string(current_kind), usage_.live_bytes()));
  }

  struct Account {
    int64_t bytes = 0, peak_bytes = 0;
  };

  std::mutex mutex_;
  BlockStore store_;
  MemoryUsage usage_;
  std::vector<Account> accounts_{1};  ///< by number, which none has again
};

CountedMemory& store(size_t granule_bytes = BlockStoreOptions{}.granule_bytes) {
  static auto* memory = new CountedMemory(granule_bytes);  // outlives every tensor, static ones included
  return *memory;
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

MemoryAccount::MemoryAccount() : number_(store().open_account()) {}
int64_t MemoryAccount::peak_bytes() const { return store().account_peak(number_); }
void MemoryAccount::restart_peak() { store().restart_account_peak(number_); }
MemoryAccount MemoryAccount::of_this_thread() { return MemoryAccount(current_account); }
MemoryAccount::Scope::Scope(MemoryAccount account) : previous_(current_account) { current_account = account.number_; }
MemoryAccount::Scope::~Scope() { current_account = previous_; }

int64_t MemoryUsage::live_bytes() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

void install_counting_allocator(size_t granule_bytes) {
  store(granule_bytes);
  static CountingAllocator allocator;
  [[maybe_unused]] static const bool installed = [] {
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
    return true;
  }();
}

void set_memory_limit(int64_t bytes) { store().set_limit(bytes); }
MemoryUsage memory_usage() { return store().usage(); }
void reset_memory_peaks() { store().reset_peaks(); }
void restart_recent_peak() { store().restart_recent_peak(); }
void release_unused_memory() { store().release_unused(); }

kernels::MemorySource counted_memory() {
  return {[](void*, size_t bytes) { return store().allocate(bytes); },
          [](void*, void* memory, size_t) noexcept { store().release(memory); }, nullptr};
}

}  // namespace cotune
