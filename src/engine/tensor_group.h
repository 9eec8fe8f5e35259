#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "adapter/adapter.h"
#include "comm/communicator.h"
#include "engine/emulated_device.h"
#include "engine/rank_progress.h"

namespace cotune {

/// One rank's end of the group that divides the layers of a stage (tensor parallelism,
/// model/config/tensor_shard.h). All ranks of it run the same actions and make the same calls in the same
/// order. Not thread-safe.
class TensorGroup {
 public:
  /// The communicator is of the group's ranks alone and outlives this. progress: told of waits; may be nullptr.
  explicit TensorGroup(Communicator& communicator, RankProgress* progress = nullptr)
      : communicator_(communicator), progress_(progress) {}

  /// On an emulated device, whose clock outlives this: sums are sent as ever, and take the device's time where that is longer.
  void keep_time(EmulatedClock* clock) { clock_ = clock; }

  /// values := sum over the ranks, in their dtype; equal bits on all.
  void all_reduce(at::Tensor& values);

  /// The sum over the ranks, in the accumulation dtype: partial products of bf16 are rounded once each, and
  /// their sum not at all.
  at::Tensor sum(const at::Tensor& partial);

  /// Of the gradients of these layers' parameters, what is a summand on each rank (ShardPlace::is_summand)
  /// becomes the job's gradient on all of them: one all-reduce, or none where there is nothing of the kind. Gradients of the meta
  /// device are sent as zeros.
  void reduce_gradients(Adapter& adapter, LayerRange layers);

  /// Counts all_reduce, and the seconds spent in it.
  int64_t collectives() const { return collectives_; }
  double waited_s() const { return waited_s_; }

 private:
  Communicator& communicator_;
  RankProgress* progress_;
  EmulatedClock* clock_ = nullptr;
  int64_t collectives_ = 0;
  double waited_s_ = 0;
};

}  // namespace cotune
