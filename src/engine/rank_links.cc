#include "engine/rank_links.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "comm/late_notice.h"
#include "schedule/pipeline/rank_place.h"

namespace cotune {

std::vector<int32_t> all_ranks(int32_t count) {
  std::vector<int32_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

RankLinks::RankLinks(NewGroup make, int32_t rank_count) : new_group(std::move(make)) {
  control = new_group(all_ranks(rank_count));
}

void RankLinks::let_go() {
  messages.reset();
  group.reset();
  exchange.reset();
}

void RankLinks::meet_all() {
  for (Communicator* each : {group.get(), messages.get(), exchange.get()}) {
    if (each != nullptr) each->barrier();
  }
  control->barrier();
}

void RankLinks::leave() {
  meet_all();
  let_go();
}

void RankLinks::join(std::span<const PipelineLayout> layouts) {
  let_go();
  RankPeers peers = peers_of_rank(layouts, control->rank());
  messages = new_group(peers.pipeline);
  const bool some_divide = std::ranges::any_of(layouts, [](const PipelineLayout& each) { return each.tensor_parallel() > 1; });
  if (some_divide) group = new_group(peers.group);  // all ranks ask for as many groups
  if (peers.group.size() == 1) group.reset();
  if (layouts.size() > 1) exchange = new_group(all_ranks(control->size()));
  if (progress != nullptr) progress->join(std::move(peers.pipeline), std::move(peers.group));
}

void RankLinks::abort() noexcept {
  for (Communicator* each : {messages.get(), group.get(), exchange.get()}) {
    if (each != nullptr) each->abort();
  }
}

void RankLinks::end() {
  if (before_end) before_end();
  std::atomic<bool> is_late = false;
  std::optional<LateNotice> late;
  if (end_within) {
    late.emplace(*end_within, [this, &is_late] {
      is_late = true;
      abort();
      control->abort();
    });
  }
  try {
    meet_all();
  } catch (const CommunicationEnded&) {
    if (!is_late) throw;
    if (at_late_end) at_late_end();
  }
}

}  // namespace cotune
