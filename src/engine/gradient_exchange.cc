#include "engine/gradient_exchange.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "engine/optimizer.h"
#include "kernels/optimizer_steps.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/square_sums.h"
#include "ops/within_memory.h"

namespace cotune {
namespace {

std::vector<int64_t> list_of(const at::Tensor& entries) {
  const at::Tensor host = entries.to(at::kCPU).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

/// A rank's part of one parameter.
struct RankPart {
  int32_t replica = 0;
  int32_t rank = 0;
  const ParameterPart* part = nullptr;
};

HeldPart held_part(const RankPart& own, int64_t length) {
  const ParameterPart& part = *own.part;
  HeldPart held{.replica = own.replica, .rank = own.rank, .begin = 0, .end = length};
  if (part.entries.defined()) {
    if (part.entries.numel() == length) return held;
    held.entries = list_of(part.entries);
    held.has_entries = true;
  } else if (part.dimension >= 0) {
    held.begin = part.begin;
    held.end = part.begin + part.count;
  }
  return held;
}

HeldParameter held_parameter(const Parameter& parameter, std::span<const RankPart> ranks) {
  HeldParameter held{.parts = {}};
  for (const RankPart& rank : ranks) held.dimension = std::max(held.dimension, rank.part->dimension);  // all cut along one, or not at all
  held.length = parameter.value.size(held.dimension);
  for (int64_t each = 0; each < parameter.value.dim(); ++each) {
    if (each != held.dimension) held.values_per_index *= parameter.value.size(each);
  }
  for (const RankPart& rank : ranks) held.parts.push_back(held_part(rank, held.length));
  return held;
}

bool holds(const GradientSlice& slice, int32_t rank) {
  return std::ranges::any_of(slice.holders, [&](const std::vector<int32_t>& own) { return std::ranges::count(own, rank) > 0; });
}

/// A slice of this rank's gradient.
class SliceOfGradient {
 public:
  SliceOfGradient(const Parameter& parameter, const GradientSlice& slice) : gradient_(parameter.gradient) {
    const ShardPlace& place = parameter.place;
    if (!slice.entries.empty()) {
      entries_ = own_entries(place, slice.entries).to(gradient_.device());
    } else {
      const int64_t before = place.dimension >= 0 ? place.begin : 0;
      view_ = gradient_.narrow(slice.dimension, slice.begin - before, slice.end - slice.begin);
    }
  }

  at::Tensor read() const { return entries_.defined() ? gradient_.index_select(0, entries_) : view_.reshape({-1}); }
  void write(const at::Tensor& flat) {
    if (entries_.defined()) {
      gradient_.index_copy_(0, entries_, flat);
    } else {
      view_.copy_(flat.view(view_.sizes()));
    }
  }

 private:
  static at::Tensor own_entries(const ShardPlace& place, const std::vector<int64_t>& entries) {
    std::vector<int64_t> own(entries);
    if (place.entries.defined()) {
      const std::vector<int64_t> held = list_of(place.entries);
      for (int64_t& entry : own) entry = std::ranges::lower_bound(held, entry) - held.begin();
    } else if (place.dimension >= 0) {
      for (int64_t& entry : own) entry -= place.begin;
    }
    return at::tensor(own, at::kLong);
  }

  at::Tensor gradient_, view_, entries_;
};

/// Flat tensors that are filled, or read, slice by slice.
class FlatValues {
 public:
  explicit FlatValues(at::Tensor values) : values_(std::move(values)) {}
  at::Tensor next(const GradientSlice& slice) {
    const at::Tensor part = values_.narrow(0, place_, slice.values);
    place_ += slice.values;
    return part;
  }

 private:
  at::Tensor values_;
  int64_t place_ = 0;
};

/// Flat buffers by peer, of the slices that go to it or come from it.
class PeerBuffers {
 public:
  void count(int32_t peer, const GradientSlice& slice) { sizes_[peer] += slice.values; }
  void make(const at::TensorOptions& options) {
    for (const auto& [peer, size] : sizes_) {
      tensors_[peer] = at::empty({size}, options);
      places_.emplace(peer, FlatValues(tensors_[peer]));
    }
  }
  at::Tensor next(int32_t peer, const GradientSlice& slice) { return places_.at(peer).next(slice); }
  const std::map<int32_t, at::Tensor>& tensors() const { return tensors_; }

 private:
  std::map<int32_t, int64_t> sizes_;
  std::map<int32_t, at::Tensor> tensors_;
  std::map<int32_t, FlatValues> places_;
};

bool is_giver(const GradientSlice& slice, int32_t rank) {
  return std::ranges::any_of(slice.holders, [&](const std::vector<int32_t>& holders) { return holders.front() == rank; });
}

/// Every other rank that holds the slice.
template <typename Each>
void for_each_other_holder(const GradientSlice& slice, int32_t rank, Each each) {
  for (const std::vector<int32_t>& holders : slice.holders) {
    for (const int32_t holder : holders) {
      if (holder != rank) each(holder);
    }
  }
}

}  // namespace

JobExchange exchange_of(const Adapter& whole, std::span<const HeldAdapter> ranks) {
  JobExchange result;
  std::vector<HeldParameter> held;
  std::vector<size_t> next(ranks.size(), 0);  // of each rank's parts
  for (const Parameter& parameter : whole.parameters()) {
    std::vector<RankPart> holders;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (!contains(ranks[rank].layers, parameter.layer)) continue;
      holders.push_back({ranks[rank].replica, static_cast<int32_t>(rank), &ranks[rank].parts.at(next[rank]++)});
    }
    held.push_back(held_parameter(parameter, holders));
  }
  result.slices = gradient_slices(held);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool reaches = std::ranges::any_of(ranks[rank].layers, [&](const LayerRange& range) { return range.end > whole.lowest_layer(); });
    if (reaches) result.ranks.push_back(static_cast<int32_t>(rank));
  }
  result.messages = exchange_messages(result.slices, result.ranks);
  return result;
}

JobExchange part_of_exchange(const JobExchange& exchange, const Adapter& whole, int32_t rank, std::span<const LayerRange> layers) {
  std::vector<size_t> place;
  size_t count = 0;
  for (const Parameter& parameter : whole.parameters()) {
    place.push_back(count);
    if (contains(layers, parameter.layer)) ++count;
  }
  JobExchange part{.slices = {}, .ranks = exchange.ranks, .messages = exchange.messages};
  for (const GradientSlice& slice : exchange.slices) {
    if (!holds(slice, rank)) continue;
    part.slices.push_back(slice);
    part.slices.back().parameter = place[slice.parameter];
  }
  return part;
}

GradientExchange::GradientExchange(Communicator& communicator, std::vector<Step> steps, OnFailure on_failure, OnProgress on_progress)
    : communicator_(communicator),
      steps_(std::move(steps)),
      on_failure_(std::move(on_failure)),
      on_progress_(std::move(on_progress)),
      thread_([this] { run(); }) {}

GradientExchange::~GradientExchange() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GradientExchange::keep_time(EmulatedClock& clock) {
  const std::lock_guard lock(mutex_);
  clock_ = &clock;
  emulated_.emplace(communicator_, clock.device());
}

void GradientExchange::post(const JobStep& step, const at::Tensor& loss, size_t action) {
  const std::lock_guard lock(mutex_);
  posted_[step] = {loss, action, clock_ != nullptr ? clock_->free_s() : steady_seconds()};
  changed_.notify_all();
}

const std::vector<int32_t>& GradientExchange::ranks_of(const JobStep& step) const {
  return std::ranges::find(steps_, step, &Step::step)->exchange->ranks;
}

std::vector<SimulatedSpan> GradientExchange::spans() {
  const std::lock_guard lock(mutex_);
  return spans_;
}

at::Tensor GradientExchange::wait(const JobStep& step) {
  const double begin_s = steady_seconds();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ != nullptr || exchanged_.contains(step); });
  const auto found = exchanged_.find(step);
  if (found == exchanged_.end()) std::rethrow_exception(failure_);
  waited_s_ += clock_ != nullptr ? clock_->wait_until(found->second.at_s) : steady_seconds() - begin_s;
  return found->second.record;
}

void GradientExchange::run() {
  at::get_num_threads();  // which sets the calling thread's count to that of the process, the first time
  omp_set_num_threads(1);  // the rank's threads compute meanwhile
  const MemoryAccount::Scope memory(account_);
  try {
    for (const Step& step : steps_) {
      Posted posted;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || posted_.contains(step.step); });
        if (!posted_.contains(step.step)) return;
        posted = posted_.at(step.step);
      }
      const Exchanged exchanged = emulated_ ? emulate(step, posted) : exchange(step, posted.loss);
      const std::lock_guard lock(mutex_);
      spans_.push_back({posted.action, spans_.empty() ? posted.at_s : std::max(posted.at_s, spans_.back().end_s), exchanged.at_s});
      exchanged_[step.step] = exchanged;
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
    on_failure_(std::current_exception());
  }
}

GradientExchange::Exchanged GradientExchange::emulate(const Step& step, const Posted& posted) {
  const at::ScalarType summed = accumulation_dtype(step.adapter->setup().compute);
  Exchanged exchanged{.record = at::zeros({2}, at::kDouble)};
  exchanged.at_s = emulated_->exchange(step.exchange->messages, static_cast<int64_t>(c10::elementSize(summed)), posted.at_s);
  sent_bytes_ = emulated_->sent_bytes();
  return exchanged;
}

GradientExchange::Exchanged GradientExchange::exchange(const Step& step, const at::Tensor& loss) {
  return within_memory([&] {
    const MemoryScope scope(MemoryKind::workspace);
    const at::Tensor squares = add_slices(step);
    const at::Tensor record = add_records(step, at::stack({squares, loss.to(squares.device())}));
    return Exchanged{.record = record, .at_s = steady_seconds()};
  });
}

/// Lets go of them.
void GradientExchange::wait_for(std::vector<std::shared_ptr<Transfer>>& transfers) {
  for (const auto& transfer : transfers) {
    transfer->wait();
    if (on_progress_) on_progress_();
  }
  transfers.clear();
}

/// Returns Σ g² of the slices that this rank owns: f64 scalar.
at::Tensor GradientExchange::add_slices(const Step& step) {
  const int32_t own = communicator_.rank();
  const std::vector<GradientSlice>& slices = step.exchange->slices;
  const auto parameter = [&](const GradientSlice& slice) -> const Parameter& { return step.adapter->parameters()[slice.parameter]; };
  PeerBuffers given, taken, sent_back, returned;
  int64_t owned = 0;
  for (const GradientSlice& slice : slices) {
    if (slice.owner == own) {
      owned += slice.values;
      for (const std::vector<int32_t>& holders : slice.holders) {
        if (holders.front() != own) taken.count(holders.front(), slice);
      }
      for_each_other_holder(slice, own, [&](int32_t holder) { sent_back.count(holder, slice); });
    } else if (holds(slice, own)) {
      if (is_giver(slice, own)) given.count(slice.owner, slice);
      returned.count(slice.owner, slice);
    }
  }
  const AdapterSetup& setup = step.adapter->setup();
  const auto options = at::TensorOptions().dtype(accumulation_dtype(setup.compute)).device(setup.device);
  for (PeerBuffers* buffers : {&given, &taken, &sent_back, &returned}) buffers->make(options);

  std::vector<std::shared_ptr<Transfer>> transfers;
  for (const auto& [peer, buffer] : taken.tensors()) transfers.push_back(communicator_.receive(buffer, peer, Channel::activation));
  std::vector<std::shared_ptr<Transfer>> returns;
  for (const auto& [peer, buffer] : returned.tensors()) returns.push_back(communicator_.receive(buffer, peer, Channel::error));
  for (const GradientSlice& slice : slices) {
    if (slice.owner == own || !is_giver(slice, own)) continue;
    given.next(slice.owner, slice).copy_(SliceOfGradient(parameter(slice), slice).read());
  }
  const auto send = [&](const PeerBuffers& buffers, Channel channel) {
    for (const auto& [peer, buffer] : buffers.tensors()) {
      transfers.push_back(communicator_.send(buffer, peer, channel));
      sent_bytes_ += static_cast<int64_t>(buffer.nbytes());
    }
  };
  send(given, Channel::activation);
  wait_for(transfers);

  const at::Tensor sums = at::empty({owned}, options);
  FlatValues sum_of(sums);
  for (const GradientSlice& slice : slices) {
    if (slice.owner != own) continue;
    const at::Tensor sum = sum_of.next(slice);
    SliceOfGradient gradient(parameter(slice), slice);
    for (size_t replica = 0; replica < slice.holders.size(); ++replica) {
      const int32_t giver = slice.holders[replica].front();
      const at::Tensor part = giver == own ? gradient.read() : taken.next(giver, slice);
      replica == 0 ? sum.copy_(part) : sum.add_(part);
    }
    gradient.write(sum);
    for_each_other_holder(slice, own, [&](int32_t holder) { sent_back.next(holder, slice).copy_(sum); });
  }
  send(sent_back, Channel::error);
  const at::Tensor squares = at::zeros({}, options.dtype(at::kDouble));
  if (steps_on_host(*step.adapter)) {
    squares.fill_(kernels::sum_of_squares(sums.const_data_ptr<float>(), owned));
  } else if (owned > 0) {
    squares.copy_(sum_of_squares({sums}));
  }
  wait_for(returns);
  for (const GradientSlice& slice : slices) {
    if (slice.owner != own && holds(slice, own)) SliceOfGradient(parameter(slice), slice).write(returned.next(slice.owner, slice));
  }
  wait_for(transfers);
  return squares;
}

at::Tensor GradientExchange::add_records(const Step& step, const at::Tensor& own) {
  const std::vector<int32_t>& ranks = step.exchange->ranks;
  const int32_t first = ranks.front();
  at::Tensor record = own.clone();
  if (communicator_.rank() != first) {
    const std::shared_ptr<Transfer> whole = communicator_.receive(record, first, Channel::error);
    communicator_.send(own, first, Channel::activation)->wait();
    whole->wait();
    return record;
  }
  std::vector<at::Tensor> parts;
  std::vector<std::shared_ptr<Transfer>> transfers;
  for (size_t i = 1; i < ranks.size(); ++i) {
    parts.push_back(at::empty_like(own));
    transfers.push_back(communicator_.receive(parts.back(), ranks[i], Channel::activation));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    transfers[i]->wait();
    record += parts[i];
  }
  transfers.clear();
  for (size_t i = 1; i < ranks.size(); ++i) transfers.push_back(communicator_.send(record, ranks[i], Channel::error));
  for (const auto& transfer : transfers) transfer->wait();
  return record;
}

}  // namespace cotune
