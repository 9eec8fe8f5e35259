#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/job_shards.h"
#include "engine/process_rank.h"
#include "engine/rank_commands.h"
#include "engine/rank_group.h"

namespace cotune {

/// Ranks that are processes, seen from the first one, which computes its own stages and tells the others what
/// to do (rank_follower.h). It alone has the jobs' data and whole adapters.
class RankLeader : public RankGroup {
 public:
  /// backbone: with the weights of this rank's stages, at least.
  /// layouts: of the replicas.
  RankLeader(std::shared_ptr<const Backbone> backbone, std::vector<PipelineLayout> layouts, RankLinks links);
  /// Of this rank's backbone: called by divide().
  ChangeWeights change_weights;

  /// What the program of the others is to end with, as this one's: asked when this is destroyed. Empty: 0, or 1 where an exception does that.
  std::function<int()> exit_code;

  /// Ends the others' work; where a command was broken off, by ending the group. If it has ended already they
  /// know.
  ~RankLeader() override;

  std::span<const PipelineLayout> layouts() const override { return rank_.layouts(); }
  bool are_processes() const override { return true; }
  RankProgress* progress() const override { return rank_.progress(); }
  using RankGroup::run;
  void run(const ReplicaPlans& plans, std::span<JobRound> rounds) override;
  int64_t divide(std::vector<PipelineLayout> layouts) override;
  void observe(std::function<void(int32_t rank, const Operator&)> after_operator) override;
  ExchangeMessages exchange_messages_of(int32_t job, const Adapter& adapter) override;
  const RankTimes& times() const override { return times_; }
  void share(int32_t job, const Adapter& adapter) override;
  void forget(int32_t job) override;
  void gather(int32_t job, Adapter& adapter) override;
  void end_selection(int32_t job, Adapter& adapter, int64_t pass) override;

 private:
  using Json = nlohmann::json;

  void tell(const Json& command);
  /// tell, of what is no run: this rank is at it, too, until the scope ends.
  [[nodiscard]] RankTask take_up(const Json& command);
  /// What every other rank answers, by rank; none for this one.
  std::vector<Json> answers_of_all();
  /// Where one failed: throws its exception, when all have answered. own: of this rank, or nullptr.
  std::vector<Json> answers(std::exception_ptr own = nullptr);
  void throw_first_error(const std::vector<Json>& answers, std::exception_ptr own) const;
  void complete_steps(const std::vector<Json>& answers, std::vector<std::vector<JobRound>>& by_rank);
  void join_anew();
  void use_shards();
  void take_times(const std::vector<Json>& answers);
  std::vector<LayerRange> layers_of(int32_t rank) const { return cotune::layers_of(layouts(), rank); }
  void agree_on_exchanges(const ReplicaPlans& plans, std::span<const JobRound> rounds);
  void agree_on_exchange(int32_t job, const Adapter& whole);

  std::shared_ptr<const Backbone> backbone_;
  ProcessRank rank_;
  std::optional<JobShards> shards_;  ///< with which this rank computes, where it has but a part of its layers or of the rows
  RankTimes times_;
  bool is_answered_ = true;  ///< all that the others were told
};

}  // namespace cotune
