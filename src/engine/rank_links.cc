#include "engine/rank_links.h"

#include <numeric>

namespace cotune {

RankLinks::RankLinks(NewGroup make, int32_t rank_count) : new_group(std::move(make)) {
  std::vector<int32_t> all(static_cast<size_t>(rank_count));
  std::iota(all.begin(), all.end(), 0);
  control = new_group(all);
}

void RankLinks::join(const PipelineLayout& layout) {
  messages.reset();
  group.reset();
  const int32_t own = control->rank();
  std::vector<int32_t> pipeline, part;
  for (int32_t rank = 0; rank < control->size(); ++rank) {
    if (layout.shard_of(rank) == layout.shard_of(own)) pipeline.push_back(rank);
    if (layout.place_of(rank) == layout.place_of(own)) part.push_back(rank);
  }
  messages = new_group(pipeline);
  if (part.size() > 1) group = new_group(part);
  if (progress != nullptr) progress->join(std::move(pipeline), std::move(part));
}

void RankLinks::abort() noexcept {
  messages->abort();
  if (group != nullptr) group->abort();
}

void RankLinks::end() {
  if (before_end) before_end();
  if (group != nullptr) group->barrier();
  if (messages != nullptr) messages->barrier();
  control->barrier();
}

}  // namespace cotune
