#include "cli/reporting/rank_view.h"

namespace cotune {

RankView rank_view(const RankSummary& rank) {
  const RankSummary::Shares shares = rank.measured();
  RankView view{.host = rank.host,
                .layers = {},
                .replica = rank.replica,
                .part = rank.part,
                .parts = rank.parts,
                .busy = shares.busy,
                .exposed = shares.exposed,
                .bubble = shares.bubble};
  for (const LayerRange& range : rank.layers) view.layers.emplace_back(range.begin, range.end - 1);
  return view;
}

}  // namespace cotune
