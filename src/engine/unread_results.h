#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "engine/microbatch_state.h"

namespace cotune {

/// Copies a tensor to the CPU: where the host waits for the device.
using ReadTensor = std::function<at::Tensor(const at::Tensor&)>;

/// What a round has computed and the host has not looked at: losses, first choices and gradient norms stay on the
/// device, so that the host never waits for it within a job step. One transfer then brings all of them.
class UnreadResults {
 public:
  /// has_head: losses are taken here; otherwise, and where other replicas have losses too, a step's record brings them.
  explicit UnreadResults(bool has_head = true) : has_head_(has_head) {}

  /// Takes the losses and misses that a head has left in the record, with the rows they belong to.
  void take_head(MicrobatchState& state);

  /// A step of these layers whose success is not known yet: made only where its record (optimizer.h), on the device, is finite.
  void add_step(JobRound& round, LayerRange layers, at::Tensor record);

  /// f64 scalar on the device: the sum of the job's losses that were taken since the last read. Finite unless a loss is
  /// not; the sum of record is the one that read() forms.
  at::Tensor loss_sum(const JobRound& round) const;

  /// Brings everything over in one transfer and writes it into the rounds: losses are added in f64, in the order in
  /// which they were taken (descending atoms); steps report norm, success or failure, parameters that are not finite
  /// among them. Then nothing is unread.
  void read(const ReadTensor& read_tensor);
  void clear();

 private:
  struct Head {
    at::Tensor losses, wrong;  ///< [labelled]; wrong is undefined in training
    std::vector<JobRound*> jobs;
    std::vector<MicrobatchState::LossSpan> spans;
    std::vector<std::pair<JobRound*, int32_t>> rows;
  };
  struct Step {
    JobRound* round;
    LayerRange layers;
    at::Tensor record;
  };
  bool has_head_;
  std::vector<Head> heads_;
  std::vector<Step> steps_;
};

}  // namespace cotune
