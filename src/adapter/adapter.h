/// One job's adapter, and the interface that every PEFT method implements (MuxTune §3.2: BaseOp, Adapter, Dispatch,
/// Aggregate). A BaseOp is one operator with a frozen product (qkv_proj, o_proj, gate_up_proj, down_proj).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapter/parameter.h"
#include "jobs/job.h"
#include "jobs/projection.h"
#include "jobs/target_modules.h"
#include "model/config/model_config.h"
#include "model/config/tensor_shard.h"
#include "ops/low_rank.h"

namespace cotune {

/// What one job trains at one projection of one layer. Each method derives its own; the engine only passes it back.
class SiteAdapter {
 public:
  virtual ~SiteAdapter() = default;
};

/// What an adapter is made from.
struct AdapterSetup {
  AdapterSpec spec;
  std::vector<AdaptedModule> modules;
  uint64_t seed = 0;
  OptimizerKind optimizer = OptimizerKind::adamw;
  double momentum = 0;
  at::ScalarType compute = at::kFloat;
  at::Device device = at::kCPU;
  FactorForm factor_form = FactorForm::made_by_use;
  TensorShard shard;  ///< what of it is made: the part that a rank of a tensor-parallel group computes with (adapter_shard.h)
  /// The layers whose parameters it has, where a rank holds those of its own stages alone: `modules` are the whole adapter's
  /// all the same. Empty: all.
  std::vector<LayerRange> held;
  bool holds(int64_t layer) const;
};

/// All that one job can change. Owned by the job; nothing of it is shared.
class Adapter {
 public:
  virtual ~Adapter() = default;
  AdapterMethod method() const { return setup_.spec.method; }
  const AdapterSetup& setup() const { return setup_; }

  /// nullptr where this job adapts nothing.
  SiteAdapter* at(int64_t layer, Projection projection) const;
  /// The lowest adapted layer; backward passes of this job may stop there.
  int64_t lowest_layer() const { return setup_.modules.front().layer; }

  /// Every trainable tensor, in a fixed order. Diff pruning has none before its selection is made.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int64_t parameter_count() const;
  ProjectionSize projection_size_of(Projection projection) const { return projection_size(config_, projection); }
  /// The whole model's, whatever part of the adapter this is.
  const ModelConfig& model_config() const { return whole_config_; }

  /// Brings what the kernels read up to date with the parameters of these layers: after every step, load or assignment.
  virtual void refresh(LayerRange layers) = 0;
  void refresh() { refresh(LayerRange{}); }

  /// Passes over the first batches that the method needs before its first optimizer step (diff pruning's selection);
  /// 0 for most. A pass p in [0, selection_passes()) is: begin_selection(p), forward and backward of the selection
  /// batches, end_selection(p).
  virtual int64_t selection_passes() const { return 0; }
  /// Passes whose outcome is there already, in `structure()`: an adapter that was loaded goes on with the next one.
  virtual int64_t finished_selection_passes() const { return 0; }
  virtual void begin_selection(int64_t pass);

  /// A tensor with the method's own structure (diff pruning: the kept entries), always of whole weights.
  struct NamedTensor {
    std::string name;
    at::Tensor tensor;
    int64_t layer = 0;  ///< that it belongs to; not read by restore_structure
  };
  /// Adds a tensor of a layer over the ranks that have gathered some of it; equal bits on all.
  using SumOverRanks = std::function<void(at::Tensor&, int64_t layer)>;
  /// Returns what was chosen in the layers that are held. sum: where other ranks have gathered too, for other parts of the weights or
  /// from other rows; they end the pass together.
  virtual std::vector<NamedTensor> end_selection(int64_t pass, const SumOverRanks& sum = {});

  /// Not of a shard.
  virtual std::vector<NamedTensor> structure() const { return {}; }
  /// Restores the structure that a saved adapter had before its values are assigned. `extra` are the file's tensors that are
  /// not parameters, of the layers that are held; a shard takes its part of them. complete: its selection had ended; otherwise
  /// `extra` is of the first passes.
  virtual void restore_structure(const std::vector<NamedTensor>& extra, bool complete);

  /// Adds what a shard's selection pass has gathered to the whole's, which has begun the same pass, and ends the shard's.
  virtual void add_selection_to(Adapter& whole);

 protected:
  Adapter(const ModelConfig& config, AdapterSetup setup);
  void place(int64_t layer, Projection projection, SiteAdapter* site);
  /// A zeroed gradient and the optimizer state for a value.
  Parameter make_parameter(std::string name, int64_t layer, at::Tensor value) const;
  /// Of this part.
  const ModelConfig& config() const { return config_; }
  FeatureRange inputs_of(Projection projection) const { return shard_inputs(whole_config_, projection, setup_.shard); }
  FeatureRange outputs_of(Projection projection) const { return shard_outputs(whole_config_, projection, setup_.shard); }
  /// Of a parameter of which every rank has all. is_summand: as ShardPlace has it.
  ShardPlace whole_place(bool is_summand) const;
  /// Of one with an element, row or column per input (output) feature of a projection.
  ShardPlace place_by_inputs(Projection projection, int64_t dimension) const;
  ShardPlace place_by_outputs(Projection projection, int64_t dimension) const;

  std::vector<Parameter> parameters_;

 private:
  ModelConfig whole_config_, config_;
  AdapterSetup setup_;
  std::vector<std::array<SiteAdapter*, projection_count>> sites_;
};

/// The rows of one job in a microbatch.
struct JobRows {
  RowRange rows;
  std::vector<RowRange> atoms;  ///< in descending atom index: the order in which gradients are added
  uint64_t dropout_key = 0;     ///< of (job seed, job step)
  bool training = true;         ///< false: evaluation and generation, no dropout
};

/// What a method keeps from an operator's forward for its backward, per job and projection.
struct SiteRecord {
  std::vector<at::Tensor> kept;
};

/// One job's adapter at one projection of the operator at hand.
struct SiteUse {
  SiteAdapter* adapter = nullptr;
  Projection projection = Projection::q;
  int64_t column_begin = 0;  ///< of this projection in the operator's output (q|k|v, gate|up)
  int64_t column_count = 0;
  const JobRows* job = nullptr;
  SiteRecord* record = nullptr;
  const JobRows* input = nullptr;  ///< in `gradients`: the job's rows in x, where they are other ones than `job` (Method::summands)

  const JobRows& input_rows() const { return input != nullptr ? *input : *job; }
};

/// The first columns of a tensor with a row for each of a job's rows.
struct LowRankRows {
  at::Tensor* rows = nullptr;
  int64_t columns = 0;  ///< those behind are zeros
};

/// One operator, one method, all jobs of that method in the microbatch.
struct OperatorUse {
  int64_t layer = 0;
  std::vector<SiteUse> sites;
  DropoutRows rows;  ///< of the microbatch; in `gradients` of x
};

/// One PEFT method: stateless; every call serves all jobs of the method at an operator (one grouped call).
class Method {
 public:
  virtual ~Method() = default;

  /// Whether the residual must wait for after_forward, which then adds it for these rows. Such a method changes the operator's
  /// whole output: in a tensor-parallel group, what the ranks' partial products sum up to. Another's after_forward adds what
  /// belongs to this rank's product.
  virtual bool withholds_residual() const { return false; }

  /// Dispatch, before the frozen product: may add low-rank terms that the product adds inside its accumulators.
  virtual void before_forward(OperatorUse& use, const at::Tensor& x, std::vector<LowRankTerm>& terms) const;
  /// Aggregate, after it: changes the jobs' rows of y. residual: undefined where the operator has none.
  virtual void after_forward(OperatorUse& use, const at::Tensor& x, at::Tensor& y, const at::Tensor& residual) const;

  /// Before the product's input gradient: may add terms, or replace dy (by a copy) with the gradient that enters the
  /// frozen product.
  virtual void before_backward(OperatorUse& use, at::Tensor& dy, std::vector<LowRankTerm>& terms) const;
  virtual void after_backward(OperatorUse& use, const at::Tensor& dy, at::Tensor& dx) const;
  /// What before_backward has put into a site's record and `gradients` multiplies with the input, where every rank of a group that divides
  /// the product's outputs has a summand of it. Under sequence parallelism, where x is a rank's slice of the rows, it is the sum over the
  /// ranks at these rows when `gradients` is called. Undefined rows: there is nothing of the kind.
  virtual LowRankRows summands(SiteUse& use) const;
  /// Adds the parameters' gradients, atom by atom. x: the product's input; dy: the gradient of the operator's output
  /// before any replacement.
  virtual void gradients(OperatorUse& use, const at::Tensor& x, const at::Tensor& dy) const = 0;
};

/// The method's singleton and a new adapter of it: the one line of registration a method needs (registry.cc).
const Method& method_of(AdapterMethod method);
std::unique_ptr<Adapter> make_adapter(const ModelConfig& config, AdapterSetup setup);

}  // namespace cotune
