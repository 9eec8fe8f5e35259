#include "kernels/shrink_plan.h"

#include <algorithm>

#include "kernels/matrix_blocks.h"

namespace cotune::kernels {
namespace {

void add_strips(const ShrinkShape& shape, int64_t group, int tile_rows, int tiles_per_strip,
                std::vector<ShrinkStrip>& strips) {
  const RowRange rows = shape.rows;
  const int64_t tiles = tile_count(rows.count(), tile_rows);
  const auto begin = [&](int64_t tile) {
    return rows.begin + tile_begin(rows.count(), tiles, std::min(tile, tiles));
  };
  for (int64_t tile = 0; tile < tiles; tile += tiles_per_strip) {
    const int64_t first = begin(tile + 1) - begin(tile);
    const int64_t second = tiles_per_strip == 2 ? begin(tile + 2) - begin(tile + 1) : 0;
    strips.push_back({group,
                      begin(tile),
                      {static_cast<int>(first), static_cast<int>(second)},
                      (first + second) * shape.row_cost});
  }
}

}  // namespace

int64_t ShrinkPlan::load(int64_t part) const {
  int64_t sum = 0;
  for (int64_t i = part_begins[static_cast<size_t>(part)]; i < part_begins[static_cast<size_t>(part) + 1];
       ++i) {
    sum += strips[static_cast<size_t>(i)].cost;
  }
  return sum;
}

void plan_shrink(std::span<const ShrinkShape> groups, int tile_rows, int tiles_per_strip, int64_t threads,
                 ShrinkPlan& plan) {
  plan.strips.clear();
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].row_cost == 0) continue;
    add_strips(groups[group], static_cast<int64_t>(group), tile_rows, tiles_per_strip, plan.strips);
  }
  int64_t total = 0;
  for (const ShrinkStrip& strip : plan.strips) total += strip.cost;
  const auto count = static_cast<int64_t>(plan.strips.size());
  const int64_t parts = std::min(threads, count);
  plan.part_begins.assign(static_cast<size_t>(parts) + 1, count);
  // Part p begins at the strip whose begin is nearest to p / parts of the cost, and leaves a strip to
  // everyone else.
  int64_t strip = 0, before = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t least = part == 0 ? 0 : plan.part_begins[static_cast<size_t>(part) - 1] + 1;
    const int64_t most = count - (parts - part);
    while (strip < most) {
      const int64_t cost = plan.strips[static_cast<size_t>(strip)].cost;
      if (strip >= least && (2 * before + cost) * parts >= 2 * part * total) break;
      before += cost;
      ++strip;
    }
    plan.part_begins[static_cast<size_t>(part)] = strip;
  }
}

}  // namespace cotune::kernels
