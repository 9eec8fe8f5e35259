#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/process_rank.h"
#include "engine/rank_commands.h"
#include "engine/rank_work_json.h"

namespace cotune {

/// How the first rank has ended the work.
struct WorkEnd {
  bool well = true;   ///< by no exception
  int exit_code = 0;  ///< of its program, and so of all
};

/// One of several processes that are ranks, but not the first: computes its stages as that one
/// (rank_leader.h) tells it to. It has adapters of its own, with the parameters of its layers alone, or its
/// part of them.
class RankFollower {
 public:
  /// backbone: with the weights of this rank, at least.
  /// layouts: of the replicas.
  RankFollower(std::shared_ptr<Backbone> backbone, std::vector<PipelineLayout> layouts, RankLinks links);

  /// Called before a run, before an adapter is made and before a selection pass ends.
  std::function<void()> before_work;

  /// Of its backbone, when the model is divided anew.
  ChangeWeights change_weights;

  /// Takes commands until the first rank ends the work. What fails here is that rank's to judge. Throws CommunicationEnded where a rank is gone.
  WorkEnd serve();

 private:
  using Json = nlohmann::json;

  void take(RankCommand kind, const Json& command);
  Json answer_to(RankCommand kind, const Json& command);
  Json run(const Json& command);
  Json complete(const Json& command);
  Json share(const Json& command);
  Json divide(const Json& command);
  Json parts_answer(const Adapter& adapter) const;
  void take_state(Adapter& adapter);
  void take_work(const Json& command);
  Json end_selection(const Json& command);
  Adapter& adapter(const Json& command) { return *adapters_.at(command.at("job").get<int32_t>()); }

  ProcessRank rank_;
  std::shared_ptr<Backbone> backbone_;
  std::map<int32_t, std::unique_ptr<Adapter>> adapters_;  ///< by job
  ReceivedRounds received_;                               ///< of the last run
  ProcessRank::Work work_;                                ///< of it
};

}  // namespace cotune
