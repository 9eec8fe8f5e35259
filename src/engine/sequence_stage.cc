// The part of a stage whose ranks divide the tokens between products (schedule/sequence_parallel.h).
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/stage.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// What a site lends to a message: its columns, behind those of the job's earlier sites.
struct Riding {
  LowRankRows low_rank;
  RowRange rows, slice;
  int64_t column = 0;
};

DropoutRows in_slice(const DropoutRows& rows, const RowRange& slice) {
  return {rows.example_keys.narrow(0, slice.begin, slice.count()), rows.positions.narrow(0, slice.begin, slice.count())};
}

}  // namespace

/// The next product's input, of all rows.
void Stage::hand_on_normed(const Operator& op, MicrobatchState& state, const at::Tensor& normed) const {
  if (!op.communicates) {
    state.x = normed;
    return;
  }
  start_communication(state, group_->start_gather(normed, state.slices->tokens), [&state](const at::Tensor& all) { state.x = all; });
}

/// With the rows that are here; jobs that have none are left out.
auto Stage::uses_in_slice(std::vector<MethodUse> uses, const MicrobatchState& state) -> std::vector<MethodUse> {
  for (MethodUse& each : uses) {
    each.use.rows = in_slice(each.use.rows, state.slices->own);
    for (SiteUse& site : each.use.sites) site.job = &state.slices->job_rows[static_cast<size_t>(site.job - state.job_rows.data())];
    std::erase_if(each.use.sites, [](const SiteUse& site) { return site.job->rows.count() == 0; });
  }
  std::erase_if(uses, [](const MethodUse& each) { return each.use.sites.empty(); });
  return uses;
}

/// Of the gradient that enters the frozen product: behind the adapters on its output.
void Stage::gather_error(const Operator& op, MicrobatchState& state) {
  std::vector<MethodUse> uses = method_uses(product_site(op.kind, op.layer), op.layer, state);
  std::erase_if(uses, [](const MethodUse& use) { return !adapts_slices(use.kind); });
  at::Tensor entering = state.d_hidden;
  std::vector<LowRankTerm> unused;
  for (MethodUse& use : uses_in_slice(std::move(uses), state)) use.method->before_backward(use.use, entering, unused);
  start_communication(state, group_->start_gather(entering.contiguous(), state.slices->tokens),
                      [&state](const at::Tensor& all) { state.whole_error = all; });
}

void Stage::gather_input(MicrobatchState& state, const at::Tensor& normed) const {
  start_communication(state, group_->start_gather(normed, state.slices->tokens), [&state](const at::Tensor& all) { state.whole_input = all; });
}

/// dx, undefined where nobody needs it, and beside it what adapters have a summand of: each rank gets the sums of its rows.
void Stage::sum_with_low_rank(MicrobatchState& state, std::vector<MethodUse> uses, const at::Tensor& dx, Take take) const {
  std::vector<Riding> riding;
  std::map<const JobRows*, int64_t> columns;
  int64_t most = 0;
  for (MethodUse& each : uses) {
    for (SiteUse& site : each.use.sites) {
      const LowRankRows low_rank = each.method->summands(site);
      if (low_rank.rows == nullptr) continue;
      int64_t& column = columns[site.job];
      riding.push_back({low_rank, site.job->rows, state.slices->job_rows[static_cast<size_t>(site.job - state.job_rows.data())].rows, column});
      most = std::max(most, column += low_rank.columns);
    }
  }
  const int64_t hidden = dx.defined() ? dx.size(1) : 0;
  const at::ScalarType compute = backbone_->compute();
  at::Tensor sent = dx;
  if (most > 0) {
    const auto options = at::TensorOptions().dtype(accumulation_dtype(compute)).device(backbone_->device());
    sent = at::empty({state.token_count(), hidden + most}, options);
    if (dx.defined()) sent.narrow(1, 0, hidden).copy_(dx);
    sent.narrow(1, hidden, most).zero_();
    for (const Riding& each : riding) {
      sent.narrow(0, each.rows.begin, each.rows.count())
          .narrow(1, hidden + each.column, each.low_rank.columns)
          .copy_(each.low_rank.rows->narrow(1, 0, each.low_rank.columns));
    }
  }
  const auto complete = [hidden, compute, riding = std::move(riding), take = std::move(take)](const at::Tensor& sum) {
    for (const Riding& each : riding) {
      at::Tensor& rows = *each.low_rank.rows;
      const at::Tensor own = at::zeros({each.slice.count(), rows.size(1)}, rows.options());
      own.narrow(1, 0, each.low_rank.columns)
          .copy_(sum.narrow(0, each.slice.begin, each.slice.count()).narrow(1, hidden + each.column, each.low_rank.columns));
      rows = own;
    }
    if (hidden > 0) take(sum.narrow(1, 0, hidden).to(compute).contiguous());
  };
  start_communication(state, start_sum(sent, state), complete);
}

/// x and dy of a product that divides its outputs: the input's slice, and the whole gradient; of one that divides its inputs both are
/// whole, and the adapters on its output read this rank's error.
void Stage::gradients_in_slices(const Operator& op, MicrobatchState& state, std::vector<MethodUse> uses, const at::Tensor& x,
                                const at::Tensor& dy) {
  const bool has_whole_input = op.kind == OperatorKind::o_adapter_gradient || op.kind == OperatorKind::down_adapter_gradient;
  std::vector<MethodUse> on_slices;
  for (const MethodUse& use : uses) {
    if (adapts_slices(use.kind)) on_slices.push_back(use);
  }
  std::erase_if(uses, [](const MethodUse& use) { return adapts_slices(use.kind); });
  std::vector<LowRankTerm> unused;
  for (MethodUse& use : uses_in_slice(std::move(on_slices), state)) {
    at::Tensor entering = state.d_hidden;
    if (!state.whole_error.defined()) use.method->before_backward(use.use, entering, unused);
    use.method->gradients(use.use, {}, state.d_hidden);
  }
  for (MethodUse& use : uses) {
    at::Tensor entering = dy;
    if (op.without_input_gradient) use.method->before_backward(use.use, entering, unused);
  }
  if (op.communicates) {
    sum_with_low_rank(state, uses, {}, {});
    finish(state);
  }
  for (MethodUse& use : uses) {
    if (has_whole_input || reads_whole_input(use.kind)) {
      use.method->gradients(use.use, has_whole_input ? x : state.whole_input, dy);
      continue;
    }
    use.use.rows = in_slice(use.use.rows, state.slices->own);
    for (SiteUse& site : use.use.sites) site.input = &state.slices->job_rows[static_cast<size_t>(site.job - state.job_rows.data())];
    use.method->gradients(use.use, x, dy);
  }
  state.whole_input.reset();
}

}  // namespace cotune
