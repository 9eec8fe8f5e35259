/// What a run has done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/plugin.h"
#include "ops/memory.h"
#include "plan/cost/stage_cost.h"
#include "schedule/step_plan.h"
#include "schedule/token_counts.h"
#include "train/planned_round.h"
#include "train/prediction_errors.h"
#include "train/rank_summary.h"
#include "train/run_events.h"

namespace cotune {

/// When it ends, or so far.
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

}  // namespace cotune
