#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/plugin.h"
#include "engine/job_round.h"
#include "engine/sent_messages.h"
#include "ops/memory.h"
#include "plan/cost/stage_cost.h"
#include "schedule/step_plan.h"
#include "train/job_state.h"
#include "train/memory_relief.h"
#include "train/planned_round.h"
#include "train/prediction_errors.h"

namespace cotune {

class Sweeps;
class TrainingJob;
struct ReplicaPlans;
struct RankTimes;
struct SimulatedSpan;

struct StepEvent {
  const TrainingJob* job = nullptr;
  double loss = 0, learning_rate = 0, gradient_norm = 0;
  TokenCounts tokens;            ///< of this step's batch as it went through the model
  int64_t labelled = 0;
  double seconds = 0;            ///< since the run began
  double tokens_per_second = 0;  ///< of this job, real tokens, over its last steps
  double seconds_left = 0;       ///< at that rate
};

struct EvaluationEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;  ///< after which the adapter was as it was evaluated; 0: before training
  double loss = 0, accuracy = 0;
  bool best = false;
  double seconds = 0;
};

/// What a sweep has decided of a candidate.
struct RungEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;            ///< of the rung
  double loss = 0, accuracy = 0;
  int64_t rank = 0, of = 0;    ///< among those that had come there
  bool goes_on = false;
};

/// A job's greedy answer to its first held-out example, or to its first example where none is held out.
struct SampleEvent {
  const TrainingJob* job = nullptr;
  int64_t step = 0;            ///< after which the adapter was as it answers; 0: before training
  std::string prompt, answer;
  bool out_of_memory = false;  ///< no answer: no memory was left for one
};

/// What one rank of a pipeline did in training rounds.
struct RankSummary {
  std::string host;           ///< of a rank that is a process; "" of a thread
  int64_t replica = 0, replicas = 1;        ///< of the model
  std::vector<LayerRange> layers;           ///< of its stages
  int64_t part = 0, parts = 1;              ///< of each of these layers, where ranks divide them
  double seconds = 0;         ///< of the rounds
  double waited_seconds = 0;  ///< for messages, in all-reduces, and at the end of a round for the others
  SentMessages sent;          ///< of the rounds: to other stages
  int64_t all_reduces = 0;    ///< of the rounds, and other collectives, among the ranks that divide its layers
  double exposed_seconds = 0; ///< of waited_seconds: for these all-reduces, with nothing to compute beside them
  int64_t exchanged_bytes = 0;  ///< of the rounds: gradients that it sent to other replicas
  double exchanging_seconds = 0; ///< of waited_seconds: for gradients of other replicas, with nothing to compute beside their exchange
  double gathering_seconds = 0; ///< of waited_seconds: for slices of frozen weights that other ranks have
  int64_t weight_bytes = 0;   ///< that frozen weights of a rank with memory of its own have taken at most, those gathered included
  int64_t whole_weight_bytes = 0;  ///< that they would take were none of them spread over other ranks
  /// At most. Of a rank with memory of its own: that its tensors have held. Of a thread: that it took in a round beside weights, adapters,
  /// gradients and optimizer, which are everybody's; 0 where that is not on the host.
  int64_t peak_bytes = 0;

  // Of the same rounds, predicted before they ran, with prices as they were refitted by then.
  double predicted_seconds = 0;
  double predicted_computing_seconds = 0;
  double predicted_exposed_seconds = 0;   ///< in all-reduces, for slices of frozen weights and for gradients of other replicas
  int64_t predicted_peak_bytes = 0;       ///< the bound from shapes of peak_bytes; 0 where these are 0

  /// What its time went into, in shares that add up to 1; all 0 where there was none.
  struct Shares {
    double busy = 0;
    double exposed = 0;  ///< communication within its stage and between replicas, with nothing to compute beside it
    double bubble = 0;   ///< waiting for other stages, and the end of the rounds
  };
  static Shares shares(double whole_s, double busy_s, double exposed_s) {
    if (whole_s <= 0) return {};
    return {busy_s / whole_s, exposed_s / whole_s, (whole_s - busy_s - exposed_s) / whole_s};
  }
  Shares measured() const { return shares(seconds, seconds - waited_seconds, exposed_seconds + gathering_seconds + exchanging_seconds); }
  Shares predicted() const { return shares(predicted_seconds, predicted_computing_seconds, predicted_exposed_seconds); }
};

/// What the process takes, told after a round: of the first one, then at most once a second, less often in long runs.
struct UsageEvent {
  double seconds = 0;               ///< since the run began
  int64_t steps = 0;                ///< that all jobs together have made, those before the run was resumed included
  int64_t resident_bytes = 0;       ///< of the process
  int64_t tensor_bytes = 0;         ///< of tensors on the host: alive, and kept for reuse
  std::optional<DeviceMemory> device_memory;
  double tokens_per_second = 0;     ///< of all jobs, real tokens, since the event before, evaluations included
  bool emulated = false;            ///< nothing was computed
  std::optional<double> planning_seconds, planning_exposed_seconds;  ///< on ranks, since the run began (RunSummary)
  std::span<const RankSummary> ranks = {};  ///< where there are several, so far
};

/// Prices that plans go by have changed: what was measured says so.
struct RefitEvent {
  int64_t round = 0;        ///< training rounds that the run had made
  double ratio = 1;         ///< seconds of a microbatch over those that were predicted at first
  PredictionErrors errors;  ///< so far
};

/// What rounds were seen to take has changed by what the peak of the running jobs is predicted: jobs are admitted by it.
struct PeakEvent {
  int64_t round = 0;           ///< training rounds that the run had made
  int64_t correction_bytes = 0;  ///< that predictions of the peak have less (below 0) or more than the bound from shapes
  PredictionErrors errors;     ///< so far
};

/// The ranks divide the model otherwise from now on.
struct DivisionSwap {
  int64_t round = 0;           ///< training rounds that the run had made
  std::string cause;           ///< what had changed: "`b` joins", "measured times"
  std::string before, after;   ///< as run.parallel says it
  std::string reason;          ///< in words, with numbers
  double seconds = 0;          ///< that the move took
};

/// What a run has done when it ends, or so far.
struct RunSummary {
  double seconds = 0;                   ///< of the run, from the first round on
  double seconds_training = 0;          ///< in training rounds after the first
  double seconds_evaluating = 0;
  double seconds_to_first_step = 0;     ///< from the start of the program
  double seconds_telling = 0;           ///< that the observers of the run took of its thread
  int64_t rounds = 0;                   ///< of training
  int64_t evaluation_rounds = 0;        ///< jobs whose evaluation of the same kind (EvaluationOf) is due together share one
  int64_t real_tokens = 0, labelled_tokens = 0;  ///< trained in the rounds that seconds_training counts
  std::map<int32_t, TokenCounts> tokens;         ///< per job, over all training rounds
  std::map<int32_t, int64_t> labelled;           ///< per job, over the same
  std::map<std::string, double> operator_seconds;  ///< of all ranks
  std::vector<RankSummary> ranks;                  ///< where there are several
  double ranks_seconds = 0;                        ///< of the training rounds on them
  double ranks_predicted_seconds = 0;              ///< of the same, with prices as they were refitted by then
  PredictionErrors prediction_errors;              ///< where prices are refitted: of seconds
  StageSeconds microbatches;                       ///< of the same rounds: seconds of all forwards and backwards, on all ranks
  PredictionErrors peak_prediction_errors;         ///< where peaks are learned: of bytes beyond what stays between rounds
  std::vector<DivisionSwap> swaps;                 ///< `ranks` are those since the last one
  int64_t rounds_planned_ahead = 0;                ///< of these: planned while those before them ran
  int64_t rounds_split = 0;                        ///< of these: with steps cut into more microbatches for a pipeline (RankPlanner)
  double planning_seconds = 0;                     ///< that packing, dealing, ordering and proving them took
  double planning_exposed_seconds = 0;             ///< of it: while no rank computed
  std::string device = "cpu";           ///< what it calls itself
  std::string gpu_messages;             ///< how tensors go between ranks that are processes on GPUs: `by NCCL 2.28.9`; else empty
  bool emulated = false;                ///< it is not there: times are those of a prediction, and nothing was trained
  MemoryUsage memory;                   ///< of the host
  std::optional<DeviceMemory> device_memory;  ///< of another device than the CPU
  int64_t peak_rss_bytes = 0;
  int64_t memory_limit_bytes = 0;
  std::vector<PlannedRound> plans;      ///< sharing hybrid: which jobs shared microbatches, from which round on
  std::map<int32_t, std::vector<double>> losses;  ///< per job, every step of this run
  bool interrupted = false;             ///< jobs that have not ended are saved: stopped, or only paused ones were left
  double tokens_per_second() const { return seconds_training > 0 ? static_cast<double>(real_tokens) / seconds_training : 0; }
};

/// Watches a run; called on the run's thread between rounds.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_job_started(const TrainingJob&) {}
  virtual void on_job_waiting(const TrainingJob&) {}
  virtual void on_job_paused(const TrainingJob&) {}  ///< by the user: it holds nothing in memory until it starts again
  virtual void on_selection(const TrainingJob&) {}
  /// Before a training round runs; on ranks, before the first of those that run at once. Where memory then runs short, the next
  /// plan of the same round follows.
  virtual void on_plan(const StepPlan&, std::span<const JobRound>) {}
  /// On ranks, after rounds that ran at once and before their steps, or evaluations, are told of. begin_s: by std::chrono::steady_clock
  /// in seconds. is_evaluation: of their forward actions alone.
  virtual void on_ranks(const ReplicaPlans&, const RankTimes&, double /*begin_s*/, bool /*is_evaluation*/) {}
  /// Where there is one rank, after a plan was computed: when which of its actions (on a GPU: was handed to it), by
  /// std::chrono::steady_clock in seconds; with an emulated device by the device's clock. is_evaluation: its forward actions alone.
  virtual void on_computed(const StepPlan&, std::span<const SimulatedSpan>, bool /*is_evaluation*/) {}
  virtual void on_step(const StepEvent&) {}
  virtual void on_round_ended(double /*seconds*/) {}  ///< after the steps of a round; seconds since the run began
  virtual void on_usage(const UsageEvent&) {}
  virtual void on_evaluation(const EvaluationEvent&) {}
  virtual void on_sample(const SampleEvent&) {}
  virtual void on_rung(const RungEvent&) {}          ///< after its evaluation, before it goes on or ends
  /// Rungs of this sweep were judged, or a candidate of it has ended: before checkpoints that depend on it.
  virtual void on_sweep(const Sweeps&, const std::string& /*name*/) {}
  virtual void on_saving(const TrainingJob&) {}      ///< before a checkpoint: what was told must be on disk
  virtual void on_checkpoint(const TrainingJob&) {}  ///< after it
  virtual void on_job_ended(const TrainingJob&) {}
  /// Sharing hybrid: before the first round of these hybrid tasks.
  virtual void on_hybrid_tasks(const PlannedRound&) {}
  virtual void on_refit(const RefitEvent&) {}
  virtual void on_peak(const PeakEvent&) {}
  virtual void on_swap(const DivisionSwap&) {}
  virtual void on_notice(const std::string&) {}
  /// Memory ran short: from now on the run uses this, and so must one that resumes it.
  virtual void on_relief(const MemoryRelief&) {}
  virtual void on_run_ended(const RunSummary&) {}
};

}  // namespace cotune
