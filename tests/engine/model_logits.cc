#include "engine/model_logits.h"

#include <ATen/ATen.h>

#include "engine/stage.h"
#include "ops/cross_entropy_head.h"
#include "ops/rms_norm.h"

namespace cotune::testing {

std::vector<BatchRow> rows_of(const at::Tensor& ids) {
  std::vector<BatchRow> rows;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    BatchRow line;
    for (int64_t i = 0; i < ids.size(1); ++i) line.tokens.push_back(ids[row][i].item<int32_t>());
    line.learned.assign(line.tokens.size(), 1);
    rows.push_back(std::move(line));
  }
  return rows;
}

at::Tensor model_logits(const std::shared_ptr<const Backbone>& backbone, Adapter* adapter, std::vector<BatchRow> rows) {
  const Batch batch{0, std::move(rows)};
  JobRound round;
  round.adapter = adapter;
  round.batch = &batch;
  round.purpose = RoundPurpose::evaluate;
  round.labelled_tokens = batch.labelled_count();
  Atom atom;
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const auto length = static_cast<int64_t>(batch.rows[row].tokens.size());
    atom.segments.push_back({static_cast<int32_t>(row), 0, length, 0, length});
  }
  Stage stage(backbone, whole_model(backbone->config()));
  ChainCaches chains;
  MicrobatchState state = make_microbatch_state({{atom}}, Layout::ragged, {{0, &round}}, chains, {0, backbone->config().layer_count},
                                                backbone->attention_shape(), backbone->compute(), backbone->device());
  for (const Operator& op : stage.operators(state, Direction::evaluate)) {
    if (op.kind != OperatorKind::loss_head) stage.execute(op, state);
  }
  at::Tensor inverse_rms;
  const at::Tensor normed =
      rms_norm(state.final_hidden, backbone->final_norm(), backbone->config().rms_norm_epsilon, backbone->compute(), inverse_rms);
  return output_logits(normed, backbone->head()).to(at::kCPU, at::kDouble);
}

}  // namespace cotune::testing
