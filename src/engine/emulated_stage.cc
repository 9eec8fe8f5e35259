// The part of a stage that executes operators on a device that is not there.
#include <ATen/ATen.h>

#include <algorithm>

#include "engine/stage.h"
#include "ops/backend.h"

namespace cotune {

double Stage::emulate(const Operator& op, MicrobatchState& state) {
  const double seconds = clock_->device().operator_seconds(shape_, op, state.counts);
  clock_->compute(seconds);
  // One element stands for all: what a message is made of takes memory when it is sent.
  const auto nothing = [&] {
    return at::zeros({1, 1}, backbone_->compute()).expand({state.token_count(), backbone_->config().hidden_size});
  };
  if (op.kind == OperatorKind::embedding) state.hidden = nothing();
  if (op.kind == OperatorKind::head) state.d_hidden = nothing();
  if (shape_.tensor_parallel > 1) emulate_sums(op, state);
  return seconds;
}

/// Those that the operator makes with its group where it computes (Stage::run, ops/sharded_head.h).
void Stage::emulate_sums(const Operator& op, MicrobatchState& state) {
  const int64_t hidden = backbone_->config().hidden_size, ranks = shape_.tensor_parallel;
  const auto value_bytes = static_cast<int64_t>(c10::elementSize(accumulation_dtype(backbone_->compute())));
  const auto sum = [&](int64_t values) { group_->emulate_all_reduce(values * value_bytes); };
  if (op.kind == OperatorKind::embedding) return sum(state.token_count() * hidden);
  if (op.communicates) {
    state.sum = {group_->start_emulated_sum(state.token_count() * hidden * value_bytes), [](const at::Tensor&) {}};
    return;
  }
  const bool trains = op.kind == OperatorKind::head;
  const int64_t rows = state.labels.size(0);
  if ((!trains && op.kind != OperatorKind::loss_head) || rows == 0) return;
  const int64_t chunk = sharded_head_rows(backbone_->vocabulary().count, backbone_->compute(), backbone_->device(), head_workspace_bytes_);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    sum((trains ? ranks + 1 : 3 * ranks + 1) * std::min(chunk, rows - begin));
  }
  if (trains) sum(rows * hidden);
}

}  // namespace cotune
