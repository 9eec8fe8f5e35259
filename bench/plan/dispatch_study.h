/// The rounds that dispatch is judged by: LobRA's six tasks on 7B, by turns of lognormal, gamma and Weibull lengths, 16 buckets on replicas
/// of five configurations.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/deployment/configuration.h"
#include "plan/deployment/dispatch.h"
#include "rows.h"

namespace cotune {

struct DispatchProblem {
  std::vector<BucketCosts> costs;
  Counts replicas, sequences;
};

class DispatchStudy {
 public:
  static constexpr uint64_t rounds = 300;

  DispatchStudy();
  const std::vector<Configuration>& configurations() const { return configurations_; }
  Counts lengths(uint64_t round) const;
  DispatchProblem problem(const Counts& lengths) const;
  /// As far as it is proven to be within half a percent, or the search ends.
  static Dispatch solve(const DispatchProblem& problem);

 private:
  std::vector<Configuration> configurations_;
  Counts plan_;
};

}  // namespace cotune
