/// How long the structured template takes, without its action lists: for searches that ask thousands of times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// What every microbatch of a bucket does on one stage.
struct BucketStage {
  double forward_s = 0;
  double backward_s = 0;
  double send_up_s = 0;    ///< its activation's way to the next stage; 0 on the last
  double send_down_s = 0;  ///< its error's way to the stage before; 0 on the first
  int64_t kept_bytes = 0;
  bool operator==(const BucketStage&) const = default;
};

/// A bucket of like microbatches (MuxTune §3.4.1: one shape per bucket, whatever the round).
struct BucketTimes {
  std::vector<BucketStage> stages;
  int32_t lowest_stage = 0;  ///< no backward below it
  double optimizer_s = 0;    ///< between its last backward there and its next round's first forward
  /// Mean over the stages of forward and backward: what the template orders buckets by.
  double latency_s() const;
};

/// One stage per rank, links of the cluster.
BucketTimes bucket_times(std::span<const StageCost> cost, const MessageBytes& message_bytes, int32_t lowest_stage,
                         double optimizer_s, const PipelineCluster& cluster);

/// Runs the template event by event: ComputeGraph::times(structured_template(…)) of `rounds` rounds of
/// `microbatches` microbatches per bucket, to rounding. A bucket's messages do not overtake another's
/// activations. Keeps its buffers between calls.
class TemplateSimulator {
 public:
  TemplateSimulator(int32_t stage_count, int64_t microbatches, int64_t rounds = 1);

  /// Seconds until all is done. `buckets`: in launch order (descending latency_s). `kept_bytes_limit`: per
  /// stage, as in ListPolicy; empty: none. Infinite where a single microbatch exceeds it.
  double makespan_s(std::span<const BucketTimes* const> buckets, std::span<const int64_t> kept_bytes_limit = {});

  /// The most that each stage kept at once in the last call.
  std::vector<int64_t> peak_kept_bytes() const;

  /// Computations of all calls so far: what they cost.
  int64_t computations() const { return computations_; }

 private:
  struct Error {
    int32_t unit = 0;
    double arrival_s = 0;
  };
  struct Stage {
    double free_s = 0;
    bool next_is_backward = false;
    int32_t arrived = 0, forwards = 0;   ///< microbatches, in launch order
    std::vector<Error> errors;           ///< that wait for their backward, in order of arrival
    size_t next_error = 0;               ///< of these
    int64_t kept_bytes = 0, peak_kept_bytes = 0;
  };
  void prepare(std::span<const BucketTimes* const> buckets);
  void refresh(size_t s);
  void forward(size_t s);
  void backward(size_t s);

  size_t stage_count_;
  int64_t microbatches_;
  int64_t rounds_;
  int64_t computations_ = 0;
  // Of the call under way; `unit`: microbatches in launch order, round by round.
  std::span<const BucketTimes* const> buckets_;
  size_t bucket_count_ = 0;
  std::span<const int64_t> kept_bytes_limit_;
  size_t unit_count_ = 0;
  double slack_s_ = 0;  ///< moments this close are one
  std::vector<Stage> stages_;
  std::vector<double> next_s_;             // per stage: when it can start something, as far as is known
  std::vector<BucketStage> costs_;         // [stage, bucket]
  std::vector<size_t> lowest_stage_;       // per bucket
  std::vector<int32_t> unit_bucket_;
  std::vector<double> forward_ready_s_;    // [stage, unit]
  std::vector<double> backward_end_s_;     // [stage, bucket]: of its last one
  std::vector<int64_t> rounds_done_;       // per bucket
  std::vector<double> step_done_s_;        // the same
};

}  // namespace cotune
