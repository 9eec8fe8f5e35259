/// What a Trainer is made with, beside the backbone and its jobs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/compute_device.h"
#include "engine/rank_group.h"
#include "jobs/job.h"
#include "jobs/parallel.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/rank_plan.h"
#include "schedule/step_plan.h"
#include "train/device_costs.h"
#include "train/followed_packing.h"
#include "train/held_out_blocks.h"
#include "train/memory_relief.h"
#include "train/planned_division.h"
#include "train/run_observer.h"

namespace cotune {

class Backbone;
class Sweeps;
class Trainer;
class TrainingJob;

/// How a run packs, limits and watches itself.
struct TrainerOptions {
  PackingPolicy policy;
  Recompute recompute = Recompute::automatic;  ///< automatic: only when memory demands it
  int64_t ranks = 1;                           ///< that the model's layers are divided among: threads of this process, or
  std::shared_ptr<RankGroup> rank_group;       ///< these, whose layers it has set
  std::vector<std::string> rank_hosts;         ///< of ranks that are processes
  std::string gpu_messages;                    ///< RunSummary::gpu_messages
  int64_t largest_rank_weight_bytes = 0;       ///< of ranks that are processes
  std::vector<int64_t> rank_tensor_limits;     ///< of those other than this one: jobs must fit everywhere
  std::optional<Link> rank_link;               ///< between neighbours, as it was measured; unset: that of threads (link_between_threads)
  std::optional<Link> exchange_link;           ///< between replicas; unset: the same
  /// How the ranks divide the model where it is not as the stages of one pipeline. ranks is their number.
  Parallel parallel{.replicas = {}};
  std::vector<PipelineLayout> layouts;         ///< of the replicas, where they are threads; empty: cut by predicted cost
  std::vector<FollowedPacking> packing;         ///< of the replicas; empty: as policy says
  /// By degree, where threads divide each layer: all parts of the backbone, of the first replica's degree the trainer's own first.
  std::map<int64_t, std::vector<std::shared_ptr<const Backbone>>> parts;
  DispatchRule dispatch = DispatchRule::balanced;  ///< of rows to several replicas
  LengthBucketing length_buckets = LengthBucketing::dynamic;  ///< that they are dealt by
  RankOrder pipeline_order = RankOrder::automatic;
  Interleave interleave = Interleave::automatic;   ///< where ranks divide layers
  int64_t rounds_at_once = 0;                  ///< on ranks, without a flush between them; 0: those of about eight seconds
  /// Of ranks that are threads of this process on `host`: seconds without progress after which one counts as hung (engine/thread_watch.h); 0: nobody
  /// looks. at_hang: told what is wrong, on the thread that looks; it ends the process.
  double hang_timeout_s = 0;
  std::string host;
  std::function<void(const std::string&)> at_hang;
  bool plan_ahead = true;                      ///< on ranks, rounds are planned while those before them run; no result depends on it
  HeldOutBlock held_out_block = most_held_out_at_once;  ///< of an evaluation; its sums are added in another order where it is smaller than a set
  ComputeDevice device;                        ///< where the backbone is
  int64_t memory_limit_bytes = 0;              ///< of the whole process, or of what it holds on its device; 0: none
  int64_t tensor_limit_bytes = 0;              ///< of tensors alone, in place of what memory_limit_bytes leaves for them
  std::optional<MemoryRelief> relief;          ///< of the run that is resumed: where this one begins
  std::optional<DeviceCosts> costs;            ///< that hybrid tasks are planned by; unset: roofline_costs of the device
  TaskFusion fusion = TaskFusion::predicted;   ///< how hybrid tasks are chosen
  std::optional<FollowedTasks> followed;       ///< in place of chosen hybrid tasks
  /// Whether predicted times are corrected by measured ones, by which jobs are grouped, rounds ordered and rows dealt then: plans depend
  /// on the machine's day. On the CPU; elsewhere, and on a device that is not there, they stay.
  bool refits_prices = false;
  /// Whether predicted peaks are corrected by measured ones, by which jobs are admitted and rounds that prediction has made smaller grow. On
  /// the CPU. On one rank a peak is that of the plan; on ranks also of who was how far when.
  bool learns_peaks = true;
  /// Set: the ranks are divided anew where that pays, asked for when jobs come and leave and when prices have changed.
  PlanDivision plan_division;
  std::vector<RunObserver*> observers;         ///< must outlive the trainer
  Sweeps* sweeps = nullptr;                    ///< that candidates among the jobs belong to, with what is known of them; must outlive the trainer.
                                               ///< Unset: none are known
  /// Set: save and end. The training rounds under way are finished first (on ranks those of eight seconds),
  /// an evaluation broken off after the operator at hand.
  const std::atomic<bool>* stop = nullptr;
  const std::atomic<bool>* drained = nullptr;  ///< the same, from elsewhere
  /// What is to be done to the run while it goes on (Trainer::add_jobs and those after it): called on its thread before every
  /// round, on ranks before those that run at once.
  std::function<void(Trainer&)> between_rounds;
  /// Called when no job can train: waits until between_rounds may have something to do, or `stop` or `drained` is set. Returns
  /// whether the run goes on; where it is not set, the run ends.
  std::function<bool()> wait_for_work;
  /// The time of day, in seconds since 1970, that deadlines are compared with.
  std::function<int64_t()> time_of_day = [] { return static_cast<int64_t>(std::time(nullptr)); };
  std::chrono::steady_clock::time_point program_start = std::chrono::steady_clock::now();
  /// Called before anything is written into the folder of a job. May throw SystemError, which ends the run.
  std::function<void()> before_writing;
  std::function<std::string(const TrainingJob&)> effective_configuration;  ///< written beside a finished adapter
};

}  // namespace cotune
