#include "engine/rank_links.h"

#include <algorithm>
#include <numeric>

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

void RankLinks::join(std::span<const PipelineLayout> layouts) {
  messages.reset();
  group.reset();
  exchange.reset();
  const auto [replica, own] = place_of_rank(layouts, control->rank());
  const int32_t first = first_rank_of(layouts, replica);
  const PipelineLayout& layout = layouts[replica];
  std::vector<int32_t> pipeline, part;
  for (int32_t worker = 0; worker < layout.worker_count(); ++worker) {
    if (layout.shard_of(worker) == layout.shard_of(own)) pipeline.push_back(first + worker);
    if (layout.place_of(worker) == layout.place_of(own)) part.push_back(first + worker);
  }
  messages = new_group(pipeline);
  const bool some_divide = std::ranges::any_of(layouts, [](const PipelineLayout& each) { return each.tensor_parallel() > 1; });
  if (some_divide) group = new_group(part);  // all ranks ask for as many groups
  if (part.size() == 1) group.reset();
  if (layouts.size() > 1) exchange = new_group(all_ranks(control->size()));
  if (progress != nullptr) progress->join(std::move(pipeline), std::move(part));
}

void RankLinks::abort() noexcept {
  messages->abort();
  for (Communicator* each : {group.get(), exchange.get()}) {
    if (each != nullptr) each->abort();
  }
}

void RankLinks::end() {
  if (before_end) before_end();
  for (Communicator* each : {group.get(), messages.get(), exchange.get()}) {
    if (each != nullptr) each->barrier();
  }
  control->barrier();
}

}  // namespace cotune
