#pragma once

#include <map>
#include <memory>
#include <span>

#include "engine/job_round.h"
#include "engine/stage.h"
#include "engine/unread_results.h"
#include "schedule/step_plan.h"

namespace cotune {

/// Runs StepPlans on one rank: every way of training, and evaluation, goes through here. It decides nothing: which rows
/// share a microbatch, the order and what is recomputed stand in the plan.
class Interpreter {
 public:
  explicit Interpreter(std::shared_ptr<const Backbone> backbone, int64_t head_workspace_bytes = int64_t{48} << 20);

  /// Runs one round. rounds: one per batch of the plan, by job id. A job whose loss or gradient is not finite makes no
  /// step and reports it in JobRound::failure; the others are not touched by it. Rounds with purpose evaluate take the
  /// forward actions of the plan and no others; a plan's jobs are all trained (or selecting) or all evaluated.
  /// If an exception leaves (memory), no job of the plan that had not stepped has changed; gradients are zero again.
  /// Throws MemoryLimitExceeded for the memory of whichever device the model is on.
  void run(const StepPlan& plan, std::span<JobRound> rounds);

  Stage& stage() { return stage_; }

  /// How results come from the device: the only way by which a round reads from it, once at its end (on the CPU, where
  /// reading costs nothing, before each optimizer step). A test of a device without data puts its own here.
  ReadTensor read_tensor;

 private:
  struct Live {
    std::unique_ptr<MicrobatchState> state;
    std::vector<Operator> forward, backward;  ///< made once per microbatch; recomputation runs parts of forward again
  };

  void forward(const StepPlan& plan, const Action& action);
  void recompute(const Action& action);
  void backward(const Action& action);
  void step(const Action& action);
  void run_actions(const StepPlan& plan);

  Stage stage_;
  std::map<int32_t, JobRound*> rounds_;
  std::map<int32_t, Live> live_;
  ChainCaches chains_;
  UnreadResults unread_;
  bool evaluating_ = false;
};

}  // namespace cotune
