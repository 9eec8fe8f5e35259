#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "data/batch_order.h"
#include "data/dataset.h"
#include "engine/job_round.h"
#include "jobs/deadline.h"
#include "plan/shapes/job_shape.h"
#include "schedule/memory/memory_facts.h"
#include "train/held_out_blocks.h"
#include "train/job_state.h"

namespace cotune {

/// The adapter that a job leaves, or would leave now, and what evaluations say of it.
struct JobResult {
  int64_t step = 0;       ///< after which the adapter was what is left: the best evaluation's with load_best, else the last
  int64_t eval_step = -1; ///< of the evaluation that the rest is of: `step`, or the newest before it; -1: none
  double eval_loss = std::numeric_limits<double>::quiet_NaN();
  double eval_accuracy = std::numeric_limits<double>::quiet_NaN();
  bool starts_better = false;  ///< the held-out loss was not higher before training
};

/// What an evaluation is of.
enum class EvaluationOf {
  start,    ///< the job before its first step
  adapter,  ///< it as it is now, after a step
};

/// One job while it trains: its data, adapter and state. Everything that the job can change is in here, so that jobs
/// join, leave, fail and resume without touching one another.
class TrainingJob {
 public:
  /// `index` is the job's number in its run. base_model: recorded in checkpoints and adapters. Makes no tensors: load()
  /// does. Throws UserError when the adapter does not fit the model. Whether `init_from` fits the job is checked before
  /// (adapter_folder.h).
  TrainingJob(int32_t index, JobSpec spec, JobData data, const ModelConfig& config, at::ScalarType compute,
              at::Device device, std::string base_model, std::filesystem::path folder);

  int32_t index() const { return index_; }
  const JobSpec& spec() const { return spec_; }
  /// Changes no result.
  void set_priority(int64_t priority) { spec_.priority = priority; }
  const JobData& data() const { return data_; }
  /// From load() to unload().
  Adapter& adapter() const { return *adapter_; }
  bool is_loaded() const { return adapter_ != nullptr; }
  /// It makes steps and trains nothing: there is nothing to save or to leave.
  bool is_emulated() const { return setup_.device.is_meta(); }
  JobState& state() { return state_; }
  const JobState& state() const { return state_; }
  /// Seconds since 1970, or no_deadline.
  int64_t deadline() const { return deadline_; }
  int64_t total_steps() const { return total_steps_; }
  /// The steps at which a sweep compares it with others, ascending (schedule/successive_halving.h).
  const std::vector<int64_t>& rungs() const { return rungs_; }
  int64_t steps_per_epoch() const { return cotune::steps_per_epoch(order_.order()); }
  const std::filesystem::path& folder() const { return folder_; }

  /// The adapter that `init_from` means as it was when the run began (adapter_checksum): load() refuses another one. Where it is not said,
  /// load() takes what is there.
  void expect_initial_adapter(std::string checksum) { initial_adapter_ = std::move(checksum); }

  /// Takes up the newest checkpoint, if there is one. Throws UserError when it belongs to another configuration or other
  /// data, or is damaged.
  void resume();

  /// Makes adapter, gradients and moments: as `init_from` or the newest checkpoint has them, else initial values. Throws
  /// UserError for damaged files and an initial adapter that is not the expected one, and MemoryLimitExceeded; the job is then as before.
  void load();

  /// The job's part in the next round: one training step, or one batch of a method's selection. ahead: of the rounds that
  /// are to run together, after those before it; at most as many as steps are left. What it points to lives until the next call with 0.
  /// Throws UserError naming file and line when an example holds a token that the model does not have.
  JobRound next_round(int64_t ahead = 0);
  /// Training steps until something is due that needs all of them finished: evaluation, checkpoint, the end. At least 1. ahead: from the
  /// step on to which it will have come after so many.
  int64_t steps_at_once(int64_t ahead = 0) const;
  /// Takes the result of that round into the state. Returns whether an optimizer step was made.
  bool finish_round(const JobRound& round);
  /// Begins the current selection pass again: a round of it was broken off.
  void restart_selection_pass() { selection_batch_ = 0; }
  /// In the middle of a selection pass: gradients of some of its batches have been added up.
  bool is_selecting() const { return selection_batch_ > 0; }
  /// The held-out rows from this one on that an evaluation takes at once: those that fit into `most`, at least one; none behind the last.
  /// They follow from the job's rows alone, so that its loss has the same bits in any company.
  HeldOutBlock held_out_block(int64_t first_row, const HeldOutBlock& most) const;
  /// The job's part in an evaluation of such a block. What it points to lives until release_rows(). Throws as next_round does.
  JobRound evaluation_round(EvaluationOf of, int64_t first_row, int64_t row_count);
  /// Frees the rows of rounds that are over.
  void release_rows() { batches_.clear(); }
  bool holds_rows() const { return !batches_.empty(); }
  /// Takes the held-out loss into the state: best, patience. Returns whether it is the best after a step so far. Patience
  /// is for losses that are not lower than the best before them by early_stopping_threshold. A loss that is not finite fails
  /// the job; of an emulated job there is none, and the evaluation has been made.
  bool finish_evaluation(EvaluationOf of, const HeldOutResult& result);

  /// Whether an evaluation of this is due now and has not been made. Of the start: before the first step where the job starts from an
  /// adapter (init_from); else what it starts as is the base model, which is evaluated after the first step, so that nobody waits for it.
  /// Of the adapter: every eval_steps, at rungs and at the end, once that of the start is made.
  bool evaluation_due(EvaluationOf of) const;
  /// Any is.
  bool evaluation_due() const { return evaluation_due(EvaluationOf::start) || evaluation_due(EvaluationOf::adapter); }
  /// As every method's adapter with initial values is, to the bit.
  bool starts_as_base_model() const { return spec_.adapter.init_from.empty(); }
  bool checkpoint_due() const;
  bool done() const { return state_.step >= total_steps_; }
  bool stops_early() const;
  /// Nothing is left to be done but to leave its adapter: as a job is that has ended before its run was resumed.
  bool is_at_its_end() const { return (done() || stops_early()) && !evaluation_due(); }

  /// Kept as the best as well, where its state has the lowest held-out loss so far and such are kept (keeps_best).
  void checkpoint();
  /// Whether the newest checkpoint holds the state as it is.
  bool is_saved() const { return saved_step_ == state_.step && state_is_saved_; }
  /// After a loss that is not finite: the state that gave it is no place to go on from. Where the newest checkpoint holds
  /// that state, and no held-out loss has shown that it is sound, the one before it becomes the newest again. Returns
  /// whether the newest checkpoint is another state's now: false where there is no earlier one.
  bool withdraw_bad_checkpoint();
  JobResult result() const;
  bool has_left_adapter() const {
    return !is_emulated() && (state_.status == JobStatus::finished || state_.status == JobStatus::stopped_early);
  }
  /// Writes the result's adapter to FOLDER/adapter, from the newest checkpoint where the job is not loaded; that adapter is then the loaded
  /// one, without its optimizer state, or, where memory runs out, none is. Throws UserError when a checkpoint it needs is gone or damaged.
  void leave_adapter(const std::string& effective_configuration);

  /// Frees the adapter, its gradients and moments: the job has ended, or waits for memory. Steps that no checkpoint holds
  /// are lost: save first.
  void unload();

  /// Of a job that has ended: frees its examples, which a run that goes on for long would pile up.
  void forget_data() { data_ = {}; }

  /// As admission sees it: the shapes and the longest rows.
  JobFootprint footprint() const;
  /// As planning sees it: with all lengths of its training rows.
  JobShape shape() const;

 private:
  bool leaves_best() const { return spec_.train.load_best && state_.best_step > 0; }
  void write_adapter(const std::optional<std::filesystem::path>& checkpoint, const std::string& effective_configuration) const;
  Batch make_batch(const Dataset& dataset, const std::vector<int64_t>& examples, int64_t step) const;

  int32_t index_;
  JobSpec spec_;
  JobData data_;
  std::string base_model_, initial_adapter_;
  std::filesystem::path folder_;
  ModelConfig config_;
  AdapterSetup setup_;
  std::unique_ptr<Adapter> adapter_;
  bool has_checkpoint_ = false;  ///< of this run: load() goes on from it
  BatchSequence order_;
  std::vector<int64_t> rungs_;
  int64_t total_steps_ = 0, deadline_ = no_deadline;
  int64_t vocabulary_size_ = 0, longest_row_ = 0, longest_eval_row_ = 0;
  int64_t saved_step_ = -1;      ///< whose parameters the newest checkpoint holds
  bool state_is_saved_ = false;  ///< and beside them what was found of them since
  bool loss_is_finite_ = true;   ///< the last one that was computed
  JobState state_;
  std::map<int64_t, Batch> batches_;  ///< of the rounds at hand, by step
  int64_t selection_pass_ = 0, selection_batch_ = 0, selection_passes_ = 0;
};

std::vector<JobShape> shapes_of(std::span<const std::unique_ptr<TrainingJob>> jobs);

}  // namespace cotune
