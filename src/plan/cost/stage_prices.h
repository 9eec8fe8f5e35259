/// Priced stages of one machine by the jobs in a microbatch, each made once: what many replicas and packings ask for.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "plan/cost/priced_stage.h"
#include "plan/cost/stage_memory.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

class StagePrices {
 public:
  /// What is given, and what machine.measured points to, must outlive this; no job comes to `jobs`. has_clocks: of its stages (PricedStage).
  StagePrices(const ModelConfig& model, const std::vector<JobShape>& jobs, const StageMachine& machine, bool has_clocks = true);

  const StageMachine& machine() const { return machine_; }

  /// Some jobs, by number; ascending. Those whose stages have the same operators have one number: what a job without tokens has there costs
  /// nothing.
  size_t jobs_number(const std::vector<int32_t>& jobs);

  /// The stage for microbatches of jobs of this number. Stages that cost the same are one. Stays where it is.
  const PricedStage& at(const StageShape& stage, size_t jobs_number, bool every_layer = false);

  /// Weights, and the adapters of all jobs with gradients and moments; nothing else.
  const StageMemory& resident(const StageShape& stage);

  /// Whether the jobs' adapters are alike on all layers.
  bool layers_are_alike(size_t jobs_number) const { return sets_[jobs_number].is_alike; }

 private:
  struct JobSet {
    std::vector<AdapterShape> adapters;  ///< of all jobs whose adapters have places that some of these have
    bool is_alike = false;
  };
  /// jobs, every layer, tensor and sequence parallelism, layers, embedding, head, first and last layer (of the stage: 0 where that does not
  /// matter).
  using Key = std::tuple<size_t, bool, int64_t, bool, int64_t, bool, bool, int64_t, int64_t>;

  const ModelConfig& model_;
  const std::vector<JobShape>& jobs_;
  StageMachine machine_;
  bool has_clocks_;
  std::vector<int32_t> places_of_;  ///< per job: a number that those share whose adapters have equal places and forms
  std::map<std::set<int32_t>, size_t> numbers_of_places_;
  std::map<std::vector<int32_t>, size_t> numbers_;  ///< by jobs
  std::vector<JobSet> sets_;
  std::map<Key, PricedStage> stages_;
  std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool>, StageMemory> resident_;  ///< tensor parallelism, layers, embedding, head
};

}  // namespace cotune
