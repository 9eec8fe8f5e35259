#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "engine/rank_progress.h"

namespace cotune {

/// How a process reaches the other ranks of its run.
struct RankLinks {
  /// A group of all ranks, another one at every call. Every rank calls it equally often.
  std::function<std::unique_ptr<Communicator>()> new_group;
  std::unique_ptr<Communicator> control;   ///< commands and answers; lives as long as the run
  std::unique_ptr<Communicator> messages;  ///< of rounds; one that breaks off ends it, and a new one takes its place
  std::shared_ptr<RankProgress> progress;  ///< told how far this rank is; may be nullptr
  std::function<void()> before_end;        ///< called before the first link closes in order; may be empty

  /// This rank has no more to do, and neither have the others.
  void end() {
    if (before_end) before_end();
    if (messages != nullptr) messages->barrier();
    control->barrier();
  }
};

/// Both groups, made by `new_group`.
inline RankLinks make_links(std::function<std::unique_ptr<Communicator>()> new_group) {
  RankLinks links;
  links.control = new_group();
  links.messages = new_group();
  links.new_group = std::move(new_group);
  return links;
}

}  // namespace cotune
