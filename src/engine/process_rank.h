#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/interpreter.h"
#include "engine/rank_links.h"
#include "engine/rank_results.h"

namespace cotune {

/// What a rank of the layout needs of the model. positions: BackboneUse::positions.
BackboneUse backbone_use_of(const PipelineLayout& layout, int32_t rank, int64_t positions = 0);

/// What one rank did in a run.
struct RankTime {
  double seconds = 0;  ///< from its begin to its end
  double waited = 0;   ///< for messages and in collectives
  int64_t collectives = 0;
  std::vector<SimulatedSpan> spans;  ///< when it computed which action, from its begin
  std::map<std::string, double> operator_seconds;
};

/// The rank that this process is, of several processes: its stages, or its part of their layers, and its
/// links to the others. What rank_leader.h and rank_follower.h have in common.
class ProcessRank {
 public:
  /// backbone: with the weights of this rank, at least. Joins the others.
  ProcessRank(const std::shared_ptr<const Backbone>& backbone, PipelineLayout layout, RankLinks links);

  const PipelineLayout& layout() const { return layout_; }
  /// Where it stands, and which layers it has of which part.
  int32_t rank() const { return links_.control->rank(); }
  const TensorShard& shard() const { return shard_; }
  const std::vector<LayerRange>& layers() const { return layers_; }
  Communicator& control() { return *links_.control; }

  /// Called after each operator, if there is one.
  std::function<void(const Operator&)> after_operator;

  /// What broke the rank's part of a plan off, if anything did: its groups have ended then (join()). prepare:
  /// called first, may still write plan and rounds.
  std::exception_ptr run(const RankPlan& plan, std::vector<JobRound>& rounds, double longest_action_s,
                         const std::function<void()>& prepare);
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
  void join() { links_.join(layout_); }
  /// All ranks end.
  void end() { links_.end(); }

 private:
  PipelineLayout layout_;
  RankLinks links_;
  TensorShard shard_;
  std::vector<LayerRange> layers_;
  Interpreter interpreter_;
  RankTime time_;
  bool has_begun_ = false;
};

}  // namespace cotune
