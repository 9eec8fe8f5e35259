#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/rank_progress.h"
#include "schedule/pipeline/rank_plan.h"

namespace cotune {

/// 0, 1, … count - 1
std::vector<int32_t> all_ranks(int32_t count);

/// How a process reaches the other ranks of its run. Every rank makes the same calls in the same order.
struct RankLinks {
  NewGroup new_group;
  std::unique_ptr<Communicator> control;  ///< of all: commands and answers; lives as long as the run
  std::unique_ptr<Communicator>
      messages;  ///< of rounds, with its peers in the pipeline, of equal place in their groups
  std::unique_ptr<Communicator> group;     ///< with those that divide its layers; nullptr where nobody does
  std::unique_ptr<Communicator> exchange;  ///< of all, for gradients; nullptr where there is one replica
  std::shared_ptr<RankProgress> progress;  ///< told how far this rank is; may be nullptr
  std::function<void()> before_end;        ///< called before the first link closes in order; may be empty
  std::optional<std::chrono::milliseconds> end_within;  ///< how long end() waits for others of which nothing is heard any more
  std::function<void()> at_late_end;       ///< called where it has; may be empty
  std::function<void()> at_loss;           ///< called where a message has ended by the loss of a rank: returns soon, when it is told
                                           ///< which one; may be empty

  /// With the control group alone.
  RankLinks(NewGroup make, int32_t rank_count);

  /// Makes these groups, as the replicas' layouts have them; again where they have ended.
  void join(std::span<const PipelineLayout> layouts);
  /// Lets go of these groups in order, all ranks together: nobody is in a message of them any more.
  void leave();
  /// Ends them.
  void abort() noexcept;
  /// This rank has no more to do, and neither have the others. Returns when all are here, or after end_within: what they had to do is done.
  void end();

 private:
  void let_go();
  void meet_all();
};

}  // namespace cotune
