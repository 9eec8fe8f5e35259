#include "engine/collective_profiler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/sample_spread.h"
#include "engine/tensor_group.h"

namespace cotune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t value_bytes = 4;
constexpr int in_a_row = 4;  // so that ranks that begin a little apart change little

/// The two of a group: one begins, and knows when the message has come back.
void round_trip(const at::Tensor& buffer, Communicator& communicator) {
  const int32_t peer = 1 - communicator.rank();
  if (communicator.rank() == 0) communicator.send(buffer, peer, Channel::activation)->wait();
  communicator.receive(buffer, peer, Channel::activation)->wait();
  if (communicator.rank() == 1) communicator.send(buffer, peer, Channel::activation)->wait();
}

}  // namespace

CollectiveProfiler::CollectiveProfiler(int64_t ranks, int64_t group, const std::vector<int64_t>& sizes)
    : group_(group), together_(ranks / group * group) {
  COTUNE_CHECK(group >= 2 && group <= ranks, "groups of {} of {} ranks", group, ranks);
  for (int64_t first = 0; first + group <= ranks; first += group) {
    for (auto& rank : thread_communicators(static_cast<int32_t>(group))) ranks_.push_back(std::move(rank));
  }
  for (size_t kind = group == 2 ? 0 : 1; kind < collective_names.size(); ++kind) {
    for (const int64_t bytes : sizes) {
      const int64_t of_rank = (bytes + group * value_bytes - 1) / (group * value_bytes);
      cases_.push_back({static_cast<CollectiveKind>(kind), of_rank * group});
    }
  }
  forget();
}

void CollectiveProfiler::forget() { seconds_.assign(ranks_.size(), std::vector<std::vector<double>>(cases_.size())); }

double CollectiveProfiler::measure(const Case& each, Communicator& communicator) const {
  TensorGroup group(communicator);
  at::Tensor values = at::zeros({each.values, 1}, at::kFloat);
  std::vector<int64_t> begins;
  for (int64_t rank = 0; rank <= group_; ++rank) begins.push_back(rank * (each.values / group_));
  const at::Tensor own = values.narrow(0, 0, each.values / group_);
  const auto begin = Clock::now();
  for (int i = 0; i < in_a_row; ++i) {
    switch (each.kind) {
      case CollectiveKind::message:
        round_trip(values, communicator);
        break;
      case CollectiveKind::all_reduce:
        group.all_reduce(values);
        break;
      case CollectiveKind::reduce_scatter:
        group.finish(group.start_scattered_sum(values, begins));
        break;
      case CollectiveKind::all_gather:
        group.finish(group.start_gather(own, begins));
        break;
    }
  }
  const double one = std::chrono::duration<double>(Clock::now() - begin).count() / in_a_row;
  return each.kind == CollectiveKind::message ? one / 2 : one;
}

void CollectiveProfiler::sweep(int64_t rank) {
  const auto own = static_cast<size_t>(rank);
  if (own >= ranks_.size()) return;
  try {
    for (size_t i = 0; i < cases_.size(); ++i) {
      together_.arrive_and_wait();
      seconds_[own][i].push_back(measure(cases_[i], *ranks_[own]));
    }
  } catch (...) {
    ranks_[own]->abort();
    together_.arrive_and_drop();
    throw;
  }
}

std::vector<ProfiledCollective> CollectiveProfiler::collectives() const {
  std::vector<ProfiledCollective> result;
  for (size_t i = 0; i < cases_.size(); ++i) {
    std::vector<double> samples;
    for (size_t first = 0; first < ranks_.size(); first += static_cast<size_t>(group_)) {
      for (size_t sweep = 0; sweep < seconds_[first][i].size(); ++sweep) {
        double last = seconds_[first][i][sweep];
        const bool is_message = cases_[i].kind == CollectiveKind::message;  // only the one that begins times whole trips
        for (size_t rank = first + 1; rank < first + static_cast<size_t>(group_) && !is_message; ++rank) {
          last = std::max(last, seconds_[rank][i][sweep]);
        }
        samples.push_back(last);
      }
    }
    const SampleSpread seconds = sample_spread(samples);
    result.push_back({.kind = cases_[i].kind,
                      .ranks = group_,
                      .bytes = cases_[i].values * value_bytes,
                      .median = seconds.median,
                      .spread = seconds.spread,
                      .count = static_cast<int64_t>(samples.size())});
  }
  return result;
}

}  // namespace cotune
