#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "engine/backbone.h"
#include "engine/microbatch_state.h"
#include "engine/tensor_group.h"
#include "ops/sharded_head.h"
#include "schedule/operators.h"

namespace cotune {

/// Executes operators of the list in schedule/operators.h on a microbatch: one function per kind, each reading and
/// writing the explicit record only. Stateless but for a counter; not thread-safe.
class Stage {
 public:
  /// shape: the layers that it computes, of those that the backbone has; its tensor_parallel is the backbone's shard count.
  Stage(std::shared_ptr<const Backbone> backbone, StageShape shape);

  const Backbone& backbone() const { return *backbone_; }
  const StageShape& shape() const { return shape_; }
  /// With whom it sums partial products: to be set before anything is executed where the stage's layers are divided.
  void join(TensorGroup* group) { group_ = group; }
  /// Of an emulated backbone: whose device is busy for the time of what is executed. Nothing is computed then; what messages
  /// carry has its size and no values.
  void keep_time(EmulatedClock* clock) { clock_ = clock; }

  /// The operators of a microbatch with these jobs on this stage.
  std::vector<Operator> operators(const MicrobatchState& state, Direction direction) const;
  void execute(const Operator& op, MicrobatchState& state);
  /// The same, but that the collective after the operator, if there is one, is under way when it returns (state.communication). Other
  /// microbatches' operators may run then, and of this one those that read nothing of the operator's result (subgraphs_of). finish waits
  /// for it and makes the result of what has come.
  void start(const Operator& op, MicrobatchState& state);
  void finish(MicrobatchState& state);

  /// After every operator: for profiles and for the test that holds execution against the list.
  std::function<void(const Operator&, const MicrobatchState&, double seconds)> on_operator;
  /// Times that a method was handed an operator with all its jobs there: what the launch model calls an adapter call (mLoRA
  /// §3.3.2). How many calls of kernels each takes is counted where they are made (ops/call_counts.h).
  int64_t dispatches() const { return dispatches_; }

 private:
  struct ProductSite {
    const FrozenProduct* product = nullptr;
    std::vector<Projection> projections;
  };
  /// Jobs with an adapter at the operator, by method.
  struct MethodUse {
    const Method* method = nullptr;
    AdapterMethod kind = AdapterMethod::lora;
    OperatorUse use;
  };

  template <typename End>
  void run(const Operator& op, MicrobatchState& state, End end);
  void run(const Operator& op, MicrobatchState& state);
  ProductSite product_site(OperatorKind kind, int64_t layer) const;
  std::vector<MethodUse> method_uses(const ProductSite& site, int64_t layer, MicrobatchState& state) const;
  /// What becomes of a product's result: at once, or in finish.
  using Take = std::function<void(const at::Tensor&)>;
  void forward_product(const Operator& op, MicrobatchState& state, const at::Tensor& x, const at::Tensor& residual, Take take);
  void summed_forward_product(const ProductSite& site, std::vector<MethodUse> uses, MicrobatchState& state,
                              const std::vector<LowRankTerm>& terms, const at::Tensor& x, const at::Tensor& residual,
                              std::vector<RowRange> residual_rows, Take take);
  void backward_product(const Operator& op, MicrobatchState& state, const at::Tensor& dy, Take take);
  void adapter_gradient(const Operator& op, MicrobatchState& state, const at::Tensor& x, const at::Tensor& dy);
  void start_communication(MicrobatchState& state, GroupCollective started, Take complete) const;
  GroupCollective start_sum(const at::Tensor& partial, const MicrobatchState& state) const;

  // Where ranks divide the tokens between products (sequence_stage.cc).
  void hand_on_normed(const Operator& op, MicrobatchState& state, const at::Tensor& normed) const;
  static std::vector<MethodUse> uses_in_slice(std::vector<MethodUse> uses, const MicrobatchState& state);
  void gather_error(const Operator& op, MicrobatchState& state);
  void gather_input(MicrobatchState& state, const at::Tensor& normed) const;
  void sum_with_low_rank(MicrobatchState& state, std::vector<MethodUse> uses, const at::Tensor& dx, Take take) const;
  void gradients_in_slices(const Operator& op, MicrobatchState& state, std::vector<MethodUse> uses, const at::Tensor& x, const at::Tensor& dy);
  std::vector<AttentionSegment> segments_of(const MicrobatchState& state, int64_t layer) const;
  void run_head(MicrobatchState& state, bool want_gradient);
  HeadShard head_shard(const MicrobatchState& state) const;
  double emulate(const Operator& op, MicrobatchState& state);
  void emulate_collectives(const Operator& op, MicrobatchState& state);

  std::shared_ptr<const Backbone> backbone_;
  StageShape shape_;
  int64_t head_workspace_bytes_;
  TensorGroup* group_ = nullptr;
  EmulatedClock* clock_ = nullptr;
  int64_t dispatches_ = 0;
};

}  // namespace cotune
