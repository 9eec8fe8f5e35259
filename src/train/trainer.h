#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/device_times.h"
#include "engine/interpreter.h"
#include "engine/thread_watch.h"
#include "schedule/memory/admission.h"
#include "schedule/memory/learned_peak.h"
#include "schedule/token_counts.h"
#include "train/price_refit.h"
#include "train/process_memory.h"
#include "train/rank_planner.h"
#include "train/round_planner.h"
#include "train/round_prices.h"
#include "train/rounds_ahead.h"
#include "train/run_summary.h"
#include "train/sweeps.h"
#include "train/trainer_options.h"
#include "train/training_job.h"

namespace cotune {

/// A run from start to finish: admission, rounds, evaluations, checkpoints, the end of jobs. A round is one step of every
/// live job; what shares a microbatch is the StepPlan's matter. A job is never touched by its neighbours.
class Trainer {
 public:
  Trainer(std::shared_ptr<const Backbone> backbone, std::vector<std::unique_ptr<TrainingJob>> jobs,
          TrainerOptions options);
  ~Trainer() { ends_ = true; }

  /// Trains until every job has ended or is paused, or `stop` is set. The jobs' states say how each ended. Jobs whose state is
  /// cancelled or paused at the beginning stay so.
  RunSummary run();
  const std::vector<std::unique_ptr<TrainingJob>>& jobs() const { return jobs_; }
  const RunSummary& so_far() const { return summary_; }

  // From between_rounds (trainer_control.cc). None of it changes what other jobs become. A UserError says why the job's state
  // does not allow it, and nothing has changed then. What a job that starts is due, an evaluation, comes after all of them.
  /// Why the job can never run within the memory limit; nothing: it can.
  std::optional<std::string> reason_never_to_fit(const TrainingJob& job) const;
  /// The jobs' indices go on from those of jobs(). They start as memory allows, after which their states say whether they run.
  void add_jobs(std::vector<std::unique_ptr<TrainingJob>> jobs);
  /// Ends the job; a checkpoint of its last step is kept.
  void cancel_job(TrainingJob& job);
  /// Saves the job and takes it out of memory.
  void pause_job(TrainingJob& job);
  /// A paused job starts again when memory allows, and ends with the bits of one that was never paused.
  void resume_job(TrainingJob& job);
  void set_priority(TrainingJob& job, int64_t priority);

  /// From between_rounds (trainer_division.cc): the ranks divide the model so from the next round on. As many ranks as before; threads over
  /// the weights that are there, so with degrees that there are parts of the backbone for; processes by layouts, reading what they lack, while no
  /// job is in the middle of a selection pass. Adapters and optimizer states move; nothing is saved. Returns whether it was done: where memory
  /// does not allow it, or a process cannot read its part, all is as before, and told of. Throws SystemError where that fails too.
  bool swap_division(const PlannedDivision& division, const std::string& cause, const std::string& reason);

 private:
  // Under the memory limit (trainer_memory.cc).
  void apply_memory_limit();
  MemoryEstimate predict(std::span<const int32_t> jobs, const PackingPolicy& policy) const;
  Admission decide_admission();
  /// Refuses what never fits, and decides again until nothing is refused: others may have waited for it.
  Admission admission_without_refusals();
  /// Predicted, of the running jobs with this one beside them.
  int64_t bytes_with(const TrainingJob& job) const;
  std::string wait_reason(const TrainingJob& job) const;
  /// Saves running jobs and takes them out of memory where one of higher priority waits for their place. Returns whether there
  /// were any.
  bool put_out_lower_priorities(const Admission& admission);
  void admit_jobs();
  /// Its first part: loads those that may start, and leaves their evaluations to evaluate_started().
  void start_jobs();
  void evaluate_started();
  /// Another job may take the place of one that has left.
  void fill_place();
  /// The next step down (schedule/memory/smaller_rounds.h).
  std::optional<PackingPolicy> smaller(const PackingPolicy& policy) const;
  /// The first step down, from the policy in use, under which the job fits alone.
  std::optional<PackingPolicy> policy_that_fits(int32_t job) const;
  void use(const PackingPolicy& policy, const std::string& reason);
  bool make_rounds_smaller(const std::string& trouble);
  /// Of what the limit leaves beside the running jobs as they are predicted, each rank's share, for RankPlanner::spare: nothing while a job
  /// or larger rounds wait for memory, and once that has really run short.
  int64_t spare_bytes_of_rank();
  /// Of what microbatches keep, over what plans say: f64 is priced as f32.
  double bytes_over_priced() const;
  /// Pauses the youngest running job of the lowest priority; fails the one that runs alone. Between rounds.
  void pause_a_job(const std::string& trouble);
  void set_aside(TrainingJob& job, const std::string& trouble);
  /// Out of memory, to wait until it starts again. Steps that are not saved are lost.
  void take_out(TrainingJob& job, const std::string& reason);
  /// Gives back what is kept for reuse, as far as the limit needs it while the job's files are made or read.
  void make_room_for_files(const TrainingJob& job);

  // Of sweeps (trainer_sweeps.cc).
  /// Candidates that have come to a rung are judged, as far as that is possible now, and tells of it. Returns whether some of them
  /// have waited for it out of memory.
  bool judge_candidates();
  /// Saves candidates that wait at a rung and takes them out of memory. Returns whether there were any.
  bool put_candidates_aside(const std::vector<TrainingJob*>& evaluated);
  /// Jobs that had ended before their run was resumed, and candidates that were stopped while they waited, leave their adapters, for which
  /// they need no place.
  void end_jobs_that_are_through();
  void leave_sweep(TrainingJob& ended);
  void tell_of_sweep(const std::string& name);

  AdmissionCandidate candidate(const TrainingJob& job) const;
  std::vector<TrainingJob*> running_jobs() const;
  std::vector<JobFootprint> running_footprints() const;
  std::vector<TrainingJob*> live_jobs() const;
  /// The next round of the live jobs, or the next few.
  void run_round(const std::vector<TrainingJob*>& live);
  /// What is due when the results of all rounds have been taken; not before, for the end of a job lets others start, and they
  /// may need memory that a job gives back whose state is not yet that of its adapter.
  struct DueWork {
    std::vector<TrainingJob*> evaluations, checkpoints, failures;
    std::vector<std::pair<TrainingJob*, std::string>> selections_without_memory;
  };
  /// With a job that was not in the last round, how long one takes is not known: on ranks one goes first, by itself, and the time until
  /// something asked is done stays what it is.
  void forget_round_time_where_jobs_come(std::span<const JobRound> rounds);
  /// Takes the results of one round.
  void finish_rounds(std::span<const JobRound> rounds, DueWork& due);
  /// Counts and tells of a step that was made; returns its real tokens.
  int64_t count_step(const TrainingJob& current, const JobRound& round);
  /// Where it is time to.
  void tell_of_usage();
  /// The policy in use, with the hybrid tasks of the jobs that are resident now (trainer_plan.cc). Tells of them when jobs or
  /// policy have changed since.
  PackingPolicy round_policy();
  void tell_of_plan(const PlannedRound& round, const std::vector<TrainingJob*>& resident);
  /// Runs the rounds' plans; on memory trouble what is left of them again, in smaller microbatches or recomputed. Where that
  /// does not help either it returns the trouble; rounds that were not run come back unfinished. rounds: one or several steps
  /// of each job, ascending.
  std::optional<std::string> interpret(std::vector<JobRound>& rounds);
  StepPlan plan_of(size_t place, const std::vector<JobRound>& rounds);
  // On this thread, or on ranks (trainer_ranks.cc).
  void start_alone();
  void start_ranks();
  /// What ranks have of a job that are processes or divide layers, before and after what is done with the adapter here (engine/rank_group.h).
  void share_with_ranks(TrainingJob& job);
  void gather_from_ranks(TrainingJob& job);
  /// That this thread is at what it does with the job's files, for those who watch the ranks.
  RankTask task_of(const char* what, const TrainingJob& job) const;
  void unload(TrainingJob& job);
  /// TrainingJob::finish_round, on all ranks.
  bool finish_round(TrainingJob& job, const JobRound& round);
  /// On ranks: rounds that follow at once, so that a rank goes on while others are still busy with the ones before. Only as
  /// far as nothing is due in between, and for about as long as a user is ready to wait after asking for the end. Returns how
  /// many rounds there are then.
  size_t add_rounds_ahead(std::vector<JobRound>& rounds);
  void run_plans(std::span<const StepPlan> plans, std::span<JobRound> rounds);
  // Planning on ranks (trainer_ahead.cc). While they run, the run's thread waits for them and touches nothing; so the thread that plans
  // ahead has planners, jobs and their data to itself.
  /// Of one round, the place-th of those that run at once.
  StepPlan step_plan_of(size_t place, std::span<const JobRound> rounds);
  /// As they were planned ahead, where all that they were made from is still the same; else planned now.
  std::vector<PlannedRun> planned_runs(std::span<const StepPlan> plans, std::span<const JobRound> rounds);
  /// Of the rounds after these, on a thread of its own, which the returned future waits for: as if these went well, and no job came or left
  /// but by its last step.
  std::future<std::optional<RoundsAhead>> begin_planning_ahead(std::span<const JobRound> rounds);
  std::optional<RoundsAhead> plan_ahead(const std::map<int32_t, int64_t>& next_step, std::map<int32_t, ExchangeMessages> exchanges);
  void end_planning_ahead(std::future<std::optional<RoundsAhead>> planning);
  void count_planning(double seconds, double exposed_s);
  /// As far as time goes; 0: not known yet.
  int64_t rounds_at_once() const;
  /// The same, of rounds of which this is the first; those that were planned ahead, where it is theirs.
  int64_t rounds_beginning_with(std::span<const JobRound> first) const;
  /// What replicas send each other after these rounds, by job.
  std::map<int32_t, ExchangeMessages> exchanges_of(std::span<const JobRound> rounds);
  void run_alone(const StepPlan& plan, std::span<JobRound> rounds);
  /// followed: rounds after which others are planned meanwhile; may be none.
  void run_on_ranks(const PlannedRun& run, std::span<JobRound> rounds, std::span<const JobRound> followed = {});
  void count_tokens_of(const ReplicaPlans& plans, std::span<const JobRound> rounds);
  std::vector<std::shared_ptr<const Backbone>> parts_of(int64_t degree) const;
  void count_rank_times();
  void count_predicted_times(const PlannedRun& run);
  /// Of what RankSummary::peak_bytes are, with these jobs, on this rank of a replica's pipeline: the bound from shapes.
  int64_t predicted_bytes_of(std::span<const JobFootprint> jobs, size_t replica, size_t place, int64_t weight_bytes) const;
  void count_split_rounds(const PlannedRun& run);
  // Prices by what was measured (trainer_prices.cc).
  void start_refit(const DeviceCosts& costs);
  /// Whether the times of these rounds say something of the prices.
  bool are_measured(std::span<const JobRound> rounds) const;
  void learn_times_alone(const PricedRounds& priced, const StepPlan& plan, double seconds);
  void learn_times_of_ranks(const PlannedRun& run);
  void use_refitted_prices();
  // Peaks by what was measured (trainer_peaks.cc).
  /// Whether the bytes that these rounds took say something of the peak of others.
  bool are_peaks_measured(std::span<const JobRound> rounds) const;
  void learn_peak_alone(const StepPlan& plan, std::span<const JobRound> rounds, int64_t bytes);
  void learn_peak_of_ranks(const PlannedRun& run, std::span<const JobRound> rounds);
  /// Counts how far the rounds were off what was expected of them, and learns from them.
  void learn_peak(std::span<const JobRound> rounds, int64_t round_count, const WorstCase& alive, int64_t bytes);
  /// Of the running jobs (LearnedPeak::correction).
  std::optional<int64_t> peak_correction() const;
  /// Jobs that wait for memory: of which bound one may start is kept.
  void note_waiting(std::span<const int32_t> waiting);
  /// Between rounds: where the learned peak has come to leave room, jobs that wait are admitted, and rounds that the bound alone has made
  /// smaller become larger again.
  void use_learned_peak();
  // The ranks' division (trainer_division.cc).
  /// Asks for a division in the background, or takes what was asked for.
  void replan_division();
  void take_division(const DivisionAnswer& answer);
  void divide_as(const Parallel& parallel, std::vector<PipelineLayout> layouts);
  bool fits_divided_as(const PlannedDivision& division) const;
  bool must_stay_divided();
  std::span<const PipelineLayout> process_layouts(std::span<const PipelineLayout> layouts) const;
  double expected_move_seconds() const;
  /// Evaluates the jobs (trainer_evaluation.cc) through one plan, or several where their rows are more than a block; saves them where
  /// their settings ask for it, and fails those whose held-out loss is not finite. Broken off when `stop` is set: a resumed run makes up for
  /// it.
  void evaluate(const std::vector<TrainingJob*>& jobs);
  /// Those evaluations of the jobs that are due; the job of each that is done comes into `evaluated`, into `improved` where it is its best.
  /// Fails those whose loss is not finite.
  void evaluate(EvaluationOf of, const std::vector<TrainingJob*>& jobs, std::vector<TrainingJob*>& evaluated, std::set<const TrainingJob*>& improved);
  /// One that is under way.
  struct OpenEvaluation {
    TrainingJob* job = nullptr;
    int64_t next_row = 0;
    HeldOutResult result = {};
  };
  /// What goes through the model next: a block of each of some jobs, in their order, as many as are a block together, at least one; nothing
  /// when all are done. Leaves out jobs that have left memory, whose evaluation stays due.
  std::vector<JobRound> next_blocks(EvaluationOf of, std::vector<OpenEvaluation>& evaluations);
  void take_blocks(std::span<const JobRound> rounds, std::vector<OpenEvaluation>& evaluations);
  void save_evaluated(TrainingJob& job, bool is_best);
  void run_evaluation(std::vector<JobRound>& rounds);
  void break_off_stopped_evaluation() const;
  /// Ends a job that is done or stops early: its adapter is written.
  void finish_job(TrainingJob& job);
  /// Writes what the job leaves. Returns false where that has failed the job.
  bool leave_adapter(TrainingJob& job);
  /// Tells of the end, frees what the job holds, and lets others start.
  void end_job(TrainingJob& job, JobStatus status);
  /// The same, of a job whose place no other takes.
  void close_job(TrainingJob& job, JobStatus status);
  /// Ends the job alone, with the reason and its last good checkpoint, which is made now: for what has nothing to do with
  /// its parameters, which are those of its last complete step.
  void fail_job(TrainingJob& job, const std::string& reason);
  /// Ends alone a job whose loss, gradient or parameters are not finite, with the reason that its state names. No
  /// checkpoint is made: those that are there are better.
  void fail_with_bad_state(TrainingJob& job);
  void save(TrainingJob& job);
  /// Notes whether the job's deadline has passed by now, and tells of it the first time.
  void report_if_late(TrainingJob& job, int64_t now);
  /// The same for the jobs of the round, evaluations included, and those that wait.
  void report_missed_deadlines(const std::vector<JobRound>& rounds);
  TrainingJob& job(int32_t index) { return *jobs_[static_cast<size_t>(index)]; }
  double seconds_since_start() const;
  bool stop_asked() const {
    return (options_.stop != nullptr && options_.stop->load()) || (options_.drained != nullptr && options_.drained->load());
  }
  void save_if_it_has_stepped(TrainingJob& job);
  /// What is remarkable about jobs that are to train: their data (FileReport::warnings), their warm-up; once of all candidates of a sweep.
  void tell_of_data(std::span<const std::unique_ptr<TrainingJob>> jobs);
  template <typename Call>
  void tell(Call call) {
    const double before = seconds_since_start();
    for (RunObserver* observer : options_.observers) call(*observer);
    summary_.seconds_telling += seconds_since_start() - before;
  }

  std::shared_ptr<const Backbone> backbone_;
  std::vector<std::unique_ptr<TrainingJob>> jobs_;
  TrainerOptions options_;
  std::unique_ptr<Interpreter> interpreter_;   ///< of the one rank, where there are not several
  std::unique_ptr<DeviceTimes> device_times_;  ///< of operators, where they are not on the CPU
  RoundPlanner planner_;
  std::unique_ptr<RankPlanner> rank_planner_;  ///< where there are several
  std::unique_ptr<RoundPrices> round_prices_;  ///< where there is one and prices are refitted
  std::unique_ptr<PriceRefit> refit_;          ///< where prices are refitted
  std::shared_ptr<RankGroup> ranks_;
  std::unique_ptr<ThreadWatch> thread_watch_;
  std::optional<RoundsAhead> ahead_;           ///< of the rounds that come next, if nothing has changed
  std::vector<std::map<std::string, double>> operator_seconds_;  ///< per rank
  std::vector<int32_t> planned_jobs_;      ///< resident when it was last told of a plan; empty: never yet
  PackingPolicy planned_policy_;           ///< in use then
  HybridTasks planned_tasks_;              ///< told of then
  int64_t requested_token_budget_;
  MemoryFacts facts_;
  LearnedPeak learned_;
  int64_t told_correction_ = 0;            ///< PeakEvent, of the last one
  /// Of the running jobs with one that waits for memory, without what is learned, the least; nothing: none waits.
  std::optional<int64_t> least_waiting_bound_;
  /// Larger rounds that did not fit by prediction, the next larger ones last; empty once memory has really run short.
  std::vector<PackingPolicy> ruled_out_;
  struct SpareBytes {  ///< of each rank, and what they follow from
    std::vector<int32_t> jobs;
    PackingPolicy policy;
    int64_t limit = 0;
    int64_t bytes = 0;
  };
  std::optional<SpareBytes> spare_;
  bool keeps_spare_ = false;               ///< some rank may, in the rounds at hand
  bool has_run_short_ = false;             ///< of memory, whatever was predicted
  int64_t tensor_limit_ = 0;               ///< in force; 0: none
  TensorLimit process_limit_;
  RunSummary summary_;
  Sweeps own_sweeps_;                      ///< where the options name none
  Sweeps& sweeps_;
  std::vector<int32_t> paused_;            ///< by memory; they start again when another job ends
  std::vector<TrainingJob*> started_;      ///< since the last evaluate_started()
  std::map<int32_t, double> recent_rate_;  ///< per job, real tokens per second
  std::map<JobStep, TokenCounts> round_tokens_;  ///< of the rounds at hand
  double round_seconds_ = 0;               ///< of the last one; 0: not known of these jobs
  std::set<int32_t> round_jobs_;           ///< of the last one
  double last_usage_s_ = 0;                ///< when it was told of last
  int64_t tokens_since_usage_ = 0;
  bool evaluating_ = false;
  std::vector<int32_t> division_jobs_;     ///< that the division was planned for last
  double division_ratio_ = 1;              ///< PriceRefit::settled_ratio then
  std::string division_cause_;
  double division_seconds_ = 0;            ///< that it took to start the ranks
  std::atomic<bool> ends_{false};          ///< nobody waits for an answer any more
  std::future<std::optional<DivisionAnswer>> division_answer_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace cotune
