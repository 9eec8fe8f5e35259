/// A stage with the adapters of some jobs, made ready to be priced for many microbatches: the operator lists are made once, and
/// operators that are alike are priced once.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost/bytes_of_tokens.h"
#include "plan/cost/stage_cost.h"
#include "plan/cost/stage_memory.h"
#include "schedule/stage/subgraphs.h"

namespace cotune {

/// Whether layers that are adapted alike are priced once for all.
enum class LayerPricing {
  find_out,  ///< where they are alike
  alike,     ///< they are
  each,      ///< no
};

/// Whether the stage's collectives run beside computation (clock_graphs): all-reduces do, those of divided tokens are waited for.
bool has_clocks(const StageShape& stage);

class PricedStage {
 public:
  /// `adapters`: of the jobs in the microbatches, over the whole model. What machine.measured points to must outlive this.
  /// has_clocks: false where clock_graphs is not asked for, which takes a quarter of the time to make.
  PricedStage(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
              const StageMachine& machine, LayerPricing pricing = LayerPricing::find_out, bool has_clocks = true);

  const StageMachine& machine() const { return machine_; }
  const StageShape& shape() const { return stage_; }

  /// stage_seconds of a microbatch.
  StageSeconds seconds(const MicrobatchCounts& counts) const;
  /// What of it are collectives.
  StageSeconds collectives(const MicrobatchCounts& counts) const;

  /// Of stage_memory with one microbatch in flight: activations, and workspace.
  int64_t kept_bytes(const MicrobatchCounts& counts) const;
  int64_t workspace_bytes(const MicrobatchCounts& counts) const;
  /// Of the workspace under recomputation: what the largest layer keeps during its backward; else 0.
  int64_t layer_bytes(const MicrobatchCounts& counts) const;

  /// Of a stage that has_clocks: the subgraphs of a microbatch, for a clock (overlapped_stage.h): of the stage with some of its layers, or with all
  /// of them where they are few or not alike.
  struct ClockGraphs {
    SubgraphDag forward, again, backward;  ///< again: what runs once more under recomputation
  };
  enum class ClockLayers { few, more };
  ClockGraphs clock_graphs(const MicrobatchCounts& counts, ClockLayers layers, bool has_backward) const;

  /// The layers that ClockLayers::few and more stand for; equal where all of the stage's are taken.
  int64_t clock_layers(ClockLayers layers) const;

 private:
  /// An operator with how often it runs.
  struct Term {
    size_t part = 0;  ///< what the operator is priced with, in parts_
    OperatorParts op;
    double forward = 0, backward = 0;
  };
  struct List {
    std::vector<Operator> operators;
    std::vector<size_t> terms;
    SubgraphDag graph;  ///< without times
  };
  struct Clock {
    List forward, again, backward;
  };
  struct Bytes {
    BytesOfTokens all;
    std::vector<BytesOfTokens> of_job;
    int64_t of(const MicrobatchCounts& counts, int64_t ranks) const;
    bool operator==(const Bytes&) const = default;
  };

  /// Its place in parts_.
  size_t add_part(const StageOfLayers& part);
  size_t term_of(size_t part, const Operator& op);
  List list_of(size_t part, std::vector<Operator> operators);
  double seconds_of(const Term& term, const MicrobatchCounts& counts) const;
  void add_saved_bytes(const StageOfLayers& part, const Operator& op, Bytes& saved) const;
  void find_recomputed_bytes(const StageOfLayers& part, const std::vector<Operator>& forward, Bytes& kept, std::vector<Bytes>& layers) const;
  Clock clock_of(const std::vector<AdapterShape>& adapters, int64_t layers);
  std::vector<double> term_seconds(const MicrobatchCounts& counts) const;
  double collective(const Term& term, const MicrobatchCounts& counts) const;
  SubgraphDag graph_of(const List& list, const std::vector<double>& seconds, const MicrobatchCounts& counts) const;

  ModelConfig model_;
  StageShape stage_;
  StageMachine machine_;
  StageWorkspace workspace_;  ///< without layer_bytes
  bool is_alike_ = false;
  int64_t job_count_ = 0;
  std::vector<StageOfLayers> parts_;  ///< without adapters
  std::vector<Term> terms_;           ///< operators of all lists that differ
  Bytes kept_;
  std::vector<Bytes> layer_bytes_;  ///< under recomputation: what each layer keeps during its backward, each kind once
  Clock few_, more_;                ///< with tensor parallelism
};

}  // namespace cotune
