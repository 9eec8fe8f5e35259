/// Every byte of tensor memory on the CPU, counted by what it is for, reused between steps and held under a limit.
///
/// Blocks come from a BlockStore (ops/block_store.h): freed memory is kept, merged and handed out again, so a training step
/// asks the operating system for nothing once it has run, whatever the lengths of its rows. All calls are thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/matrix.h"
#include "ops/block_store.h"

namespace cotune {

enum class MemoryKind {
  weights,      ///< the backbone, packed forms included (not the file's mapping)
  adapters,     ///< parameters
  gradients,
  optimizer,    ///< moments
  activations,  ///< kept from forward for backward
  chain_kv,     ///< keys, values and their gradients of long rows
  workspace,    ///< temporaries of operators
  logits,
  other,
};
inline constexpr int memory_kind_count = 9;
std::string to_string(MemoryKind kind);

/// Allocations of this thread count as `kind` while it lives; scopes nest. Freeing always counts where the block was
/// allocated.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind previous_;
};

/// What rounds take, of one of several ranks that are threads of this process: the activations, chain_kv, workspace and logits that threads
/// allocate in a Scope of it, alive at most. They may be freed anywhere, and at any time. Copies are the same account.
class MemoryAccount {
 public:
  /// A new one.
  MemoryAccount();
  /// That of the calling thread, for threads that work for it; one of all that is on no other where it is in no Scope.
  static MemoryAccount of_this_thread();

  /// Allocations of this thread count here, beside by their kind, while it lives.
  class Scope {
   public:
    explicit Scope(MemoryAccount account);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const int previous_;
  };

  int64_t peak_bytes() const;
  /// It starts again from what is alive now.
  void restart_peak();

 private:
  explicit MemoryAccount(int number) : number_(number) {}
  int number_;
};

struct MemoryUsage {
  std::array<int64_t, memory_kind_count> bytes{};       ///< requested and alive, by kind
  std::array<int64_t, memory_kind_count> peak_bytes{};  ///< highest of each kind by itself
  int64_t peak_live_bytes = 0;  ///< highest sum of the kinds
  int64_t recent_peak_live_bytes = 0;  ///< the same since restart_recent_peak
  int64_t held_bytes = 0;       ///< taken from the system: alive, and kept for reuse; what the limit counts
  int64_t peak_held_bytes = 0;
  int64_t operator[](MemoryKind kind) const { return bytes[static_cast<size_t>(kind)]; }
  int64_t live_bytes() const;
};

/// An allocation would take held_bytes over the limit even after what is kept for reuse was given back.
class MemoryLimitExceeded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Makes the counting allocator torch's CPU allocator. Once, before the first tensor; later calls do nothing.
/// granule_bytes: BlockStoreOptions; models of a few kilobytes need finer ones for limits to mean something.
void install_counting_allocator(size_t granule_bytes = BlockStoreOptions{}.granule_bytes);

/// 0: no limit.
void set_memory_limit(int64_t bytes);
MemoryUsage memory_usage();
/// Peaks start again from what is alive now.
void reset_memory_peaks();
/// recent_peak_live_bytes starts again, and nothing else: to measure one round.
void restart_recent_peak();
/// Gives blocks kept for reuse back to the system.
void release_unused_memory();

/// The same memory for our kernels' packed matrices; counts under the scope at the time of allocation.
kernels::MemorySource counted_memory();

}  // namespace cotune
