/// Fits the four constants of table6.h on the column Task-Sequential of LobRA's Table 6, for each family of length
/// distributions, and prints bench/plan/data/table6_constants.json. Least squares of the logarithms, by coordinate search.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "table6.h"

using namespace cotune;

int main() {
  const Table6Model model;
  fmt::print("{{\n \"what\": \"Constants of the 70B model (bench/plan/table6.h), fitted by fit_table6 on the column Task-Sequential of "
             "LobRA's Table 6 alone\",\n \"constants\": {{\n");
  for (const LengthFamily family : all_length_families) {
    const auto loss = [&](const Table6Constants& constants) {
      double sum = 0;
      for (const double ratio : table6_ratios(model, constants, family, false)) sum += std::log(ratio) * std::log(ratio);
      return sum;
    };
    Table6Constants best;
    double least = loss(best);
    for (double factor = 2; factor > 1.02; factor = std::sqrt(factor)) {
      for (bool is_better = true; is_better;) {
        is_better = false;
        for (double Table6Constants::*constant : {&Table6Constants::compute_efficiency, &Table6Constants::node_bandwidth,
                                                  &Table6Constants::network_bandwidth, &Table6Constants::layer_seconds}) {
          for (const double change : {factor, 1 / factor}) {
            Table6Constants changed = best;
            changed.*constant *= change;
            changed.compute_efficiency = std::min(changed.compute_efficiency, 1.0);
            changed.node_bandwidth = std::min(changed.node_bandwidth, 2e11);        // the link's own
            changed.network_bandwidth = std::min(changed.network_bandwidth, 2.5e10);
            const double now = loss(changed);
            if (now < least * (1 - 1e-6)) best = changed, least = now, is_better = true;
          }
        }
      }
    }
    fmt::print("  \"{}\": {{\"compute_efficiency\": {:.4g}, \"node_bandwidth\": {:.4g}, \"network_bandwidth\": {:.4g}, \"layer_seconds\": {:.4g}}}{}\n",
               to_string(family), best.compute_efficiency, best.node_bandwidth, best.network_bandwidth, best.layer_seconds,
               family == LengthFamily::weibull ? "" : ",");
  }
  fmt::print(" }}\n}}\n");
}
