#include "schedule/operators.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "model/config/tensor_shard.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

constexpr std::array<const char*, 27> kind_names = {
    "embedding",
    "attention_norm",
    "qkv_proj",
    "attention",
    "o_proj",
    "mlp_norm",
    "gate_up_proj",
    "swiglu",
    "down_proj",
    "loss_head",
    "head",
    "down_proj_backward",
    "swiglu_backward",
    "down_adapter_gradient",
    "gate_up_proj_backward",
    "mlp_norm_backward",
    "gate_up_adapter_gradient",
    "o_proj_backward",
    "o_adapter_gradient",
    "attention_backward",
    "qkv_proj_backward",
    "attention_norm_backward",
    "qkv_adapter_gradient",
    "down_error_gather",
    "gate_up_input_gather",
    "o_error_gather",
    "qkv_input_gather",
};
static_assert(kind_names.size() == static_cast<size_t>(OperatorKind::qkv_input_gather) + 1);

/// The operators with frozen products and adapters, from the input of a layer to its output.
enum class BaseOp { qkv, o, gate_up, down };

BaseOp base_op_of(Projection projection) {
  switch (projection) {
    case Projection::q:
    case Projection::k:
    case Projection::v:
      return BaseOp::qkv;
    case Projection::o:
      return BaseOp::o;
    case Projection::gate:
    case Projection::up:
      return BaseOp::gate_up;
    case Projection::down:
      return BaseOp::down;
  }
  return BaseOp::qkv;
}

/// Builds one list; remembers where the hidden states or their gradient come from.
class ListBuilder {
 public:
  ListBuilder(const StageShape& stage, const std::vector<AdapterShape>& adapters)
      : stage_(stage), adapters_(adapters) {}

  void forward(bool keeps) {
    if (stage_.has_embedding) stream_ = add(OperatorKind::embedding, -1, {});
    for (int64_t layer = stage_.first_layer; layer < stage_.last_layer; ++layer) forward_layer(layer);
    const int64_t lowest = lowest_layer();
    for (Operator& op : list_) op.keeps = keeps && op.layer >= lowest;
  }

  void loss_head() { add(OperatorKind::loss_head, -1, {stream_}); }

  void backward() {
    if (stage_.has_head) stream_ = add(OperatorKind::head, -1, {});
    if (adapters_.empty()) return;
    const int64_t lowest = lowest_layer();
    for (int64_t layer = stage_.last_layer; layer-- > std::max(stage_.first_layer, lowest);) {
      if (layer > lowest) {
        backward_layer(layer);
      } else {
        backward_lowest_layer(layer);
      }
    }
  }

  int64_t lowest_layer() const {
    int64_t lowest = std::numeric_limits<int64_t>::max();
    for (const AdapterShape& adapter : adapters_) lowest = std::min(lowest, adapter.layer);
    return lowest;
  }

  std::vector<Operator> take() { return std::move(list_); }

 private:
  int32_t add(OperatorKind kind, int64_t layer, std::vector<int32_t> predecessors) {
    Operator op{.kind = kind, .layer = layer};
    for (int32_t predecessor : predecessors) {
      if (predecessor >= 0) op.predecessors.push_back(predecessor);
    }
    list_.push_back(std::move(op));
    return static_cast<int32_t>(list_.size()) - 1;
  }

  int32_t add(OperatorKind kind, int64_t layer, std::vector<int32_t> predecessors, BaseOp base_op) {
    const int32_t index = add(kind, layer, std::move(predecessors));
    list_.back().adapters = adapters_at(layer, base_op);
    return index;
  }

  int32_t communicating(int32_t index) {
    list_[static_cast<size_t>(index)].communicates = stage_.tensor_parallel > 1;
    return index;
  }

  int32_t gathering(int32_t index) {
    list_[static_cast<size_t>(index)].communicates = stage_.is_sequence_parallel;
    return index;
  }

  /// Of the error that products read whole; `stream` itself where its ranks have it all.
  int32_t whole_error(OperatorKind gather, int64_t layer, int32_t stream) {
    return stage_.is_sequence_parallel ? gathering(add(gather, layer, {stream})) : stream;
  }

  /// What an adapter gradient comes after: `before`, and the whole input where a method reads that.
  std::vector<int32_t> with_whole_input(OperatorKind gather, int64_t layer, std::vector<int32_t> before, BaseOp base_op) {
    const auto reads = [](const AdapterShape& adapter) { return reads_whole_input(adapter.method); };
    if (stage_.is_sequence_parallel && std::ranges::any_of(adapters_at(layer, base_op), reads)) {
      before.push_back(gathering(add(gather, layer, before)));
    }
    return before;
  }

  void forward_layer(int64_t layer) {
    const int32_t norm = gathering(add(OperatorKind::attention_norm, layer, {stream_}));
    const int32_t qkv = add(OperatorKind::qkv_proj, layer, {norm}, BaseOp::qkv);
    const int32_t attention = add(OperatorKind::attention, layer, {qkv});
    stream_ = communicating(add(OperatorKind::o_proj, layer, {attention, stream_}, BaseOp::o));
    const int32_t mlp_norm = gathering(add(OperatorKind::mlp_norm, layer, {stream_}));
    const int32_t gate_up = add(OperatorKind::gate_up_proj, layer, {mlp_norm}, BaseOp::gate_up);
    const int32_t swiglu = add(OperatorKind::swiglu, layer, {gate_up});
    stream_ = communicating(add(OperatorKind::down_proj, layer, {swiglu, stream_}, BaseOp::down));
  }

  void backward_layer(int64_t layer) {
    const int32_t attention = attention_half(layer, mlp_half(layer));
    const int32_t qkv = communicating(add(OperatorKind::qkv_proj_backward, layer, {attention}, BaseOp::qkv));
    stream_ = add(OperatorKind::attention_norm_backward, layer, {qkv, stream_});
    add_gradient(OperatorKind::qkv_adapter_gradient, layer,
                 with_whole_input(OperatorKind::qkv_input_gather, layer, {attention, qkv}, BaseOp::qkv), BaseOp::qkv);
  }

  void backward_lowest_layer(int64_t layer) {
    if (adapted(layer, BaseOp::qkv)) {
      const int32_t attention = attention_half(layer, mlp_half(layer));
      add_last_gradient(OperatorKind::qkv_adapter_gradient, layer,
                        with_whole_input(OperatorKind::qkv_input_gather, layer, {attention}, BaseOp::qkv), BaseOp::qkv);
    } else if (adapted(layer, BaseOp::o)) {
      add_last_gradient(OperatorKind::o_adapter_gradient, layer,
                        last_error(OperatorKind::o_error_gather, layer, mlp_half(layer), BaseOp::o), BaseOp::o);
    } else if (adapted(layer, BaseOp::gate_up)) {
      const int32_t swiglu = down_and_swiglu(layer);
      add_last_gradient(OperatorKind::gate_up_adapter_gradient, layer,
                        with_whole_input(OperatorKind::gate_up_input_gather, layer, {swiglu}, BaseOp::gate_up), BaseOp::gate_up);
    } else {
      add_last_gradient(OperatorKind::down_adapter_gradient, layer,
                        last_error(OperatorKind::down_error_gather, layer, stream_, BaseOp::down), BaseOp::down);
    }
  }

  /// From the gradient of the layer's output to that of gate and up.
  int32_t down_and_swiglu(int64_t layer) {
    const int32_t error = whole_error(OperatorKind::down_error_gather, layer, stream_);
    const int32_t down = add(OperatorKind::down_proj_backward, layer, {error}, BaseOp::down);
    const int32_t swiglu = add(OperatorKind::swiglu_backward, layer, {down});
    add_gradient(OperatorKind::down_adapter_gradient, layer, {down, swiglu}, BaseOp::down);
    return swiglu;
  }

  /// From the gradient of the layer's output to that of the stream after attention.
  int32_t mlp_half(int64_t layer) {
    const int32_t swiglu = down_and_swiglu(layer);
    const int32_t gate_up =
        communicating(add(OperatorKind::gate_up_proj_backward, layer, {swiglu}, BaseOp::gate_up));
    stream_ = add(OperatorKind::mlp_norm_backward, layer, {gate_up, stream_});
    add_gradient(OperatorKind::gate_up_adapter_gradient, layer,
                 with_whole_input(OperatorKind::gate_up_input_gather, layer, {swiglu, gate_up}, BaseOp::gate_up), BaseOp::gate_up);
    return stream_;
  }

  /// From there to the gradient of q, k and v.
  int32_t attention_half(int64_t layer, int32_t stream) {
    const int32_t error = whole_error(OperatorKind::o_error_gather, layer, stream);
    const int32_t o = add(OperatorKind::o_proj_backward, layer, {error}, BaseOp::o);
    add_gradient(OperatorKind::o_adapter_gradient, layer, {o}, BaseOp::o);
    return add(OperatorKind::attention_backward, layer, {o});
  }

  void add_gradient(OperatorKind kind, int64_t layer, std::vector<int32_t> predecessors, BaseOp base_op) {
    if (adapted(layer, base_op)) add(kind, layer, std::move(predecessors), base_op);
  }

  void add_last_gradient(OperatorKind kind, int64_t layer, std::vector<int32_t> predecessors, BaseOp base_op) {
    add(kind, layer, std::move(predecessors), base_op);
    list_.back().without_input_gradient = true;
    list_.back().communicates = riding_columns(stage_, list_.back()) > 0;
  }

  /// Methods that adapt slices read no more of the error than the slice.
  std::vector<int32_t> last_error(OperatorKind gather, int64_t layer, int32_t stream, BaseOp base_op) {
    const auto reads = [](const AdapterShape& adapter) { return !adapts_slices(adapter.method); };
    if (!std::ranges::any_of(adapters_at(layer, base_op), reads)) return {stream};
    return {whole_error(gather, layer, stream)};
  }

  bool adapted(int64_t layer, BaseOp base_op) const { return !adapters_at(layer, base_op).empty(); }

  std::vector<AdapterShape> adapters_at(int64_t layer, BaseOp base_op) const {
    std::vector<AdapterShape> found;
    for (const AdapterShape& adapter : adapters_) {
      if (adapter.layer == layer && base_op_of(adapter.projection) == base_op) found.push_back(adapter);
    }
    return found;
  }

  const StageShape& stage_;
  const std::vector<AdapterShape>& adapters_;
  std::vector<Operator> list_;
  int32_t stream_ = -1;  // the operator that made the hidden states, or their gradient; -1: another stage
};

}  // namespace

StageShape whole_model(const ModelConfig& config) { return {0, config.layer_count, true, true, 1}; }

std::string to_string(OperatorKind kind) { return kind_names[static_cast<size_t>(kind)]; }

std::string Operator::name() const {
  return layer < 0 ? to_string(kind) : "layers." + std::to_string(layer) + "." + to_string(kind);
}

std::vector<Operator> stage_operators(const ModelConfig& config, const StageShape& stage,
                                      const std::vector<AdapterShape>& adapters, Direction direction) {
  COTUNE_CHECK(stage.first_layer >= 0 && stage.first_layer <= stage.last_layer &&
               stage.last_layer <= config.layer_count);
  COTUNE_CHECK(can_be_sharded(config, stage.tensor_parallel), "tensor-parallel degree {}", stage.tensor_parallel);
  COTUNE_CHECK(!stage.is_sequence_parallel || stage.tensor_parallel > 1, "one rank divides tokens");
  ListBuilder builder(stage, adapters);
  if (direction == Direction::backward) {
    builder.backward();
  } else {
    builder.forward(direction == Direction::forward);
    if (direction == Direction::evaluate && stage.has_head) builder.loss_head();
  }
  return builder.take();
}

}  // namespace cotune
