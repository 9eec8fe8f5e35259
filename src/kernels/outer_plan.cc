#include "kernels/outer_plan.h"

#include <algorithm>
#include <numeric>

namespace cotune::kernels {
namespace {

/// Before a gradient of a panel.
struct Border {
  int64_t panel = 0;
  int64_t gradient = 0;
};

/// The one that is nearest to `target` of the cost. panel_cost > 0.
Border border_at(std::span<const int64_t> costs, int64_t panel_cost, double target, double tolerance) {
  const auto panel = static_cast<int64_t>(target / static_cast<double>(panel_cost));
  const double inside = target - static_cast<double>(panel * panel_cost);
  if (inside <= tolerance) return {panel, 0};
  if (static_cast<double>(panel_cost) - inside <= tolerance) return {panel + 1, 0};
  int64_t gradient = 0;
  double before = 0;
  for (const int64_t cost : costs) {
    if (before + static_cast<double>(cost) / 2 >= inside) break;
    before += static_cast<double>(cost);
    ++gradient;
  }
  if (gradient == static_cast<int64_t>(costs.size())) return {panel + 1, 0};
  return {panel, gradient};
}

}  // namespace

int64_t OuterPlan::load(int64_t part, std::span<const int64_t> costs) const {
  int64_t sum = 0;
  for (int64_t i = part_begins[static_cast<size_t>(part)]; i < part_begins[static_cast<size_t>(part) + 1]; ++i) {
    const OuterShare& share = shares[static_cast<size_t>(i)];
    const auto first = costs.begin() + share.gradients.begin;
    sum += share.panels.count() * std::accumulate(first, first + share.gradients.count(), int64_t{0});
  }
  return sum;
}

void plan_outer(std::span<const int64_t> costs, int64_t panels, int64_t threads, OuterPlan& plan) {
  plan.shares.clear();
  plan.part_begins.assign(1, 0);
  const int64_t panel_cost = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const auto gradients = static_cast<int64_t>(costs.size());
  if (panel_cost == 0 || panels == 0) return;
  const int64_t parts = std::min(threads, panels * gradients);
  const double mean = static_cast<double>(panels * panel_cost) / static_cast<double>(parts);
  Border begin;
  for (int64_t part = 1; part <= parts; ++part) {
    const Border end = part == parts ? Border{panels, 0} : border_at(costs, panel_cost, mean * static_cast<double>(part), mean / 16);
    const auto add = [&](RowRange own_panels, RowRange own_gradients) {
      if (own_panels.count() > 0 && own_gradients.count() > 0) plan.shares.push_back({own_panels, own_gradients});
    };
    if (begin.panel == end.panel) {
      add({begin.panel, begin.panel + 1}, {begin.gradient, end.gradient});
    } else {
      const int64_t whole = begin.gradient > 0 ? begin.panel + 1 : begin.panel;
      if (begin.gradient > 0) add({begin.panel, whole}, {begin.gradient, gradients});
      add({whole, end.panel}, {0, gradients});
      if (end.gradient > 0) add({end.panel, end.panel + 1}, {0, end.gradient});
    }
    plan.part_begins.push_back(static_cast<int64_t>(plan.shares.size()));
    begin = end;
  }
}

}  // namespace cotune::kernels
