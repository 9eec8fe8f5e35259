#include "engine/tensor_group.h"

#include <ATen/ATen.h>

#include <chrono>

#include "adapter/adapter_shard.h"
#include "ops/backend.h"
#include "ops/memory.h"

namespace cotune {

void TensorGroup::all_reduce(at::Tensor& values) {
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_group();
  communicator_.all_reduce(values);
  if (progress_ != nullptr) progress_->go_on();
  ++collectives_;
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void TensorGroup::emulate_all_reduce(int64_t bytes) {
  at::Tensor ready_s = at::zeros({communicator_.size()}, at::kDouble);
  ready_s[communicator_.rank()] = clock_->free_s();
  communicator_.all_reduce(ready_s);
  ++collectives_;
  waited_s_ += clock_->wait_until(ready_s.max().item<double>() + clock_->device().all_reduce_seconds(bytes, communicator_.size()));
  waited_s_ += clock_->wait_until_now();
}

at::Tensor TensorGroup::sum(const at::Tensor& partial) { return finish(start_sum(partial)); }

StartedSum TensorGroup::start_sum(const at::Tensor& partial) {
  StartedSum sum{.values = partial.to(accumulation_dtype(partial.scalar_type())).contiguous(), .transfer = nullptr};
  sum.transfer = communicator_.start_all_reduce(sum.values);
  ++collectives_;
  return sum;
}

StartedSum TensorGroup::start_emulated_sum(int64_t bytes) {
  StartedSum sum{.values = at::zeros({communicator_.size()}, at::kDouble), .transfer = nullptr, .ready_s = clock_->free_s()};
  sum.values[communicator_.rank()] = sum.ready_s;
  sum.there_s = clock_->communicate(clock_->device().all_reduce_seconds(bytes, communicator_.size()));
  sum.transfer = communicator_.start_all_reduce(sum.values);
  ++collectives_;
  return sum;
}

at::Tensor TensorGroup::finish(StartedSum sum) {
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_group();
  sum.transfer->wait();
  if (progress_ != nullptr) progress_->go_on();
  if (clock_ != nullptr) {
    const double late_s = sum.values.max().item<double>() - sum.ready_s;
    waited_s_ += clock_->wait_until(sum.there_s + late_s) + clock_->wait_until_now();
  } else {
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return std::move(sum.values);
}

void TensorGroup::reduce_gradients(Adapter& adapter, LayerRange layers) {
  const MemoryScope scope(MemoryKind::workspace);
  std::vector<Parameter*> summands;
  int64_t count = 0;
  const auto whole_sizes = [](const Parameter& parameter) {
    std::vector<int64_t> sizes = parameter.gradient.sizes().vec();
    if (parameter.place.dimension >= 0)
      sizes[static_cast<size_t>(parameter.place.dimension)] = parameter.place.whole_size;
    return sizes;
  };
  for (Parameter& parameter : adapter.parameters()) {
    if (!layers.contains(parameter.layer) || !parameter.place.is_summand) continue;
    summands.push_back(&parameter);
    count += c10::multiply_integers(whole_sizes(parameter));
  }
  if (summands.empty()) return;
  if (clock_ != nullptr) return emulate_all_reduce(count * static_cast<int64_t>(summands.front()->gradient.element_size()));
  // Where several ranks share a part and others have other parts (kv heads), each adds to its place in the
  // whole.
  at::Tensor values = at::zeros({count}, summands.front()->gradient.options());
  const auto parts_in = [&](const at::Tensor& flat, auto take) {
    int64_t begin = 0;
    for (Parameter* parameter : summands) {
      const std::vector<int64_t> sizes = whole_sizes(*parameter);
      const int64_t size = c10::multiply_integers(sizes);
      take(parameter->gradient,
           part_at(flat.narrow(0, begin, size).view(sizes), parameter->place, parameter->gradient));
      begin += size;
    }
  };
  parts_in(values, [](const at::Tensor& gradient, const at::Tensor& part) { part.copy_(gradient); });
  all_reduce(values);
  parts_in(values, [](const at::Tensor& gradient, const at::Tensor& part) { gradient.copy_(part); });
}

}  // namespace cotune
