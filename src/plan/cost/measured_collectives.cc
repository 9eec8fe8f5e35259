#include "plan/cost/measured_collectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/nonnegative_least_squares.h"

namespace cotune {
namespace {

CollectiveFit fit(const std::vector<const ProfiledCollective*>& sizes) {
  std::vector<std::vector<double>> rows;
  for (const ProfiledCollective* each : sizes) rows.push_back({1 / each->median, static_cast<double>(each->bytes) / each->median});
  const std::vector<double> coefficients = nonnegative_least_squares(rows, std::vector<double>(rows.size(), 1.0));
  CollectiveFit result{.time = {.latency_s = coefficients[0], .seconds_per_byte = coefficients[1]}};
  for (const ProfiledCollective* each : sizes) {
    const double error = std::abs(result.time.seconds(static_cast<double>(each->bytes)) / each->median - 1);
    result.mean_error += error / static_cast<double>(sizes.size());
    result.worst_error = std::max(result.worst_error, error);
    result.mean_spread += each->spread / static_cast<double>(sizes.size());
  }
  return result;
}

}  // namespace

MeasuredCollectives::MeasuredCollectives(std::span<const ProfiledCollective> collectives) {
  std::map<std::pair<CollectiveKind, int64_t>, std::vector<const ProfiledCollective*>> sizes;
  for (const ProfiledCollective& each : collectives) {
    if (each.median > 0) sizes[{each.kind, each.ranks}].push_back(&each);
  }
  for (const auto& [key, own] : sizes) fits_[key] = fit(own);
}

LinkSpec MeasuredCollectives::over(LinkSpec link) const {
  for (const auto& [key, fit] : fits_) {
    if (key.first == CollectiveKind::message) {
      link.latency = fit.time.latency_s;
      const double per_byte = fit.time.seconds_per_byte;  // 0 where larger messages take no longer
      link.bandwidth = per_byte > 0 ? 1 / per_byte : std::numeric_limits<double>::infinity();
    } else {
      link.measured[key] = fit.time;
    }
  }
  return link;
}

ClusterSpec with_measured_links(ClusterSpec cluster, const MeasuredCollectives& measured) {
  for (NodeGroup& group : cluster.nodes) {
    if (group.devices > 1) group.link = measured.over(std::move(group.link));
  }
  return cluster;
}

}  // namespace cotune
