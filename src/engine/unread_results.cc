#include "engine/unread_results.h"

#include <ATen/ATen.h>

#include <cmath>

#include "engine/optimizer.h"
#include "ops/memory.h"
#include "ops/square_sums.h"

namespace cotune {
namespace {

/// f64 [1], finite where every parameter of these layers is.
at::Tensor finite_where_parameters_are(const Adapter& adapter, LayerRange layers) {
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : adapter.parameters()) {
    if (layers.contains(parameter.layer)) values.push_back(parameter.value);
  }
  if (values.empty()) return at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(adapter.setup().device));
  return sum_of_squares(values).reshape({1});
}

}  // namespace

void UnreadResults::take_head(MicrobatchState& state) {
  if (!state.losses.defined()) return;
  Head head{std::move(state.losses), std::move(state.wrong), state.jobs, state.loss_spans, {}};
  if (head.wrong.defined()) head.rows = state.label_rows;
  heads_.push_back(std::move(head));
}

void UnreadResults::add_step(JobRound& round, LayerRange layers, at::Tensor record) {
  steps_.push_back({&round, layers, std::move(record)});
}

at::Tensor UnreadResults::loss_sum(const JobRound& round) const {
  at::Tensor sum;
  for (const Head& head : heads_) {
    for (const MicrobatchState::LossSpan& span : head.spans) {
      if (head.jobs[span.job] != &round || span.begin == span.end) continue;
      const at::Tensor part = head.losses.narrow(0, span.begin, span.end - span.begin).sum(at::kDouble);
      sum = sum.defined() ? sum + part : part;
    }
  }
  if (sum.defined()) return sum;
  return at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(round.adapter->setup().device));
}

void UnreadResults::read(const ReadTensor& read_tensor) {
  if (heads_.empty() && steps_.empty()) return;
  const MemoryScope scope(MemoryKind::workspace);
  std::vector<at::Tensor> parts;
  for (const Head& head : heads_) {
    parts.push_back(head.losses.to(at::kDouble));
    if (head.wrong.defined()) parts.push_back(head.wrong.to(at::kDouble));
  }
  for (const Step& step : steps_) {
    parts.push_back(step.record);
    parts.push_back(finite_where_parameters_are(*step.round->adapter, step.layers));
  }
  const at::Tensor values = read_tensor(at::cat(parts));
  const double* value = values.const_data_ptr<double>();
  for (const Head& head : heads_) {
    for (const MicrobatchState::LossSpan& span : head.spans) {
      double sum = 0;
      for (int64_t i = span.begin; i < span.end; ++i) sum += value[i];
      head.jobs[span.job]->loss_sum += sum;
    }
    const double* loss = value;
    value += head.losses.size(0);
    if (!head.wrong.defined()) continue;
    for (const auto& [round, row] : head.rows) {
      const double row_loss = *loss++;
      const bool is_wrong = *value++ != 0;
      if (round == nullptr) continue;  // a pad
      round->row_loss_sums[static_cast<size_t>(row)] += row_loss;
      if (is_wrong) round->row_predicted[static_cast<size_t>(row)] = 0;
    }
  }
  for (const Step& step : steps_) {
    const double norm = std::sqrt(*value++), loss_sum = *value++;
    const bool finite_parameters = std::isfinite(*value++);
    if (!has_head_ || step.round->labelled_of_whole) step.round->loss_sum = loss_sum;
    conclude_step(*step.round, norm, finite_parameters);
  }
  clear();
}

void UnreadResults::clear() {
  heads_.clear();
  steps_.clear();
}

}  // namespace cotune
