/// The peak predicted from shapes, corrected by what running shows (mLoRA §3.4).
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "schedule/memory/memory_fit.h"
#include "schedule/memory/worst_case.h"

namespace cotune {

/// Bytes alive at most in rounds, beyond what stays between rounds.
struct RoundPeak {
  int64_t by_shapes = 0;  ///< as predict_rounds bounds them
  int64_t learned = 0;    ///< as rounds before them took
};

/// One fit per job (memory_fit.h): in rounds that the job takes part in, the bytes alive beyond what stays between rounds,
/// by x₁ = tokens alive at once and x₂ = tokens of chains (alive_tokens.h). All jobs of a round share its microbatches, so the sample
/// goes to each of them.
///
/// On ranks a sample is of rounds that ran at once: where ranks are threads the bytes of all together, where each is a process those of
/// the process that took most. One learned peak is of one division of the model: the unit of tokens is the same in all, what a token
/// takes is not (messages, sums, what each part of a layer keeps whole), so ranks that are divided anew begin with another.
///
/// predict() is predict_memory for a set of jobs, with the bound of training rounds plus what was learned of those that run:
///   correction = max over the running jobs of (fit at the worst case of the running jobs, with margin) · fragmentation
///                − the bound for the running jobs alone
/// added to the activations (what does not fit there is taken from workspace, chain_kv and logits in turn; none goes below
/// zero). Mostly negative: the bound adds up worst moments that do not coincide. It is 0 unless every running job has
/// min_samples, among them one with at least half of the tokens alive, and of the chain's, that its worst case has: the
/// fit is not trusted far from its samples. On ranks the worst case (worst_case.h) has each at its own worst moment, and counts as at
/// least what has been seen.
class LearnedPeak {
 public:
  static constexpr size_t min_samples = 4;

  LearnedPeak(ModelConfig config, MemoryFacts facts) : config_(std::move(config)), facts_(facts) {}

  /// `running`: those of the jobs that have been observed together.
  MemoryEstimate predict(std::span<const JobFootprint> jobs, std::span<const JobFootprint> running,
                         const PackingPolicy& policy) const;
  /// The same with this correction of rounds; nothing: with their bound.
  MemoryEstimate with_correction(std::span<const JobFootprint> jobs, const PackingPolicy& policy, std::optional<int64_t> learned) const;
  /// What predict() adds to the bound, of as many jobs as there may be beside the running ones; nothing: the bound stands.
  std::optional<int64_t> correction(std::span<const JobFootprint> running, const PackingPolicy& policy) const;

  /// Rounds of these jobs (with the rows that they have in them), which have so much alive, before they are observed: without margin, so
  /// that it may be compared with what they take. Nothing until every job has min_samples under the policy.
  std::optional<RoundPeak> expect(std::span<const JobFootprint> jobs, const PackingPolicy& policy, const WorstCase& alive) const;

  /// A round of these jobs under the policy, or rounds that ran at once. Samples taken under another policy are forgotten first.
  /// keeps_spare: ranks may have kept more than they need (RankPlan::spare_bytes), which later rounds are not predicted to keep.
  void observe(std::span<const int32_t> jobs, const PackingPolicy& policy, const WorstCase& alive, int64_t bytes, bool keeps_spare = false);

  /// Rounds of the job that were observed.
  size_t sample_count(int32_t job) const;

 private:
  struct Learned {
    MemoryFit samples;
    MemoryFitResult fit;  ///< of these
    int64_t most_alive = 0, most_chain = 0;
    int64_t most_needed = 0;  ///< alive in rounds without spare
  };
  /// nullptr: too few samples, or of another policy.
  const Learned* known(int32_t job, const PackingPolicy& policy) const;

  ModelConfig config_;
  MemoryFacts facts_;
  PackingPolicy policy_;
  std::map<int32_t, Learned> jobs_;
};

}  // namespace cotune
