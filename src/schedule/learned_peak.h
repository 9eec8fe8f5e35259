/// The peak predicted from shapes, corrected by what running shows (mLoRA §3.4).
#pragma once

#include <map>
#include <span>
#include <vector>

#include "schedule/memory.h"
#include "schedule/memory_fit.h"

namespace cotune {

/// What a plan really has alive at its worst moments: tokens of its largest microbatch, of the microbatches alive at once,
/// and of the chains alive at once. Tokens as they go through the model, pads included.
WorstCase alive_at_most(const StepPlan& plan);

/// One fit per job (memory_fit.h): in rounds that the job takes part in, the bytes alive beyond what stays between rounds,
/// by x₁ = tokens alive at once and x₂ = tokens of chains. All jobs of a round share its microbatches, so the sample
/// goes to each of them.
///
/// predict() is predict_memory's bound for a set of jobs, plus what was learned of those that run:
///   correction = max over the running jobs of (fit at the worst case of the running jobs, with margin) · fragmentation
///                − the bound for the running jobs alone
/// added to the activations (what does not fit there is taken from workspace, chain_kv and logits in turn; none goes below
/// zero). Mostly negative: the bound adds up worst moments that do not coincide. It is 0 unless every running job has
/// min_samples, among them one with at least half of the tokens alive, and of the chain's, that its worst case has: the
/// fit is not trusted far from its samples.
class LearnedPeak {
 public:
  static constexpr size_t min_samples = 4;

  LearnedPeak(ModelConfig config, MemoryFacts facts) : config_(std::move(config)), facts_(facts) {}

  /// `running`: those of the jobs that have been observed together.
  MemoryEstimate predict(std::span<const JobFootprint> jobs, std::span<const JobFootprint> running,
                         const PackingPolicy& policy) const;

  /// A round of these jobs under the policy. Samples taken under another policy are forgotten first.
  void observe(std::span<const int32_t> jobs, const PackingPolicy& policy, const WorstCase& alive, int64_t bytes);

  /// Of the job's samples; nothing observed: an empty fit.
  MemoryFitResult fit_of(int32_t job) const;
  size_t sample_count(int32_t job) const;

 private:
  struct Learned {
    MemoryFit fit;
    int64_t most_alive = 0, most_chain = 0;
  };

  ModelConfig config_;
  MemoryFacts facts_;
  PackingPolicy policy_;
  std::map<int32_t, Learned> jobs_;
};

}  // namespace cotune
