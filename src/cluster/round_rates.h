/// How fast an instance trains a mix of jobs: what the simulation of a trace asks for at every arrival and exit.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/job_kind.h"

namespace cotune {

/// A round is one optimizer step of every job on the instance.
class RoundRates {
 public:
  virtual ~RoundRates() = default;
  /// Seconds of a round of the mix; above 0 and finite for every mix that is not empty. Equal mixes have equal rounds.
  virtual double round_seconds(const JobMix& mix) = 0;
  virtual std::string describe() const = 0;  ///< where the rates come from, in words
};

}  // namespace cotune
