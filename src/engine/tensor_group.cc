#include "engine/tensor_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "adapter/adapter_shard.h"
#include "ops/backend.h"
#include "ops/memory.h"

namespace cotune {

namespace {

double seconds_of(Collective kind, int64_t bytes, int32_t ranks, const EmulatedDevice& device) {
  return device.all_reduce_seconds(bytes, ranks) / (kind == Collective::all_reduce ? 1 : 2);
}

std::vector<int64_t> row_counts(const std::vector<int64_t>& begins) {
  std::vector<int64_t> counts;
  for (size_t rank = 0; rank + 1 < begins.size(); ++rank) counts.push_back(begins[rank + 1] - begins[rank]);
  return counts;
}

/// Of as many rows of each rank, the first counts[rank]: where ranks that lack some have none behind them, without a copy.
at::Tensor without_pads(const at::Tensor& rows, const std::vector<int64_t>& counts) {
  const int64_t each = rows.size(0) / static_cast<int64_t>(counts.size());
  const auto first_short = std::ranges::find_if(counts, [&](int64_t count) { return count < each; });
  const bool are_together = first_short == counts.end() || std::all_of(first_short + 1, counts.end(), [](int64_t count) { return count == 0; });
  if (are_together) return rows.narrow(0, 0, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < counts.size(); ++rank) parts.push_back(rows.narrow(0, static_cast<int64_t>(rank) * each, counts[rank]));
  return at::cat(parts);
}

}  // namespace

void TensorGroup::count_all_reduce(const at::Tensor& values) {
  ++collectives_;
  sent_bytes_ += 2 * (communicator_.size() - 1) * static_cast<int64_t>(values.nbytes()) / communicator_.size();
}

void TensorGroup::all_reduce(at::Tensor& values) {
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_group();
  communicator_.all_reduce(values);
  if (progress_ != nullptr) progress_->go_on();
  count_all_reduce(values);
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void TensorGroup::emulate(Collective kind, int64_t bytes) {
  at::Tensor ready_s = at::zeros({communicator_.size()}, at::kDouble);
  ready_s[communicator_.rank()] = clock_->free_s();
  communicator_.all_reduce(ready_s);
  ++collectives_;
  waited_s_ += clock_->wait_until(ready_s.max().item<double>() + seconds_of(kind, bytes, communicator_.size(), clock_->device()));
  waited_s_ += clock_->wait_until_now();
}

at::Tensor TensorGroup::sum(const at::Tensor& partial) { return finish(start_sum(partial)); }

GroupCollective TensorGroup::start_sum(const at::Tensor& partial) {
  GroupCollective sum{.values = partial.to(accumulation_dtype(partial.scalar_type())).contiguous(), .transfer = nullptr};
  sum.transfer = communicator_.start_all_reduce(sum.values);
  count_all_reduce(sum.values);
  return sum;
}

GroupCollective TensorGroup::start_scattered_sum(const at::Tensor& partial, const std::vector<int64_t>& begins) {
  const int64_t ranks = communicator_.size();
  const at::Tensor given = partial.to(accumulation_dtype(partial.scalar_type())).contiguous();
  const std::vector<int64_t> counts = row_counts(begins);
  const int64_t own = counts[static_cast<size_t>(communicator_.rank())], columns = given.size(1);
  GroupCollective sum{.values = at::empty({ranks * own, columns}, given.options()), .transfer = nullptr, .summands = ranks};
  sum.transfer = communicator_.start_all_to_all(given, counts, sum.values, std::vector<int64_t>(counts.size(), own));
  ++collectives_;
  sent_bytes_ += (begins.back() - own) * columns * static_cast<int64_t>(given.element_size());
  return sum;
}

GroupCollective TensorGroup::start_gather(const at::Tensor& rows, const std::vector<int64_t>& begins) {
  std::vector<int64_t> counts = row_counts(begins);
  const int64_t ranks = communicator_.size(), largest = *std::ranges::max_element(counts);
  at::Tensor own = rows;
  if (own.size(0) < largest) {
    own = at::empty({largest, rows.size(1)}, rows.options());
    own.narrow(0, 0, rows.size(0)).copy_(rows);
  }
  GroupCollective gathered{.values = at::empty({ranks * largest, rows.size(1)}, rows.options()), .transfer = nullptr, .gathered = std::move(counts)};
  gathered.transfer = communicator_.start_all_gather(own.contiguous(), gathered.values);
  ++collectives_;
  sent_bytes_ += (ranks - 1) * static_cast<int64_t>(own.nbytes());
  return gathered;
}

GroupCollective TensorGroup::start_emulated(Collective kind, int64_t bytes) {
  GroupCollective started{.values = at::zeros({communicator_.size()}, at::kDouble), .transfer = nullptr, .ready_s = clock_->free_s()};
  started.values[communicator_.rank()] = started.ready_s;
  started.there_s = clock_->communicate(seconds_of(kind, bytes, communicator_.size(), clock_->device()));
  started.transfer = communicator_.start_all_reduce(started.values);
  ++collectives_;
  return started;
}

at::Tensor TensorGroup::finish(GroupCollective started) {
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_group();
  started.transfer->wait();
  if (progress_ != nullptr) progress_->go_on();
  if (clock_ != nullptr) {
    const double late_s = started.values.max().item<double>() - started.ready_s;
    waited_s_ += clock_->wait_until(started.there_s + late_s) + clock_->wait_until_now();
    return {};
  }
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!started.gathered.empty()) return without_pads(started.values, started.gathered);
  if (started.summands == 1) return std::move(started.values);
  const int64_t rows = started.values.size(0) / started.summands;
  at::Tensor sum = started.values.narrow(0, 0, rows).clone();
  for (int64_t rank = 1; rank < started.summands; ++rank) sum.add_(started.values.narrow(0, rank * rows, rows));
  return sum;
}

void TensorGroup::settle() {
  if (clock_ != nullptr) return;  // nothing is added there
  const auto begin = std::chrono::steady_clock::now();
  if (progress_ != nullptr) progress_->wait_for_group();
  communicator_.settle();
  if (progress_ != nullptr) progress_->go_on();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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
  if (clock_ != nullptr) return emulate(Collective::all_reduce, count * static_cast<int64_t>(summands.front()->gradient.element_size()));
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
