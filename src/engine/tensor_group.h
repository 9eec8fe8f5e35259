#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "adapter/adapter.h"
#include "comm/communicator.h"
#include "engine/emulated_device.h"
#include "engine/rank_progress.h"
#include "schedule/sequence_parallel.h"

namespace cotune {

/// A collective of a group that is under way.
struct GroupCollective {
  at::Tensor values;                   ///< what arrives: TensorGroup::finish makes the result of it
  std::shared_ptr<Transfer> transfer;
  int64_t summands = 1;                ///< that it is of, one below the other
  std::vector<int64_t> gathered;       ///< of an all-gather: rows of each rank, of as many that have arrived of each
  double ready_s = 0, there_s = 0;     ///< on an emulated device: since when this rank was ready, and when it is there if all were
};

/// One rank's end of the group that divides the layers of a stage (tensor parallelism,
/// model/config/tensor_shard.h). All ranks of it run the same actions and make the same calls in the same
/// order. Not thread-safe.
class TensorGroup {
 public:
  /// The communicator is of the group's ranks alone and outlives this. progress: told of waits; may be nullptr.
  explicit TensorGroup(Communicator& communicator, RankProgress* progress = nullptr)
      : communicator_(communicator), progress_(progress) {}

  /// On an emulated device, whose clock outlives this: nothing is added.
  void keep_time(EmulatedClock* clock) { clock_ = clock; }
  /// There, in the place of a sum of so many bytes: a collective in which ranks tell each other since when they are ready. All go on when
  /// the last one is and the device's time has passed, or when it has come to its end here, whichever is later. A reduce-scatter or an
  /// all-gather takes half the time.
  void emulate(Collective kind, int64_t bytes);

  /// values := sum over the ranks, in their dtype; equal bits on all.
  void all_reduce(at::Tensor& values);

  /// The sum over the ranks, in the accumulation dtype: partial products of bf16 are rounded once each, and
  /// their sum not at all.
  at::Tensor sum(const at::Tensor& partial);

  /// The same, beside what the rank goes on to compute: finish waits. Every rank starts and finishes the same sums in the same order.
  GroupCollective start_sum(const at::Tensor& partial);
  /// A reduce-scatter: of the sum over the ranks, in the accumulation dtype, this rank's rows. begins: where each rank's rows begin and the
  /// last one's end. Summands are added in the order of the ranks.
  GroupCollective start_scattered_sum(const at::Tensor& partial, const std::vector<int64_t>& begins);
  /// An all-gather: the rows of all ranks, in their dtype. Each sends as many as the one that has most.
  GroupCollective start_gather(const at::Tensor& rows, const std::vector<int64_t>& begins);
  at::Tensor finish(GroupCollective started);
  /// On an emulated device, in the place of one of so many bytes.
  GroupCollective start_emulated(Collective kind, int64_t bytes);

  /// Between devices alone this waits for what the calls above have begun (Communicator::settle). After it what they gave is sound.
  void settle();

  /// Of the gradients of these layers' parameters, what is a summand on each rank (ShardPlace::is_summand)
  /// becomes the job's gradient on all of them: one all-reduce, or none where there is nothing of the kind.
  void reduce_gradients(Adapter& adapter, LayerRange layers);

  /// Counts collectives, the bytes that this rank sends in them (of an all-reduce as in a ring), and the seconds spent waiting for them.
  int64_t collectives() const { return collectives_; }
  int64_t sent_bytes() const { return sent_bytes_; }
  double waited_s() const { return waited_s_; }

 private:
  void count_all_reduce(const at::Tensor& values);

  Communicator& communicator_;
  RankProgress* progress_;
  EmulatedClock* clock_ = nullptr;
  int64_t collectives_ = 0, sent_bytes_ = 0;
  double waited_s_ = 0;
};

}  // namespace cotune
