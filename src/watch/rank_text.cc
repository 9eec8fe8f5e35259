#include "watch/rank_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "watch/screen_text.h"

namespace cotune {
namespace {

enum class Detail { where, share };

std::string each_text(std::span<const RankView> ranks, Detail detail) {
  std::string text;
  const bool are_apart = std::ranges::any_of(ranks, [&](const RankView& rank) { return rank.host != ranks.front().host; });
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankView& rank = ranks[i];
    text += fmt::format("{}{} {:.0f}%", i == 0 ? "" : ", ", i, 100 * rank.busy);
    if (detail != Detail::where) continue;
    text += fmt::format(" (layers {}{}{})", layers_text(rank), rank.parts > 1 ? fmt::format(", part {} of {}", rank.part + 1, rank.parts) : "",
                        are_apart ? ", " + printable(rank.host) : "");
  }
  return text;
}

}  // namespace

std::string layers_text(const RankView& rank) {
  std::string text;
  for (const auto& [first, last] : rank.layers) text += fmt::format("{}{}-{}", text.empty() ? "" : ",", first, last);
  return text;
}

std::string rank_line(std::span<const RankView> ranks, size_t columns) {
  if (ranks.empty()) return "";
  const std::string title = counted(std::ssize(ranks), "rank") + " busy: ";
  for (const Detail detail : {Detail::where, Detail::share}) {
    std::string line = title + each_text(ranks, detail);
    if (columns_of(line) <= columns) return line;
  }
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, &RankView::busy);
  return fmt::format("{}{:.0f}% (rank {}) to {:.0f}% (rank {})", title, 100 * least->busy, least - ranks.begin(), 100 * most->busy,
                     most - ranks.begin());
}

}  // namespace cotune
