#include "engine/stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "engine/memory_facts.h"
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/cross_entropy_head.h"
#include "ops/memory.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"
#include "schedule/adapter_shape.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

bool has_adapter(const MicrobatchState& state, int64_t layer, Projection projection) {
  return std::ranges::any_of(state.jobs, [&](const JobRound* round) {
    return round->adapter != nullptr && round->adapter->at(layer, projection) != nullptr;
  });
}

}  // namespace

Stage::Stage(std::shared_ptr<const Backbone> backbone, StageShape shape)
    : backbone_(std::move(backbone)),
      shape_(shape),
      head_workspace_bytes_(memory_facts(backbone_->compute(), backbone_->device()).head_workspace_bytes) {
  COTUNE_CHECK(shape_.tensor_parallel == backbone_->shard().count, "a backbone of {} parts for a stage of {}",
               backbone_->shard().count, shape_.tensor_parallel);
}

std::vector<Operator> Stage::operators(const MicrobatchState& state, Direction direction) const {
  std::vector<AdapterShape> adapters;
  for (const JobRound* round : state.jobs) {
    if (round->adapter == nullptr) continue;
    const AdapterSetup& setup = round->adapter->setup();
    const std::vector<AdapterShape> shapes = adapter_shapes(round->job, setup.spec, setup.modules, backbone_->config());
    adapters.insert(adapters.end(), shapes.begin(), shapes.end());
  }
  return stage_operators(backbone_->config(), shape_, adapters, direction);
}

void Stage::execute(const Operator& op, MicrobatchState& state) {
  run(op, state, [&] { finish(state); });
}

void Stage::start(const Operator& op, MicrobatchState& state) {
  run(op, state, [] {});
}

void Stage::finish(MicrobatchState& state) {
  if (!state.communication) return;
  const MemoryScope scope(MemoryKind::activations);
  MicrobatchState::Communication communication = std::move(*state.communication);
  state.communication.reset();
  communication.complete(group_->finish(std::move(communication.started)));
}

template <typename End>
void Stage::run(const Operator& op, MicrobatchState& state, End end) {
  if (clock_ != nullptr) {
    const double seconds = emulate(op, state);
    end();
    if (on_operator) on_operator(op, state, seconds);
    return;
  }
  if (!on_operator) {
    run(op, state);
    end();
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  run(op, state);
  end();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  on_operator(op, state, elapsed.count());
}

Stage::ProductSite Stage::product_site(OperatorKind kind, int64_t layer) const {
  const BackboneLayer& weights = backbone_->layer(layer);
  switch (kind) {
    case OperatorKind::qkv_proj:
    case OperatorKind::qkv_proj_backward:
    case OperatorKind::qkv_adapter_gradient:
      return {weights.qkv.get(), {Projection::q, Projection::k, Projection::v}};
    case OperatorKind::o_proj:
    case OperatorKind::o_proj_backward:
    case OperatorKind::o_adapter_gradient:
    case OperatorKind::o_error_gather: return {weights.o.get(), {Projection::o}};
    case OperatorKind::gate_up_proj:
    case OperatorKind::gate_up_proj_backward:
    case OperatorKind::gate_up_adapter_gradient:
      return {weights.gate_up.get(), {Projection::gate, Projection::up}};
    case OperatorKind::down_proj:
    case OperatorKind::down_proj_backward:
    case OperatorKind::down_adapter_gradient:
    case OperatorKind::down_error_gather: return {weights.down.get(), {Projection::down}};
    default: COTUNE_CHECK(false, "{} has no product", to_string(kind));
  }
}

std::vector<Stage::MethodUse> Stage::method_uses(const ProductSite& site, int64_t layer,
                                                 MicrobatchState& state) const {
  std::vector<MethodUse> uses;
  std::vector<AdapterMethod> kinds;
  int64_t column = 0;
  for (const Projection projection : site.projections) {
    const int64_t columns = projection_size(backbone_->shard_config(), projection).out;
    for (size_t job = 0; job < state.jobs.size(); ++job) {
      const Adapter* adapter = state.jobs[job]->adapter;
      SiteAdapter* at_site = adapter == nullptr ? nullptr : adapter->at(layer, projection);
      if (at_site == nullptr) continue;
      size_t index = 0;
      while (index < kinds.size() && kinds[index] != adapter->method()) ++index;
      if (index == kinds.size()) {
        kinds.push_back(adapter->method());
        uses.push_back({&method_of(adapter->method()), adapter->method(), {layer, {}, {state.example_keys, state.positions}}});
      }
      SiteRecord& record =
          state.layers[static_cast<size_t>(layer)].sites[job][static_cast<size_t>(projection)];
      uses[index].use.sites.push_back({at_site, projection, column, columns, &state.job_rows[job], &record});
    }
    column += columns;
  }
  return uses;
}

void Stage::forward_product(const Operator& op, MicrobatchState& state, const at::Tensor& x, const at::Tensor& residual,
                            Take take) {
  const ProductSite site = product_site(op.kind, op.layer);
  std::vector<MethodUse> uses = method_uses(site, op.layer, state);
  std::vector<LowRankTerm> terms;
  bool withheld = false;
  for (MethodUse& use : uses) {
    use.method->before_forward(use.use, x, terms);
    withheld = withheld || (residual.defined() && use.method->withholds_residual());
    ++dispatches_;
  }
  std::vector<RowRange> residual_rows;
  if (withheld) {
    const std::vector<JobRows>& job_rows = state.slices ? state.slices->job_rows : state.job_rows;
    for (size_t job = 0; job < state.jobs.size(); ++job) {
      const Adapter* adapter = state.jobs[job]->adapter;
      const bool waits = adapter != nullptr && method_of(adapter->method()).withholds_residual() &&
                         adapter->at(op.layer, site.projections.front()) != nullptr;
      if (!waits) residual_rows.push_back(job_rows[job].rows);
    }
  }
  if (op.communicates) {
    if (!withheld) residual_rows = {{0, residual.size(0)}};
    return summed_forward_product(site, std::move(uses), state, terms, x, residual, std::move(residual_rows), std::move(take));
  }
  ProductOptions options{.terms = &terms, .residual = residual};
  if (withheld) options.residual_rows = &residual_rows;
  at::Tensor y = site.product->forward(x, options);
  for (MethodUse& use : uses) use.method->after_forward(use.use, x, y, residual);
  take(y);
}

/// Of a product that divides its inputs: every rank has a summand of y, adapters' parts included. The residual is added to the sum, in
/// the accumulation dtype of both.
void Stage::summed_forward_product(const ProductSite& site, std::vector<MethodUse> uses, MicrobatchState& state,
                                   const std::vector<LowRankTerm>& terms, const at::Tensor& x, const at::Tensor& residual,
                                   std::vector<RowRange> residual_rows, Take take) {
  at::Tensor partial = site.product->forward(x, {.terms = &terms});
  for (MethodUse& use : uses) {
    if (!use.method->withholds_residual()) use.method->after_forward(use.use, x, partial, {});
  }
  std::erase_if(uses, [](const MethodUse& use) { return !use.method->withholds_residual(); });
  if (state.slices) uses = uses_in_slice(std::move(uses), state);
  const at::Tensor read = uses.empty() ? at::Tensor() : x;
  auto complete = [uses = std::move(uses), read, residual, residual_rows = std::move(residual_rows),
                   take = std::move(take)](const at::Tensor& sum) mutable {
    for (const RowRange& rows : residual_rows) {
      sum.narrow(0, rows.begin, rows.count()).add_(residual.narrow(0, rows.begin, rows.count()));
    }
    at::Tensor y = sum;
    for (MethodUse& use : uses) use.method->after_forward(use.use, read, y, residual);
    take(y);
  };
  start_communication(state, start_sum(partial, state), std::move(complete));
}

void Stage::start_communication(MicrobatchState& state, GroupCollective started, Take complete) const {
  state.communication = {std::move(started), std::move(complete)};
}

/// All rows of it, or this rank's.
GroupCollective Stage::start_sum(const at::Tensor& partial, const MicrobatchState& state) const {
  return state.slices ? group_->start_scattered_sum(partial, state.slices->tokens) : group_->start_sum(partial);
}

void Stage::backward_product(const Operator& op, MicrobatchState& state, const at::Tensor& dy, Take take) {
  const ProductSite site = product_site(op.kind, op.layer);
  std::vector<MethodUse> uses = method_uses(site, op.layer, state);
  if (state.slices) std::erase_if(uses, [](const MethodUse& use) { return adapts_slices(use.kind); });  // gather_error has done these
  std::vector<LowRankTerm> terms;
  at::Tensor entering = dy;
  for (MethodUse& use : uses) {
    use.method->before_backward(use.use, entering, terms);
    ++dispatches_;
  }
  at::Tensor dx = site.product->backward(entering, {.terms = &terms});
  for (MethodUse& use : uses) use.method->after_backward(use.use, entering, dx);
  if (!op.communicates) return take(dx);
  if (state.slices) return sum_with_low_rank(state, std::move(uses), dx, std::move(take));
  start_communication(state, group_->start_sum(dx),
                      [dtype = dx.scalar_type(), take = std::move(take)](const at::Tensor& sum) { take(sum.to(dtype)); });
}

void Stage::adapter_gradient(const Operator& op, MicrobatchState& state, const at::Tensor& x, const at::Tensor& dy) {
  std::vector<MethodUse> uses = method_uses(product_site(op.kind, op.layer), op.layer, state);
  if (state.slices) return gradients_in_slices(op, state, std::move(uses), x, dy);
  for (MethodUse& use : uses) {
    if (op.without_input_gradient) {  // no backward product has dispatched, and the gradients need what that makes
      std::vector<LowRankTerm> unused;
      at::Tensor entering = dy;
      use.method->before_backward(use.use, entering, unused);
    }
    use.method->gradients(use.use, x, dy);
    ++dispatches_;
  }
}

std::vector<AttentionSegment> Stage::segments_of(const MicrobatchState& state, int64_t layer) const {
  std::vector<AttentionSegment> segments = state.segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (state.segment_chains[i] != nullptr) segments[i].chain = &(*state.segment_chains[i])[static_cast<size_t>(layer)];
  }
  return segments;
}

/// Every rank scores all rows that are scored, and goes on with the gradients of its own.
HeadShard Stage::head_shard(const MicrobatchState& state) const {
  const TensorShard& shard = backbone_->shard();
  return {.index = shard.index,
          .count = shard.count,
          .first_token = backbone_->vocabulary().begin,
          .largest_share = largest_vocabulary_share(backbone_->config(), shard.count),
          .all_reduce = [this](at::Tensor& values) { group_->all_reduce(values); },
          .sum_gradients = [this, &state](const at::Tensor& partial) {
            return state.slices ? group_->finish(group_->start_scattered_sum(partial, state.slices->scored)) : group_->sum(partial);
          }};
}

void Stage::run_head(MicrobatchState& state, bool want_gradient) {
  const MemoryScope scope(MemoryKind::logits);
  const at::ScalarType compute = backbone_->compute();
  if (want_gradient) state.d_hidden = at::zeros(state.final_hidden.sizes(), state.final_hidden.options().dtype(compute));
  if (state.labels.size(0) == 0) return;
  at::Tensor own_rows = state.scored_rows;
  if (state.slices) {
    const RowRange& own = state.slices->own_scored;
    own_rows = own_rows.narrow(0, own.begin, own.count()) - state.slices->own.begin;
  }
  at::Tensor inverse_rms, rows;
  at::Tensor normed = rms_norm(state.final_hidden.index_select(0, own_rows), backbone_->final_norm(),
                               backbone_->config().rms_norm_epsilon, compute, inverse_rms, want_gradient ? &rows : nullptr);
  if (state.slices) normed = group_->finish(group_->start_gather(normed, state.slices->scored));
  const HeadResult result =
      shape_.tensor_parallel == 1
          ? cross_entropy_head(normed, state.labels, state.row_scale, backbone_->head(), want_gradient, head_workspace_bytes_)
          : sharded_cross_entropy_head(normed, state.labels, state.row_scale, backbone_->head(), head_shard(state), want_gradient,
                                       head_workspace_bytes_);
  if (want_gradient) {
    state.d_hidden.index_copy_(0, own_rows, rms_norm_backward(result.gradient, rows, backbone_->final_norm(), inverse_rms, {}));
  } else {
    state.wrong = result.predictions.ne(state.labels);
  }
  state.losses = result.losses;
}

void Stage::run(const Operator& op, MicrobatchState& state) {
  const MemoryScope scope(MemoryKind::activations);
  const Backbone& model = *backbone_;
  const double epsilon = model.config().rms_norm_epsilon;
  const AttentionShape shape = model.attention_shape();
  LayerRecord unused;
  LayerRecord& record = op.layer >= 0 ? state.layers[static_cast<size_t>(op.layer)] : unused;
  const BackboneLayer* weights = op.layer >= 0 ? &model.layer(op.layer) : nullptr;
  const int64_t rotated_heads = shape.heads + shape.kv_heads;
  const Take take_d_x = [&state](const at::Tensor& dx) { state.d_x = dx; };
  const at::Tensor& error = state.slices ? state.whole_error : state.d_hidden;  // of a product whose output is the stream
  switch (op.kind) {
    case OperatorKind::embedding:
      state.hidden = model.embed(state.tokens);
      if (shape_.tensor_parallel > 1) state.hidden = group_->finish(start_sum(state.hidden, state));  // one has it, the others zeros
      state.hidden = state.hidden.to(accumulation_dtype(model.compute()));
      break;
    case OperatorKind::attention_norm:
      hand_on_normed(op, state, rms_norm(state.hidden, weights->attention_norm, epsilon, model.compute(), record.attention_inverse_rms,
                                         op.keeps ? &record.input : nullptr));
      break;
    case OperatorKind::qkv_proj:
      forward_product(op, state, state.x, {}, [&](const at::Tensor& y) { record.qkv = y; });
      break;
    case OperatorKind::attention:
      rotate_in_place(record.qkv, state.positions, model.rotary(), rotated_heads, shape.head_dim, 1);
      record.attention = attention(record.qkv, segments_of(state, op.layer), shape, state.segment_begins);
      state.x = record.attention.out;
      break;
    case OperatorKind::o_proj:
      forward_product(op, state, state.x, state.hidden, [&state](const at::Tensor& y) { state.hidden = y; });
      break;
    case OperatorKind::mlp_norm:
      hand_on_normed(op, state, rms_norm(state.hidden, weights->mlp_norm, epsilon, model.compute(), record.mlp_inverse_rms,
                                         op.keeps ? &record.middle : nullptr));
      break;
    case OperatorKind::gate_up_proj:
      forward_product(op, state, state.x, {}, [&](const at::Tensor& y) { record.gate_up = y; });
      break;
    case OperatorKind::swiglu: state.x = swiglu(record.gate_up); break;
    case OperatorKind::down_proj:
      forward_product(op, state, state.x, state.hidden,
                      [&state, is_last = op.layer + 1 == model.config().layer_count](const at::Tensor& y) {
                        state.hidden = y;
                        if (is_last) state.final_hidden = y;
                      });
      state.x.reset();
      break;
    case OperatorKind::loss_head: run_head(state, false); break;
    case OperatorKind::head: run_head(state, true); break;

    case OperatorKind::down_proj_backward:
      backward_product(op, state, error, take_d_x);
      break;
    case OperatorKind::swiglu_backward: {
      SwigluGradient gradient = swiglu_backward(state.d_x, record.gate_up);
      state.d_gate_up = std::move(gradient.d_gate_up);
      if (has_adapter(state, op.layer, Projection::down)) state.activated = std::move(gradient.y);
      state.d_x.reset();
      break;
    }
    case OperatorKind::down_adapter_gradient:
      if (!state.activated.defined()) state.activated = swiglu(record.gate_up);
      adapter_gradient(op, state, state.activated, error);
      state.activated.reset();
      break;
    case OperatorKind::gate_up_proj_backward:
      record.gate_up.reset();
      state.whole_error.reset();
      backward_product(op, state, state.d_gate_up, take_d_x);
      break;
    case OperatorKind::mlp_norm_backward:
      state.d_hidden =
          rms_norm_backward(state.d_x, record.middle, weights->mlp_norm, record.mlp_inverse_rms, state.d_hidden);
      state.d_x.reset();
      break;
    case OperatorKind::gate_up_adapter_gradient:
      adapter_gradient(op, state, rms_norm_again(record.middle, weights->mlp_norm, record.mlp_inverse_rms),
                       state.d_gate_up);
      break;
    case OperatorKind::o_proj_backward:
      state.d_gate_up.reset();
      backward_product(op, state, error, take_d_x);
      break;
    case OperatorKind::o_adapter_gradient:
      adapter_gradient(op, state, record.attention.out, error);
      break;
    case OperatorKind::attention_backward:
      state.whole_error.reset();
      state.d_qkv = attention_backward(state.d_x, record.qkv, record.attention, segments_of(state, op.layer), shape,
                                       state.segment_begins);
      rotate_in_place(state.d_qkv, state.positions, model.rotary(), rotated_heads, shape.head_dim, -1);
      state.d_x.reset();
      break;
    case OperatorKind::qkv_proj_backward: backward_product(op, state, state.d_qkv, take_d_x); break;
    case OperatorKind::attention_norm_backward:
      state.d_hidden = rms_norm_backward(state.d_x, record.input, weights->attention_norm,
                                         record.attention_inverse_rms, state.d_hidden);
      state.d_x.reset();
      break;
    case OperatorKind::qkv_adapter_gradient:
      adapter_gradient(op, state,
                       rms_norm_again(record.input, weights->attention_norm, record.attention_inverse_rms),
                       state.d_qkv);
      state.d_qkv.reset();
      break;

    case OperatorKind::down_error_gather:
    case OperatorKind::o_error_gather: gather_error(op, state); break;
    case OperatorKind::gate_up_input_gather:
      gather_input(state, rms_norm_again(record.middle, weights->mlp_norm, record.mlp_inverse_rms));
      break;
    case OperatorKind::qkv_input_gather:
      gather_input(state, rms_norm_again(record.input, weights->attention_norm, record.attention_inverse_rms));
      break;
  }
}

}  // namespace cotune
