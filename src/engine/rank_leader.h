#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "engine/interpreter.h"
#include "engine/rank_commands.h"
#include "engine/rank_group.h"
#include "engine/rank_links.h"

namespace cotune {

/// Ranks that are processes, seen from the first one, which computes its own stages and tells the others what to do
/// (rank_follower.h). It alone has the jobs' data and whole adapters.
class RankLeader : public RankGroup {
 public:
  /// backbone: with the weights of this rank's stages, at least.
  RankLeader(std::shared_ptr<const Backbone> backbone, PipelineLayout layout, RankLinks links);
  /// Ends the others' work. If the group has ended already they know.
  ~RankLeader() override;

  const PipelineLayout& layout() const override { return layout_; }
  bool are_processes() const override { return true; }
  void run(const RankPlan& plan, std::span<JobRound> rounds) override;
  void observe(std::function<void(int32_t rank, const Operator&)> after_operator) override;
  const RankTimes& times() const override { return times_; }
  void share(int32_t job, const Adapter& adapter) override;
  void forget(int32_t job) override;
  void gather(int32_t job, Adapter& adapter) override;
  void end_selection(int32_t job, Adapter& adapter, int64_t pass) override;

 private:
  using Json = nlohmann::json;

  void tell(const Json& command);
  /// What every other rank answers, by rank; none for this one. Where one failed: throws its exception, when all have
  /// answered.
  std::vector<Json> answers();
  std::vector<Json> answers_of_all();
  void throw_first_error(const std::vector<Json>& answers, std::exception_ptr own) const;
  std::exception_ptr run_here(const RankPlan& plan, std::span<JobRound> rounds);
  void complete_steps(const std::vector<Json>& answers, std::vector<std::vector<JobRound>>& by_rank);
  void take_times(const std::vector<Json>& answers);

  PipelineLayout layout_;
  RankLinks links_;
  at::Device device_;
  Interpreter interpreter_;
  std::function<void(int32_t rank, const Operator&)> after_operator_;
  std::map<std::string, double> operator_seconds_;
  double seconds_ = 0;  ///< of this rank's part of the last run
  std::vector<SimulatedSpan> spans_;
  RankTimes times_;
};

}  // namespace cotune
