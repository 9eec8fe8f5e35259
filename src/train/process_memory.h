/// What this process holds and may hold.
#pragma once

#include <cstdint>
#include <utility>

#include "device/compute_device.h"

namespace cotune {

/// Free memory of the machine now (MemAvailable, and the control group's limit), and this process's resident memory and
/// its peak. Bytes.
int64_t available_memory_bytes();
int64_t resident_bytes();
int64_t peak_resident_bytes();

/// What a limit on the whole process leaves for tensors, where `outside_bytes` of it are something else before the first round: the
/// rest, without what that will grow by.
int64_t tensor_limit_within(int64_t memory_limit_bytes, int64_t outside_bytes);

/// The least limit on the whole process that leaves so much for tensors.
int64_t limit_that_leaves(int64_t tensor_bytes, int64_t outside_bytes);
/// Of it, what the rest of the process is expected to grow by.
int64_t expected_growth_bytes();

/// Keeps what a process holds within its limit, from round to round: on the CPU tensors may take what the rest of the process
/// leaves, on another device all of it. What jobs are admitted by stays theirs: the rest is given at the start what it will grow by, and
/// tensors less only where it has grown beyond that.
class TensorLimit {
 public:
  /// memory_limit_bytes: of the whole process, or of what it holds on its device; 0: none.
  TensorLimit(int64_t memory_limit_bytes, ComputeDevice device)
      : memory_limit_(memory_limit_bytes), device_(std::move(device)) {}

  /// Sees what the rest of the process takes now, and limits tensors to what is left. Returns that; 0: no limit.
  int64_t apply();
  /// Limits tensors to this much; 0: no limit.
  void set(int64_t tensor_bytes);

 private:
  int64_t memory_limit_;
  ComputeDevice device_;
  int64_t kept_ = 0;  ///< for the process beside its tensors; 0: not known yet
};

}  // namespace cotune
