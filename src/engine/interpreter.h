#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/gradient_exchange.h"
#include "engine/job_round.h"
#include "engine/rank_messages.h"
#include "engine/stage.h"
#include "engine/unread_results.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// Runs the actions of one rank: every way of training, and evaluation, goes through here. It decides nothing: which rows
/// share a microbatch, who computes which layers, the order and what is recomputed stand in the plan.
class Interpreter {
 public:
  /// The whole model on one rank.
  explicit Interpreter(std::shared_ptr<const Backbone> backbone);
  /// The stages of one rank of several: its place in the pipeline. backbone: the rank's part, where layers are divided.
  Interpreter(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, int32_t rank);

  /// Runs one round on one rank. rounds: one per batch of the plan, by job id. A job whose loss or gradient is not finite
  /// makes no step and reports it in JobRound::failure; the others are not touched by it. Rounds with purpose evaluate take
  /// the forward actions of the plan and no others; a plan's jobs are all trained (or selecting) or all evaluated.
  /// If an exception leaves (memory), no job of the plan that had not stepped has changed; gradients are zero again.
  /// Throws MemoryLimitExceeded for the memory of whichever device the model is on.
  void run(const StepPlan& plan, std::span<JobRound> rounds);

  /// Runs this rank's part of a plan of several. rounds: as above, one per batch of every round of the plan, by job and
  /// step. Results are those that this rank knows: losses and first choices where it has the head, steps of its own layers.
  /// If an exception leaves, steps() says which of them were made; gradients are as they were left, and read_results() is to
  /// be called when no rank holds memory of the run any more. Throws what else the communicator throws.
  /// group: of the ranks that divide each of this rank's layers, where the layout's stages are divided; else nullptr.
  /// exchange: with the other replicas, where the plan has with_exchanges; else nullptr.
  void run(const RankPlan& plan, std::span<JobRound> rounds, Communicator& communicator, TensorGroup* group = nullptr,
           GradientExchange* exchange = nullptr);

  /// After a run that broke off: takes results that have not come from the device.
  void read_results();

  /// Of the last run of several stages: what is known of a job's step here.
  struct Step {
    at::Tensor record;           ///< of all stages (optimizer.h); undefined until it is known
    std::set<int32_t> stepped;   ///< stages of this rank that have made it
  };
  const std::map<JobStep, Step>& steps() const { return steps_; }
  /// Makes what is missing of a step that other ranks have made.
  void complete_step(JobRound& round, const at::Tensor& record);

  /// The rank's first stage: the only one where there is one rank.
  Stage& stage() { return stages_.begin()->second.stage; }
  /// Stage::on_operator of all of its stages.
  void observe(const std::function<void(const Operator&, const MicrobatchState&, double seconds)>& on_operator);
  /// Seconds that the last run waited for messages and other replicas, and spent in the group's collectives.
  double waited_s() const { return waited_s_; }
  /// Messages that the last run sent to other stages.
  const SentMessages& sent() const { return sent_; }
  /// When they were under way, as RankMessages::sent_spans has it.
  const std::vector<SimulatedSpan>& sent_spans() const { return sent_spans_; }
  /// Of these, for frozen weights that are spread over several processes.
  double gathering_s() const { return gathering_s_; }
  /// When the last run computed which action, by std::chrono::steady_clock in seconds; waits left out. With an emulated
  /// backbone: when its device was busy, by the device's clock.
  const std::vector<SimulatedSpan>& spans() const { return spans_; }

  /// How results come from the device: the only way by which a round reads from it, once at its end (on the CPU, where
  /// reading costs nothing, before each optimizer step). A test of a device without data puts its own here.
  ReadTensor read_tensor;

  /// Told of every action and wait of a run on several ranks, if there is one.
  std::shared_ptr<RankProgress> progress;

  /// When the last run ended here, in the seconds of spans().
  double ended_s() const { return now_s(); }
  /// What they show now.
  double clock_s() const { return clock_ != nullptr ? clock_->device().now_s() : steady_seconds(); }

 private:
  struct OwnStage {
    Stage stage;
    LayerRange layers;
    ChainCaches chains;
  };
  /// A microbatch on a stage.
  struct Live {
    std::unique_ptr<MicrobatchState> state;
    std::vector<Operator> forward, backward;  ///< made once per microbatch; recomputation runs parts of forward again
    bool in_backward = false;
    int64_t layer = -1;  ///< whose backward is under way
  };
  /// A microbatch of the plan.
  struct Place {
    const StepPlan* round = nullptr;
    const Microbatch* microbatch = nullptr;
    std::vector<JobStep> jobs;       ///< in the order of its rows
    std::vector<bool> is_last;       ///< of each job: no later one has rows of that step
    int32_t lowest_stage = 0;        ///< with an adapter of its jobs
  };

  void begin(std::span<const StepPlan> plans, std::span<JobRound> rounds);
  void join(TensorGroup* group);
  double waited_now() const;
  double gathering_now() const;
  void run_actions(std::span<const Action> actions);
  double now_s() const { return clock_ != nullptr ? clock_->free_s() : steady_seconds(); }
  void take(const Action& action);
  void clear();

  // Microbatches (interpreter_microbatches.cc).
  void forward(const Action& action);
  TensorShard shard() const;
  Live& begin_forward(int32_t microbatch, int32_t stage);
  void end_operator(const Operator& op, int32_t microbatch, Live& live);
  void end_forward(int32_t microbatch, int32_t stage);
  void recompute(const Action& action);
  void backward(const Action& action);
  void enter_backward(int32_t microbatch, int32_t stage, Live& live);
  static void free_layers_above(int64_t layer, Live& live);
  void release(const Action& action);
  void receive(const Action& action);
  void send_activation(const Action& action);
  void send_error(const Action& action);

  // Several microbatches side by side (interpreter_clock.cc).
  struct ClockTask;
  void run_clock(const Action& action);
  void begin_task(ClockTask& task, int32_t stage, bool forward);
  void run_subgraph(ClockTask& task, const Subgraph& subgraph, int32_t stage, bool forward);
  void finish_sum(ClockTask& task, int32_t stage);
  void end_task(ClockTask& task, int32_t stage, bool forward);

  // Steps of jobs (interpreter_steps.cc).
  void reduce(const Action& action);
  void step(const Action& action);
  void step_stage(JobRound& round, int32_t stage, const at::Tensor& record);
  void make_step(JobRound& round, int32_t stage, const at::Tensor& record);
  void emulate_step(JobRound& round, const LayerRange& layers);
  at::Tensor emulate_record(const JobRound& round, const LayerRange& layers);
  at::Tensor record_of(const JobStep& step, int32_t stage);
  const at::Tensor& whole_record(const Action& action);
  at::Tensor known_record(const JobStep& step) const;
  at::Tensor no_record() const;

  bool is_own(int32_t stage) const { return stages_.contains(stage); }
  OwnStage& own(int32_t stage) { return stages_.at(stage); }
  const Place& place(int32_t microbatch) const { return places_[static_cast<size_t>(microbatch)]; }
  const Place& place(const Action& action) const { return place(action.microbatch); }
  Live& live(const Action& action) { return live_.at({action.microbatch, action.stage}); }

  std::shared_ptr<const Backbone> backbone_;
  PipelineLayout layout_;
  int32_t rank_ = 0;
  std::map<int32_t, OwnStage> stages_;  ///< by their place in the pipeline
  UnreadResults unread_;
  std::unique_ptr<EmulatedClock> clock_;  ///< where the backbone is emulated

  // Of the run at hand.
  std::map<JobStep, JobRound*> rounds_;
  std::map<JobStep, int32_t> lowest_stage_;
  std::vector<Place> places_;
  std::span<const PipelineClock> clocks_;
  std::map<std::pair<int32_t, int32_t>, Live> live_;  ///< by microbatch and stage
  std::map<std::tuple<bool, int32_t, int32_t>, at::Tensor> handed_;  ///< error or activation, the stage that uses it, microbatch
  std::map<JobStep, Step> steps_;
  std::map<std::pair<JobStep, int32_t>, at::Tensor> from_above_;  ///< records of the stages above a stage
  std::unique_ptr<RankMessages> messages_;
  TensorGroup* group_ = nullptr;
  GradientExchange* exchange_ = nullptr;
  bool evaluating_ = false;
  double waited_s_ = 0, gathering_s_ = 0;
  SentMessages sent_;
  double gathering_begin_s_ = 0;  ///< ShardedWeights::waited_s when the run began
  std::vector<SimulatedSpan> spans_, sent_spans_;
  size_t action_ = 0;  ///< the place in its list of the one that is under way
};

}  // namespace cotune
