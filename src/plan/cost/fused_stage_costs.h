/// stage_seconds and stage_memory for many sets of the same jobs: fusion asks for every run of them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "plan/cost/stage_cost.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// Each job has the same tokens in every microbatch, so what its adapters take at an operator is found once; layers that
/// are adapted alike are priced once. Equal to stage_seconds and stage_memory to rounding.
class FusedStageCosts {
 public:
  /// `adapters`: of each job, over the whole model, at least one. `tokens`: of each job. What machine.measured points to must
  /// outlive this.
  FusedStageCosts(ModelConfig model, std::vector<StageShape> stages, StageMachine machine,
                  std::vector<std::vector<AdapterShape>> adapters, std::span<const int64_t> tokens);

  /// Seconds of the jobs' microbatch on every stage and the bytes that it keeps. `jobs`: at least one; `counts`: their
  /// tokens together. `layer_bytes`: with machine.recompute what the largest layer of each stage keeps during its backward,
  /// else 0.
  struct Costs {
    std::vector<StageCost> stages;
    std::vector<int64_t> layer_bytes;
  };
  Costs cost(std::span<const int32_t> jobs, const MicrobatchCounts& counts) const;

 private:
  struct AdapterTime {
    double alone_s = 0;  ///< no less than its launches
    double work_s = 0;   ///< at full use of the device
  };
  /// An operator of a layer, with each job's adapters there.
  struct LayerOperator {
    size_t base = 0;  ///< in Lists::bases
    bool backward = false;
    bool recomputed = false;               ///< runs again before the backward
    bool recomputed_with_adapters = false; ///< only where a job has adapters here
    bool needs_adapters = false;           ///< not on the list of jobs that have none here
    std::vector<int32_t> has_adapters;     ///< per job: 0 or 1
    std::vector<AdapterTime> adapters;     ///< per job
  };
  /// One layer of a stage, with the embedding or the head if it is beside it.
  struct Layer {
    StageShape shape;
    std::vector<LayerOperator> operators;
    int64_t kept_bytes_per_token = 0;
    int64_t input_bytes_per_token = 0;    ///< of them under recomputation
    std::vector<int64_t> kept_bytes;  ///< per job
  };
  /// The lists of those sets whose lowest adapter is at one place: (layer, operator in it).
  struct Lists {
    std::vector<std::pair<Operator, StageShape>> bases;             ///< operators without adapters, each kind once
    std::vector<Layer> layers;                                      ///< each kind once
    std::vector<std::vector<std::pair<size_t, int64_t>>> of_stage;  ///< (index in layers, how many)
  };
  using Place = std::pair<int64_t, int>;

  Lists lists_from(Place lowest) const;
  Layer layer_of(const StageShape& shape, Place lowest, Lists& lists) const;
  std::vector<double> base_seconds(const Lists& lists, const MicrobatchCounts& counts) const;
  AdapterTime adapter_time(const StageShape& shape, const Operator& bare, const Operator& alone, size_t job) const;
  /// With all that the layer keeps where nothing is recomputed.
  StageCost layer_cost(const Layer& layer, std::span<const int32_t> jobs, int64_t tokens, std::span<const double> bases) const;

  ModelConfig model_;
  std::vector<StageShape> stages_;
  StageMachine machine_;
  std::vector<std::vector<AdapterShape>> adapters_;
  std::vector<int64_t> tokens_;
  std::vector<Place> lowest_;            ///< per job
  std::vector<int64_t> layer_kind_;      ///< per layer: equal where the jobs' adapters are
  std::map<Place, Lists> lists_;
};

}  // namespace cotune
