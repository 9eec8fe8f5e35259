/// Which jobs fit on an instance together (mLoRA §3.4, ML-24): on every stage the sum over the jobs, each with the
/// activations of all microbatches that it may have in flight, is within what the stage's device has.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cluster/job_kind.h"

namespace cotune {

/// What one job takes, per stage.
struct JobMemory {
  std::vector<int64_t> resident_bytes;    ///< adapter, gradients, optimizer
  std::vector<int64_t> activation_bytes;  ///< at the job's own row length
  int64_t row_tokens = 1;
  bool operator==(const JobMemory&) const = default;
};

struct InstanceMemory {
  std::vector<int64_t> limit_bytes;  ///< per stage: of one device
  std::vector<int64_t> fixed_bytes;  ///< per stage: frozen weights and what one microbatch needs whatever the jobs
  std::vector<JobMemory> kinds;
  bool padded = false;  ///< rows are padded to the longest of the mix: activations grow with it

  /// No limit at all, for `kind_count` kinds.
  static InstanceMemory unlimited(size_t kind_count);
  std::vector<int64_t> bytes(const JobMix& mix) const;  ///< per stage
  bool fits(const JobMix& mix) const;
  /// Of a mix that does not fit: the stage that is furthest over its limit, what it takes, and what of it no job brings. `stage 1 of 4 takes
  /// 5.10 GiB where 3.60 GiB may be used, 4.90 GiB of it whatever the jobs`.
  std::string overflow_text(const JobMix& mix) const;
};

/// The memory of one instance while jobs come and go: fits() in constant time.
class MemoryInUse {
 public:
  explicit MemoryInUse(const InstanceMemory& memory);
  bool fits(int32_t kind) const;  ///< one job more
  void set(const JobMix& mix);
  double highest_share() const;  ///< of the limit, on the fullest stage

 private:
  double bytes(size_t stage, int64_t longest) const;

  const InstanceMemory* memory_;
  std::vector<double> resident_;        // per stage, fixed included
  std::vector<double> per_row_token_;   // per stage: activations over row length
  std::vector<double> own_length_;      // per stage: activations at each job's own length
  int64_t longest_ = 0;
};

}  // namespace cotune
