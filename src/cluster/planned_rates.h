/// Rounds as the planner predicts them: fusion, stage costs and pipeline simulation in the loop of a trace.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "cluster/kind_costs.h"
#include "cluster/round_rates.h"

namespace cotune {

/// Seconds of a round, remembered by mix. How the jobs share the instance is InstanceSpec::sharing:
///   separate, temporal   each job a hybrid task of its own; they take turns microbatch by microbatch
///   batch_all            one hybrid task
///   hybrid               what fuse_jobs makes of them; never slower than the two others
/// each under the structured template, two rounds of it, with the links between the stages and what memory is left for
/// activations. A round does not wait for the one before it except for a job's own optimizer step.
class PlannedRates : public RoundRates {
 public:
  PlannedRates(const InstanceSpec& instance, const std::vector<JobKind>& kinds);

  double round_seconds(const JobMix& mix) override;
  std::string describe() const override;  ///< `the planner: 1200 mixes asked for, 300 planned, 75% remembered`
  const InstanceMemory& memory() const { return costs_.memory(); }
  const KindCosts& costs() const { return costs_; }
  FusionProblem problem_of(const JobMix& mix) const;

  int64_t asked() const { return asked_; }
  int64_t planned() const { return static_cast<int64_t>(known_.size()); }

 private:
  double plan(const JobMix& mix) const;

  InstanceSpec instance_;
  KindCosts costs_;
  std::unordered_map<JobMix, double, JobMixHash> known_;
  int64_t asked_ = 0;
};

}  // namespace cotune
