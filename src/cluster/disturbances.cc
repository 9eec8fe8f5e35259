#include "cluster/disturbances.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "plan/placement.h"
#include "plan/plan_totals.h"

namespace cotune {
namespace {

constexpr double most = 1e6;  // factor, and rank

/// Numbers between the separators, in their order; nothing where the text is not that.
std::optional<std::vector<double>> numbers(const std::string& text, std::string_view separators) {
  std::vector<double> values;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  for (size_t i = 0;; ++i) {
    double value = 0;
    const auto parsed = std::from_chars(at, end, value);
    if (parsed.ec != std::errc()) return std::nullopt;
    values.push_back(value);
    at = parsed.ptr;
    if (at == end) return values;
    if (i >= separators.size() || *at != separators[i]) return std::nullopt;
    ++at;
  }
}

bool is_rank(double value) { return value >= 0 && value < most && value == static_cast<double>(static_cast<int64_t>(value)); }

bool is_factor(double value) { return value >= 1 && value <= most; }

/// Replica and stage of a rank.
struct Place {
  size_t replica = 0, stage = 0;
};

Place place_of(const Plan& plan, int64_t rank) {
  Place place;
  while (rank >= plan.replicas[place.replica].pipeline_stages()) {
    rank -= plan.replicas[place.replica].pipeline_stages();
    ++place.replica;
  }
  place.stage = static_cast<size_t>(rank);
  return place;
}

/// The node's where both stand in one.
LinkSpec link_between(const PlannedStage& a, const PlannedStage& b, const ClusterSpec& cluster) {
  const PlannedDevice& first = a.devices.front();
  const auto is_elsewhere = [&](const PlannedDevice& device) { return device.nodes != first.nodes || device.node != first.node; };
  if (std::ranges::any_of(a.devices, is_elsewhere) || std::ranges::any_of(b.devices, is_elsewhere)) return cluster.network;
  return nodes_called(cluster, first.nodes).link;
}

void check_rank(const char* option, int64_t rank, const Plan& plan) {
  int64_t ranks = 0;
  for (const PlannedReplica& replica : plan.replicas) ranks += replica.pipeline_stages();
  if (rank < ranks) return;
  throw_user_error("{}: there is no rank {}; there are 0 to {}, one per pipeline stage of every replica", option, rank, ranks - 1);
}

}  // namespace

void Disturbances::check(const Plan& plan) const {
  for (const Slowdown& each : stages) check_rank("--slow", each.rank, plan);
  for (const SlowLink& each : links) {
    for (const int64_t rank : {each.a, each.b}) check_rank("--slow-link", rank, plan);
    const Place a = place_of(plan, each.a), b = place_of(plan, each.b);
    if (a.replica == b.replica) {
      const PlannedReplica& replica = plan.replicas[a.replica];
      const size_t apart = std::max(a.stage, b.stage) - std::min(a.stage, b.stage);
      if (apart == 1 || (replica.chunks() > 1 && apart + 1 == replica.stages.size())) continue;  // interleaved: a ring
      throw_user_error("--slow-link: nothing is sent between ranks {} and {}: within a replica neighbours alone talk", each.a, each.b);
    }
    const PlannedStage &first = plan.replicas[a.replica].stages[a.stage], &second = plan.replicas[b.replica].stages[b.stage];
    const std::vector<StageShape> runs = first.chunks();
    const bool shares_layers = std::any_of(runs.begin(), runs.end(), [&](const StageShape& run) {
      for (int64_t layer = run.first_layer; layer < run.last_layer; ++layer) {
        if (second.holds(layer)) return true;
      }
      return false;
    });
    if (shares_layers) continue;
    throw_user_error("--slow-link: nothing is sent between ranks {} and {}: stages of different replicas that share no layer", each.a, each.b);
  }
}

PipelineCluster Disturbances::slowed(const PipelineCluster& cluster, int64_t first_rank, int64_t stage_count, double start_s) const {
  PipelineCluster result = cluster;
  const auto here = [&](int64_t rank) { return rank >= first_rank && rank < first_rank + stage_count; };
  for (const Slowdown& each : stages) {
    if (!here(each.rank) || each.until_s <= start_s) continue;
    result.slowdowns.push_back({.rank = static_cast<int32_t>(each.rank - first_rank),
                                .from_s = std::max(0.0, each.from_s - start_s),
                                .until_s = each.until_s - start_s,
                                .factor = each.factor});
  }
  for (const SlowLink& each : links) {
    if (!here(each.a) || !here(each.b)) continue;
    const auto a = static_cast<int32_t>(each.a - first_rank), b = static_cast<int32_t>(each.b - first_rank);
    for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
      Link link = result.between(from, to);
      link.latency_s *= each.factor;
      link.bytes_per_s /= each.factor;
      result.links[{from, to}] = link;
    }
  }
  return result;
}

LinkSpec Disturbances::exchange_link(const Plan& plan, const ClusterSpec& cluster) const {
  LinkSpec slowest = cotune::exchange_link(plan, cluster);
  for (const SlowLink& each : links) {
    const Place a = place_of(plan, each.a), b = place_of(plan, each.b);
    if (a.replica == b.replica) continue;
    const PlannedStage &first = plan.replicas[a.replica].stages[a.stage], &second = plan.replicas[b.replica].stages[b.stage];
    const LinkSpec slow = link_between(first, second, cluster).slowed_by(each.factor);
    slowest.latency = std::max(slowest.latency, slow.latency);
    slowest.bandwidth = std::min(slowest.bandwidth, slow.bandwidth);
  }
  return slowest;
}

Slowdown parse_slowdown(const std::string& text) {
  const auto values = numbers(text, ":::");
  const bool good = values && (values->size() == 2 || values->size() == 4) && is_rank((*values)[0]) && is_factor((*values)[1]) &&
                    (values->size() == 2 || ((*values)[2] >= 0 && (*values)[3] > (*values)[2]));
  if (!good) {
    throw_user_error("--slow: must be RANK:FACTOR or RANK:FACTOR:FROM_MS:UNTIL_MS, a factor from 1 to 1000000, got `{}`", text);
  }
  Slowdown slowdown{.rank = static_cast<int32_t>((*values)[0]), .factor = (*values)[1]};
  if (values->size() == 4) {
    slowdown.from_s = (*values)[2] / 1e3;
    slowdown.until_s = (*values)[3] / 1e3;
  }
  return slowdown;
}

SlowLink parse_slow_link(const std::string& text) {
  const auto values = numbers(text, "-:");
  const bool good = values && values->size() == 3 && is_rank((*values)[0]) && is_rank((*values)[1]) && (*values)[0] != (*values)[1] &&
                    is_factor((*values)[2]);
  if (!good) throw_user_error("--slow-link: must be A-B:FACTOR, two ranks and a factor from 1 to 1000000, got `{}`", text);
  return {static_cast<int64_t>((*values)[0]), static_cast<int64_t>((*values)[1]), (*values)[2]};
}

}  // namespace cotune
