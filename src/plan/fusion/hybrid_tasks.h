/// Jobs → hybrid tasks → buckets → order on the stages of one replica (MuxTune §3.3, §3.4; MX-9, MX-13 to MX-16), with what
/// was not taken and why.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/fusion/fusion.h"
#include "schedule/pipeline/compute_graph.h"
#include "schedule/pipeline/grouping.h"

namespace cotune {

/// One way to run the jobs.
struct HybridTaskChoice {
  std::string name;                ///< see choose_hybrid_tasks
  int64_t microbatches = 0;        ///< of each hybrid task in a round
  HybridTasks tasks;
  std::vector<int64_t> microbatch_tokens;  ///< per task
  Buckets buckets;                 ///< indices of tasks
  /// [count − 1]: simulated under the template, or, above the least of them, at least so long; infinite where it does not
  /// fit or was not tried (more than twelve tasks with clock_cost: seven counts down to four tasks a bucket).
  std::vector<double> seconds_of_bucket_count;
  /// Per bucket: seconds of all backwards over those of all forwards. MuxTune takes it as 1 (§3.4.1); nothing here does.
  std::vector<double> backward_ratio;
  double template_seconds = 0;     ///< predicted, of a round under the template; infinite where it does not fit
  std::string order;               ///< of the buckets' microbatches: `template`, or a name of choose_order
  double seconds = 0;              ///< predicted, of a round in that order
  std::vector<int64_t> activation_bytes;  ///< per stage: the most that is kept at once
  std::vector<int64_t> workspace_bytes;   ///< per stage: the largest of all tasks
  /// Why it was not taken: what does not fit, or how much slower it is; "" for the chosen one.
  std::string rejected_for;
  bool fits() const { return !tasks.empty() && seconds < 1e300; }
};

struct ChosenHybridTasks {
  HybridTaskChoice chosen;                 ///< without tasks where nothing fits
  std::vector<HybridTaskChoice> rejected;  ///< in the order they were tried
  /// Of the chosen one: a round as pipeline work, its buckets as hybrid tasks and as jobs, and the order it runs in.
  PipelineWork work;
  ComputeOrder compute_order;
};

/// `problems`: the same jobs cut into different numbers of microbatches. For each of them the alternatives are
///   planned            fuse_jobs
///   the paper's fusion fuse_jobs with FusionRule::paper
///   all jobs fused     one hybrid task
///   each job by itself as many as jobs
/// Their hybrid tasks are put into 1 … N balanced buckets (Eq. 7, by the latency of the first stage); the count with the
/// least simulated time under the structured template is kept. Those within a hundredth of the shortest are ordered by
/// choose_order (with fewer exchanges the larger the round); the shortest then is chosen, among equals (to 1e-9) the first
/// problem and the first alternative. What the others are rejected for is told by the template's times. An alternative
/// that equals an earlier one of its problem is left out.
ChosenHybridTasks choose_hybrid_tasks(std::span<const FusionProblem> problems);

/// The problem's rounds of hybrid tasks in buckets, as work for the generators of schedule/pipeline: one entry of `jobs` per
/// bucket. Every microbatch of a bucket has one cost, round after round (computation homogeneity, §3.4.1; MX-15).
PipelineWork round_of_buckets(const FusionProblem& problem, const HybridTasks& tasks, const Buckets& buckets);

}  // namespace cotune
