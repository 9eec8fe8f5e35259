#include "plan/plan_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "plan/fitting_plan.h"
#include "plan/replica_planner.h"
#include "schedule/microbatch.h"

namespace cotune {
namespace {

/// At least so many, as bytes_text has them: what it says is enough.
std::string enough_text(int64_t bytes) { return bytes_text(bytes_rounded_up(bytes)); }

/// A way to hold the longest row, were memory without end, and as many microbatches as a pipeline needs.
struct Need {
  ReplicaCandidate candidate;
  bool recompute = false;
  int64_t chunk_tokens = 0;  ///< of its microbatches

  const StageMemory& memory() const { return candidate.memory.total() > candidate.row_memory.total() ? candidate.memory : candidate.row_memory; }
  int64_t bytes() const { return memory().total(); }
  int64_t devices() const { return candidate.configuration.devices(); }
  std::string name() const { return candidate.configuration.name() + (recompute ? " with recomputation" : ""); }
};

std::string largest_term(const StageMemory& memory) {
  const std::pair<int64_t, const char*> terms[] = {{memory.weights, "frozen weights"},
                                                   {memory.adapters, "adapters with gradients and moments"},
                                                   {memory.activations, "activations"},
                                                   {memory.workspace, "workspace"}};
  const auto most = std::max_element(std::begin(terms), std::end(terms));
  return fmt::format("{} of {}", bytes_text(most->first), most->second);
}

constexpr int64_t most_times = 64;             // as many nodes as there are that are looked at
constexpr int64_t most_planned_devices = 16;  // that plans are made for, to see with which memory one fits

class Adviser {
 public:
  Adviser(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const PlanOptions& options)
      : model_(model), cluster_(cluster), jobs_(jobs), options_(options) {
    for (const JobShape& job : jobs) longest_ = std::max(longest_, job.lengths.longest());
    is_short_ = longest_ < atom_tokens;
    longest_ = std::max(longest_, atom_tokens);
    savings_ = {{.recompute = options.recompute == Recompute::always}};
    for (const MemorySaving& each : options.savings) {
      if (!each.recompute || options.recompute != Recompute::never) savings_.push_back(each);
    }
  }

  std::string on(const NodeGroup& group) const {
    const Reach reach = longest_that_fits(group, std::max({options_.replicas.most_chunk_tokens, options_.token_budget, whole_chunk_steps(longest_)}),
                                          whole_chunk_steps(least_budget(options_)));
    std::string text = reach.row_tokens >= longest_ && reach.tokens >= atom_tokens ? smaller_microbatches(group, reach) : more_memory(group, reach);
    if (is_packed()) {
      text += fmt::format("  {}: run.sharing batch-all puts all rows of a step into one microbatch; this holds under hybrid, temporal and separate, "
                          "which make smaller ones.\n", group.name);
    }
    return text;
  }

 private:
  /// The largest microbatch that fits, and on which configuration; and the longest row, on any.
  struct Reach {
    int64_t tokens = 0;
    std::string name;
    int64_t row_tokens = 0;
  };

  /// What must fit at least, in words. No microbatch is smaller than an atom, however short the rows.
  std::string rows() const {
    return is_short_ ? fmt::format("microbatches of {} tokens, the smallest token budget,", longest_) : fmt::format("rows of {} tokens", longest_);
  }

  /// Where no configuration has room for the longest row.
  std::string more_memory(const NodeGroup& group, const Reach& reach) const {
    const int64_t limit = group.device.usable_bytes();
    std::string text;
    const std::vector<Need> all = needs(cluster_, group, 1);
    const auto least =
        std::min_element(all.begin(), all.end(), [](const Need& a, const Need& b) { return a.bytes() < b.bytes(); });
    const bool has_least = least != all.end();
    const std::string of_limit = fmt::format("{} of its {} may be used", bytes_text(limit), bytes_text(group.device.memory_bytes));
    if (const std::optional<FittingPlan> held = has_least ? held_with_budget(group) : std::nullopt) {
      text += fmt::format("  {}: with run.token_budget {} a step needs at least {} per device, as {}, {} of it; {}.\n", group.name,
                          options_.token_budget, bytes_text(held->limit_bytes), held->replicas, largest_term(held->memory), of_limit);
      if (bytes_rounded_up(least->bytes()) < held->limit_bytes) {
        text += fmt::format("  {}: run.token_budget {} in its place would do with {}, as {}.\n", group.name, least->chunk_tokens,
                            enough_text(least->bytes()), least->name());
      }
    } else if (has_least) {
      text += fmt::format("  {}: {} need at least {} per device, as {}, {} of it; {}.\n", group.name, rows(), enough_text(least->bytes()),
                          least->name(), largest_term(least->memory()), of_limit);
    }
    if (const std::optional<Need> fewest = fewest_devices(group, limit)) {
      const int64_t nodes = (fewest->devices() + group.devices - 1) / group.devices;
      const std::string network = nodes > 1 ? assumed_network(cluster_, group) : "";
      const bool is_of_another_budget = is_budget_kept() && options_.token_budget != fewest->chunk_tokens;
      text += fmt::format("  {}: {}{} would hold it as {} ({} in place of {}{}), {} per device.\n", group.name,
                          is_of_another_budget ? fmt::format("with run.token_budget {}, ", fewest->chunk_tokens) : "",
                          counted(fewest->devices(), "device"), fewest->name(), counted(nodes, "node"), group.count,
                          network.empty() ? "" : fmt::format(", over {}, which is assumed", network), bytes_text(fewest->bytes()));
    }
    const int64_t budget = options_.token_budget;
    const int64_t row_tokens = budget > 0 ? longest_that_fits(group, budget, budget).row_tokens : reach.row_tokens;
    if (row_tokens >= atom_tokens && row_tokens < longest_) {
      text += fmt::format("  {}: as it is, rows of up to {} tokens fit (data.max_length).\n", group.name, row_tokens);
    }
    return text;
  }

  /// Whether what fits is found by planning: where the budget is given, rows share microbatches, which no closed form tells.
  bool is_budget_kept() const { return options_.token_budget > 0 && !is_packed(); }

  /// With run.token_budget as it is; nothing where none is given.
  std::optional<FittingPlan> held_with_budget(const NodeGroup& group) const {
    if (!is_budget_kept() || group.count * group.devices > most_planned_devices) return std::nullopt;
    return plan_in_least_memory({model_, cluster_, jobs_, options_}, group);
  }

  bool is_packed() const {
    return std::ranges::all_of(options_.sharing, [](Sharing each) { return each == Sharing::batch_all; });
  }

  /// Where the longest row fits, rows beside it are too many.
  std::string smaller_microbatches(const NodeGroup& group, const Reach& reach) const {
    std::string text =
        fmt::format("  {}: {} fit; a microbatch may have up to {} tokens, as {}.\n", group.name, rows(), reach.tokens, reach.name);
    if (least_budget(options_) > reach.tokens) {
      text += fmt::format("  {}: run.chunk_size is {}; {} or less would do.\n", group.name, options_.chunk_size, reach.tokens);
    } else if (const auto [least, most] = budgets(reach);
               !is_packed() && options_.token_budget > 0 && (options_.token_budget < least || options_.token_budget > most)) {
      text += fmt::format("  {}: run.token_budget is {}; {} would do.\n", group.name, options_.token_budget,
                          least < most ? fmt::format("{} to {}", least, most) : std::to_string(least));
      if (const std::optional<FittingPlan> held = held_with_budget(group)) {
        text += fmt::format("  {}: with run.token_budget {} a step needs at least {} per device, as {}.\n", group.name, options_.token_budget,
                            bytes_text(held->limit_bytes), held->replicas);
      }
    }
    return text;
  }

  /// Token budgets with which the longest row fits: those that take it in one microbatch, or the smallest, of which it is a chain.
  std::pair<int64_t, int64_t> budgets(const Reach& reach) const {
    if (reach.tokens >= longest_) return {longest_, reach.tokens};
    return {least_budget(options_), least_budget(options_)};
  }

  /// Tokens of the microbatches that the longest row is cut into: the smallest, and all of it. The second may take less, for a chain keeps
  /// gradients of keys and values.
  std::vector<int64_t> row_chunks() const {
    const int64_t least = whole_chunk_steps(least_budget(options_)), whole = whole_chunk_steps(longest_);
    return least < whole ? std::vector{least, whole} : std::vector{least};
  }

  /// For the longest row alone; `times`: as many devices a replica as the limit says. Plain ones first.
  std::vector<Need> needs(const ClusterSpec& cluster, const NodeGroup& group, int64_t times) const {
    NodeGroup roomy = group;
    roomy.device.memory_bytes = int64_t{1} << 60;
    std::vector<Need> all;
    for (const MemorySaving& saving : savings_) {
      for (const int64_t tokens : row_chunks()) {
        ReplicaLimits limits = limits_with(saving);
        limits.most_chunk_tokens = tokens;
        limits.most_row_tokens = whole_chunk_steps(longest_);
        limits.most_devices *= times;
        for (ReplicaCandidate& each : replica_candidates(model_, jobs_, cluster, roomy, options_.dtype, limits)) {
          all.push_back({std::move(each), saving.recompute, tokens});
        }
      }
    }
    return all;
  }

  std::optional<Need> fewest_devices_on(const NodeGroup& group, int64_t nodes, int64_t limit) const {
    NodeGroup more = group;
    more.count = nodes;
    std::optional<Need> fewest;
    for (Need& each : needs(with_network(cluster_, group), more, (nodes + group.count - 1) / group.count)) {
      if (each.bytes() <= limit && (!fewest || each.devices() < fewest->devices())) fewest = std::move(each);
    }
    return fewest;
  }

  /// On up to 64 times as many nodes: numbers of them are doubled until it fits, then at most sixteen below are tried.
  std::optional<Need> fewest_devices(const NodeGroup& group, int64_t limit) const {
    for (int64_t nodes = 2 * group.count; nodes <= most_times * group.count; nodes *= 2) {
      const std::optional<Need> fitting = fewest_devices_on(group, nodes, limit);
      if (!fitting) continue;
      const int64_t least = nodes / 2 + 1, step = std::max<int64_t>(1, (nodes - least + 15) / 16);
      for (int64_t fewer = least; fewer < nodes; fewer += step) {
        const std::optional<Need> found = fewest_devices_on(group, fewer, limit);
        if (found && found->devices() < fitting->devices()) return found;
      }
      return fitting;
    }
    return std::nullopt;
  }

  Reach longest_that_fits(const NodeGroup& group, int64_t most_chunk_tokens, int64_t most_row_chunk_tokens) const {
    Reach reach;
    for (const MemorySaving& saving : savings_) {
      ReplicaLimits limits = limits_with(saving);
      limits.most_chunk_tokens = most_chunk_tokens;
      limits.most_row_tokens = whole_chunk_steps(longest_);
      limits.most_row_chunk_tokens = most_row_chunk_tokens;
      for (const ReplicaCandidate& each :
           replica_candidates(model_, jobs_, cluster_, group, options_.dtype, limits)) {
        reach.row_tokens = std::max(reach.row_tokens, each.configuration.reach());
        if (each.configuration.chunk_tokens <= reach.tokens) continue;
        reach.tokens = each.configuration.chunk_tokens;
        reach.name = each.configuration.name() + (saving.recompute ? " with recomputation" : "");
      }
    }
    return reach;
  }

  ReplicaLimits limits_with(const MemorySaving& saving) const {
    ReplicaLimits limits = options_.replicas;
    limits.recompute = saving.recompute;
    limits.most_shards = saving.most_shards;
    return limits;
  }

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  std::vector<MemorySaving> savings_;
  int64_t longest_ = 0;    ///< tokens of the longest row; an atom where all are shorter
  bool is_short_ = false;  ///< all rows are shorter than the smallest microbatch
};

}  // namespace

std::string assumed_network(const ClusterSpec& cluster, const NodeGroup& group) {
  if (cluster.network.bandwidth > 0) return "";
  return group.device.name == "cpu" ? "ethernet-10" : "infiniband-200";
}

ClusterSpec with_network(ClusterSpec cluster, const NodeGroup& group) {
  const std::string assumed = assumed_network(cluster, group);
  if (!assumed.empty()) cluster.network = link_preset(assumed);
  return cluster;
}

std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const PlanOptions& options) {
  const Adviser adviser(model, cluster, jobs, options);
  std::string text;
  for (const NodeGroup& group : cluster.nodes) text += adviser.on(group);
  return text;
}

}  // namespace cotune
