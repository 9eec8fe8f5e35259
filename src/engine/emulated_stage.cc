// The part of a stage that executes operators on a device that is not there.
#include <ATen/ATen.h>

#include <algorithm>

#include "engine/stage.h"
#include "ops/backend.h"
#include "schedule/sequence_parallel.h"

namespace cotune {

double Stage::emulate(const Operator& op, MicrobatchState& state) {
  const double seconds = clock_->device().operator_seconds(shape_, op, state.counts);
  clock_->compute(seconds);
  // One element stands for all: what a message is made of takes memory when it is sent.
  const auto nothing = [&] {
    const int64_t rows = state.slices ? state.slices->own.count() : state.token_count();
    return at::zeros({1, 1}, backbone_->compute()).expand({rows, backbone_->config().hidden_size});
  };
  if (op.kind == OperatorKind::embedding) state.hidden = nothing();
  if (op.kind == OperatorKind::head) state.d_hidden = nothing();
  if (shape_.tensor_parallel > 1) emulate_collectives(op, state);
  return seconds;
}

/// Those that the operator makes with its group where it computes (Stage::run, ops/sharded_head.h).
void Stage::emulate_collectives(const Operator& op, MicrobatchState& state) {
  const int64_t hidden = backbone_->config().hidden_size, ranks = shape_.tensor_parallel;
  const auto element = static_cast<int64_t>(c10::elementSize(backbone_->compute()));
  const auto sum_element = static_cast<int64_t>(c10::elementSize(accumulation_dtype(backbone_->compute())));
  const Collective sum = state.slices ? Collective::reduce_scatter : Collective::all_reduce;
  if (op.kind == OperatorKind::embedding) return group_->emulate(sum, state.token_count() * hidden * sum_element);
  if (op.communicates) {
    const Collective kind = collective_of(shape_, op);
    const int64_t values = state.token_count() * collective_columns(backbone_->config(), shape_, op);
    return start_communication(state, group_->start_emulated(kind, values * (kind == Collective::all_gather ? element : sum_element)),
                               [](const at::Tensor&) {});
  }
  const bool trains = op.kind == OperatorKind::head;
  const int64_t rows = state.labels.size(0);
  if ((!trains && op.kind != OperatorKind::loss_head) || rows == 0) return;
  if (state.slices) group_->emulate(Collective::all_gather, rows * hidden * element);
  const int64_t chunk =
      sharded_head_rows(largest_vocabulary_share(backbone_->config(), ranks), backbone_->compute(), backbone_->device(), head_workspace_bytes_);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    group_->emulate(Collective::all_reduce, (trains ? ranks + 1 : 3 * ranks + 1) * std::min(chunk, rows - begin) * sum_element);
  }
  if (trains) group_->emulate(sum, rows * hidden * sum_element);
}

}  // namespace cotune
