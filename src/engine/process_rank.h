#pragma once

#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/interpreter.h"
#include "engine/rank_links.h"
#include "engine/rank_results.h"
#include "engine/rank_times.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/pipeline/replica_plans.h"

namespace cotune {

/// What a rank needs of the model. layouts: of the replicas; positions: BackboneUse::positions.
BackboneUse backbone_use_of(std::span<const PipelineLayout> layouts, int32_t rank, int64_t positions = 0);

/// Makes a rank's backbone hold what it is to be used for from now on (Backbone::use_for).
using ChangeWeights = std::function<void(const BackboneUse& use)>;

/// The rank that this process is, of several processes: its stages, or its part of their layers, and its
/// links to the others. What rank_leader.h and rank_follower.h have in common.
class ProcessRank {
 public:
  /// backbone: with the weights of this rank, at least. layouts: of the replicas. Joins the others.
  ProcessRank(const std::shared_ptr<const Backbone>& backbone, std::vector<PipelineLayout> layouts, RankLinks links);
  ~ProcessRank();

  std::span<const PipelineLayout> layouts() const { return layouts_; }
  /// Where it stands, and which layers it has of which part.
  int32_t rank() const { return links_.control->rank(); }
  size_t replica() const { return place_.replica; }
  /// Which of its replica's lists of actions it takes.
  int32_t pipeline_rank() const { return layouts_[place_.replica].place_of(place_.worker); }
  const TensorShard& shard() const { return shard_; }
  const std::vector<LayerRange>& layers() const { return layers_; }
  Communicator& control() { return *links_.control; }
  /// RankLinks::progress.
  RankProgress* progress() const { return links_.progress.get(); }

  /// Called after each operator, if there is one.
  std::function<void(const Operator&)> after_operator;

  /// A rank's part of a run.
  struct Work {
    RankPlan plan;                 ///< of its replica
    std::vector<JobRound> rounds;  ///< its own: with its adapters, and its replica's rows
    std::list<Batch> batches;      ///< of these rows, where there are several replicas
    std::vector<GradientExchange::Step> exchanges;
    std::vector<double> action_s;  ///< of its actions, predicted (action_seconds)
  };
  /// This rank's work in a run of all replicas. rounds: with its adapters, and whole batches.
  void take_work(const ReplicaPlans& plans, std::span<const JobRound> rounds, Work& work) const;
  /// What broke its part of a run off, if anything did: its groups have ended then (join()). prepare: called first, may still write
  /// the work.
  std::exception_ptr run(Work& work, const std::function<void()>& prepare);
  /// How it exchanges a job's gradients with other replicas; must stand while a job trains whose steps are exchanged.
  void set_exchange(int32_t job, JobExchange exchange) { exchanges_[job] = std::move(exchange); }
  bool has_exchange(int32_t job) const { return exchanges_.contains(job); }
  const JobExchange& exchange_of(int32_t job) const { return exchanges_.at(job); }
  void forget_exchange(int32_t job) { exchanges_.erase(job); }

  /// Of the last run: whether it began to compute, and what came of it.
  bool has_begun() const { return has_begun_; }
  const RankTime& time() const { return time_; }
  MadeSteps made_steps() const;
  void complete_steps(const MadeSteps& made, std::span<JobRound> rounds);

  /// Of the pass that this run selects for, where it is its first batch.
  void begin_selections(std::span<const JobRound> rounds) const;
  /// All ranks end it together. prepare: called first, if there is one. If anything throws, the groups have
  /// ended.
  std::vector<Adapter::NamedTensor> end_selection(Adapter& adapter, int64_t pass,
                                                  const std::function<void()>& prepare = {});

  /// New groups in the place of those that have ended: all ranks call it together.
  void join();
  /// Between runs, all ranks together: this one takes its place in other layouts. What it exchanges is forgotten, its groups end, and then
  /// change_weights is to make the backbone hold what the rank has use for. join() comes next; if this throws, another divide().
  void divide(std::vector<PipelineLayout> layouts, const ChangeWeights& change_weights);
  /// All ranks end.
  void end() { links_.end(); }
  /// RankLinks::at_loss.
  void at_loss() {
    if (links_.at_loss) links_.at_loss();
  }

 private:
  void sum_over_ranks(at::Tensor& values, int64_t layer);
  void sum_over_holders(at::Tensor& values, int64_t layer);
  void share_weights();
  void take_place();

  std::shared_ptr<const Backbone> backbone_;
  std::vector<PipelineLayout> layouts_;
  RankLinks links_;
  RankPlace place_;
  TensorShard shard_;
  std::vector<LayerRange> layers_;
  std::optional<Interpreter> interpreter_;  ///< none while the model is divided anew
  bool shares_weights_ = false;             ///< has joined those that have the same weights, if there are such
  std::map<int32_t, JobExchange> exchanges_;  ///< by job
  RankTime time_;
  bool has_begun_ = false;
};

}  // namespace cotune
