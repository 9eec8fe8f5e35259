#include "plan/node_replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "plan/cost/replica_stages.h"
#include "plan/placement.h"
#include "plan/plan_totals.h"

namespace cotune {

NodeReplicas::NodeReplicas(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group, const std::vector<JobShape>& jobs,
                           const PlanOptions& options, const MemorySaving& saving, std::vector<StepRow> rows)
    : model_(model),
      cluster_(cluster),
      group_(group),
      jobs_(jobs),
      options_(options),
      saving_(saving),
      rows_(std::move(rows)),
      planner_(model, cluster, group, jobs, options, saving.recompute) {
  for (const JobShape& job : jobs) longest_ = std::max(longest_, job.lengths.longest());
  for (const StepRow& row : rows_) step_tokens_ += row.tokens;
  find_configurations();
}

/// batch-all puts rows of all jobs into a microbatch, and orders that go by a number of microbatches in flight have as many long rows under way.
bool may_leave_rows_alone(const PlanOptions& options, const Configuration& shape) {
  const bool is_packed = std::ranges::all_of(options.sharing, [](Sharing each) { return each == Sharing::batch_all; });
  const auto goes_by_memory = [](PipelineOrder each) { return each == PipelineOrder::automatic || each == PipelineOrder::split; };
  return !is_packed && (shape.pipeline_stages == 1 || std::ranges::any_of(options.orders, goes_by_memory));
}

std::vector<ReplicaCandidate> NodeReplicas::candidates(int64_t most_row_chunk_tokens) const {
  ReplicaLimits limits = options_.replicas;
  limits.recompute = saving_.recompute;
  limits.most_shards = saving_.most_shards;
  limits.most_chunk_tokens = std::max(limits.most_chunk_tokens, whole_chunk_steps(longest_));
  limits.most_row_chunk_tokens = most_row_chunk_tokens;
  std::vector<ReplicaCandidate> found = replica_candidates(model_, jobs_, cluster_, group_, options_.dtype, limits, options_.measured);
  for (ReplicaCandidate& each : found) {
    if (!may_leave_rows_alone(options_, each.configuration)) each.configuration.longest_row = 0;
  }
  return found;
}

std::string NodeReplicas::rejection(const ReplicaCandidate& candidate) const {
  const int64_t chunk = candidate.configuration.chunk_tokens;
  if (chunk == 0 || chunk >= least_budget(options_)) return candidate.reason;
  return fmt::format("only {} tokens fit; a microbatch takes at least {}", chunk, least_budget(options_));
}

int64_t NodeReplicas::reach_of(const std::vector<ReplicaCandidate>& candidates) const {
  int64_t reach = 0;
  for (const ReplicaCandidate& each : candidates) {
    if (rejection(each).empty()) reach = std::max(reach, each.configuration.reach());
  }
  return reach;
}

std::vector<ReplicaCandidate> NodeReplicas::candidates_for_rows() {
  const int64_t budget = options_.token_budget;
  std::vector<ReplicaCandidate> found = candidates(budget > 0 ? budget : ReplicaLimits().most_row_chunk_tokens);
  const auto is_short = [&](const ReplicaCandidate& each) { return rejection(each).empty() && each.configuration.reach() < longest_; };
  if (budget > 0 || std::ranges::none_of(found, is_short)) return found;
  const std::vector<ReplicaCandidate> small = candidates(whole_chunk_steps(least_budget(options_)));
  for (size_t i = 0; i < found.size(); ++i) {
    if (!is_short(found[i]) || small[i].configuration.reach() <= found[i].configuration.reach()) continue;
    reach_at_any_budget_[found[i].configuration.name()] = found[i].configuration.reach();
    found[i] = small[i];
  }
  return found;
}

void NodeReplicas::find_configurations() {
  const auto mean_row = std::max<int64_t>(1, std::llround(static_cast<double>(step_tokens_) / static_cast<double>(rows_.size())));
  const std::vector<ReplicaCandidate> candidates = candidates_for_rows();
  for (const ReplicaCandidate& candidate : candidates) {
    const Configuration& shape = candidate.configuration;
    ConsideredConfiguration& shown = considered_.emplace_back(
        ConsideredConfiguration{.nodes = group_.name,
                                .tensor_parallel = shape.tensor_parallel,
                                .pipeline_stages = shape.pipeline_stages,
                                .is_sequence_parallel = shape.is_sequence_parallel,
                                .shards = shape.shards,
                                .recompute = saving_.recompute,
                                .chunk_tokens = shape.chunk_tokens,
                                .longest_row = shape.reach(),
                                .tokens_per_device_s = shape.rate(mean_row),
                                .memory = candidate.memory,
                                .chunk_s = candidate.chunk_s,
                                .overflow = candidate.overflow,
                                .rejected_for = rejection(candidate)});
    if (!shown.rejected_for.empty()) continue;
    configurations_.push_back(shape);
    place_in_considered_.push_back(considered_.size() - 1);
  }
  if (configurations_.empty()) {
    no_deployment_ = "out of memory: no configuration fits on the devices";
  } else if (const int64_t reach = reach_of(candidates); reach < longest_) {
    no_deployment_ =
        fmt::format("out of memory: no configuration holds rows of {} tokens, at most {}", longest_, reach);
  } else {
    buckets_ = bucket_rows(rows_, options_.length_buckets, configurations_);
    const std::span<const double> unpadded = options_.layout == Layout::padded ? std::span<const double>() : buckets_.mean;
    costs_ = bucket_costs(configurations_, buckets_.tokens, unpadded);
    for (size_t i = 0; i < configurations_.size(); ++i) calibrate(i);
  }
}

void NodeReplicas::calibrate(size_t configuration) {
  BucketCosts& costs = costs_[configuration];
  const int64_t count = device_count() / configurations_[configuration].devices();
  std::vector<int64_t> replicas(configurations_.size(), 0), sequences = buckets_.sequences;
  replicas[configuration] = count;
  for (size_t j = costs.reach(); j < sequences.size(); ++j) sequences[j] = 0;
  std::vector<StepRow> that_fit;
  for (const StepRow& row : rows_) {
    if (costs.reach() > 0 && row.tokens <= buckets_.tokens[costs.reach() - 1]) that_fit.push_back(row);
  }
  if (count == 0 || that_fit.empty()) return;
  const RowDispatch dispatch = dispatch_rows(costs_, replicas, sequences);
  const std::optional<ReplicaChoice> slowest = cut_layers(configuration, deal_rows(that_fit, buckets_, dispatch), dispatch);
  if (!slowest || !slowest->fits()) return;
  const double factor = slowest->replica.seconds / dispatch.makespan;
  for (double& seconds : costs.seconds) seconds *= factor;
  costs.fill *= factor;
}

std::optional<ReplicaChoice> NodeReplicas::cut_layers(size_t configuration, const std::vector<std::vector<StepRow>>& rows,
                                                      const RowDispatch& dispatch) {
  const std::string name = configurations_[configuration].name();
  const std::vector<std::vector<StageShape>> cuts = cuts_of(configurations_[configuration]);
  const std::vector<StageShape>* fastest = &cuts.front();
  std::optional<ReplicaChoice> best;
  for (const std::vector<StageShape>& cut : cuts) {
    stages_[name] = cut;
    std::optional<ReplicaChoice> tried = slowest_of(configuration, rows, dispatch);
    if (!tried) break;
    if (best && (!tried->fits() || (best->fits() && tried->replica.seconds >= best->replica.seconds))) continue;
    best = std::move(tried);
    fastest = &cut;
  }
  stages_[name] = *fastest;
  return best;
}

std::vector<std::vector<StageShape>> NodeReplicas::cuts_of(const Configuration& shape) {
  std::vector<std::vector<StageShape>> cuts;
  const auto add = [&](int64_t tokens) {
    std::vector<StageShape> cut = balanced_stages(model_, jobs_, shape.pipeline_stages, shape.tensor_parallel, tokens,
                                                  planner_.prices(shape.tensor_parallel), group_.device.usable_bytes(),
                                                  {shape.shards, options_.replicas.gather_overlap}, shape.is_sequence_parallel);
    if (std::ranges::find(cuts, cut) != cuts.end()) return false;
    cuts.push_back(std::move(cut));
    return true;
  };
  add(shape.chunk_tokens);
  if (shape.pipeline_stages == 1) return cuts;
  const int64_t least = least_budget(options_);
  for (int64_t tokens = microbatch_tokens(shape); !add(tokens) && tokens > least;) tokens = std::max(least, tokens / 2);
  return cuts;
}

int64_t NodeReplicas::microbatch_tokens(const Configuration& shape) const {
  const int64_t copies = device_count() / (shape.tensor_parallel * shape.pipeline_stages);
  const int64_t own = step_tokens_ / std::max<int64_t>(1, copies);
  const int64_t wanted = options_.token_budget > 0 ? std::min(options_.token_budget, own)
                                                   : std::min(shape.chunk_tokens, own / enough_microbatches(shape.pipeline_stages));
  return std::max(least_budget(options_), wanted);
}

std::optional<ReplicaChoice> NodeReplicas::slowest_of(size_t configuration, const std::vector<std::vector<StepRow>>& rows,
                                                      const RowDispatch& dispatch) {
  size_t slowest = dispatch.replicas.size();
  for (size_t r = 0; r < dispatch.replicas.size(); ++r) {
    if (dispatch.replicas[r].configuration != configuration || rows[r].empty()) continue;
    if (slowest == dispatch.replicas.size() || dispatch.replicas[r].seconds > dispatch.replicas[slowest].seconds) slowest = r;
  }
  if (slowest == dispatch.replicas.size()) return std::nullopt;
  const Configuration& shape = configurations_[configuration];
  const std::vector<int64_t> one = {shape.devices()};
  const auto placed = place_replicas(one, group_);
  if (!placed) return std::nullopt;
  return planner_.estimate(replica_with(shape, placed->front(), 0, rows[slowest]));
}

bool NodeReplicas::holds_all_rows(const std::vector<int64_t>& replicas) const {
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0 && configurations_[i].reach() >= longest_) return no_deployment_.empty();
  }
  return false;
}

std::string NodeReplicas::text_of(const std::vector<int64_t>& replicas) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0) parts.push_back(fmt::format("{}×{}", configurations_[i].name(), replicas[i]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

const EstimatedDeployment& NodeReplicas::estimate(const std::vector<int64_t>& replicas) {
  if (const auto known = estimated_.find(replicas); known != estimated_.end()) return known->second;
  EstimatedDeployment result{.replicas = replicas, .dispatch = dispatched(replicas)};
  const auto rows = dealt(result.dispatch);
  for (size_t i = 0; i < replicas.size(); ++i) {
    const std::optional<ReplicaChoice> slowest = replicas[i] > 0 ? slowest_of(i, rows, result.dispatch) : std::nullopt;
    if (!slowest) continue;
    result.estimated_s = std::max(result.estimated_s, slowest->replica.seconds);
    for (const PlannedStage& stage : slowest->replica.stages) {
      result.estimated_bytes = std::max(result.estimated_bytes, stage.memory.total());
    }
    if (slowest->fits()) {
      result.fitting_s = std::max(result.fitting_s, slowest->replica.seconds);
    } else if (slowest->overflow.bytes > result.overflow.bytes) {
      result.constraint = slowest->constraint;
      result.overflow = slowest->overflow;
    }
  }
  const double exchange = exchange_s(replicas);
  result.estimated_s += exchange;
  result.fitting_s += exchange;
  return estimated_.emplace(replicas, std::move(result)).first->second;
}

double NodeReplicas::exchange_s(const std::vector<int64_t>& replicas) {
  int64_t most = 0, count = 0, devices = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] == 0) continue;
    const Configuration& shape = configurations_[i];
    const auto [found, is_new] = exchanged_.try_emplace(i);
    if (is_new) {
      const std::vector<PlannedDevice> nowhere(static_cast<size_t>(shape.devices()));
      found->second = exchanged_parameters(replica_with(shape, nowhere, 0, {}), model_, jobs_);
    }
    most = std::max(most, found->second);
    count += replicas[i] * shape.shards;
    devices += replicas[i] * shape.devices();
  }
  return exchange_seconds(most, count, cluster_.link_of(group_, devices));
}

PlannedReplica NodeReplicas::replica_with(const Configuration& shape, const std::vector<PlannedDevice>& devices, int64_t copy,
                                          std::vector<StepRow> rows) {
  const auto stages = stages_.try_emplace(shape.name());
  if (stages.second) stages.first->second = cuts_of(shape).front();
  PlannedReplica replica{.tensor_parallel = shape.tensor_parallel,
                         .is_sequence_parallel = shape.is_sequence_parallel,
                         .token_budget = shape.chunk_tokens,
                         .longest_row = shape.reach(),
                         .shards = shape.shards,
                         .rows = std::move(rows)};
  if (const auto at_any_budget = reach_at_any_budget_.find(shape.name()); at_any_budget != reach_at_any_budget_.end()) {
    // Longer rows than it was given need smaller microbatches than its plan may have.
    replica.longest_row = at_any_budget->second;
    for (const StepRow& row : replica.rows) replica.longest_row = std::max(replica.longest_row, row.tokens);
  }
  auto next = devices.begin() + copy * shape.tensor_parallel * shape.pipeline_stages;
  for (const StageShape& stage : stages.first->second) {
    PlannedStage& planned = replica.stages.emplace_back(PlannedStage{.shape = stage});
    planned.devices.assign(next, next + shape.tensor_parallel);
    next += shape.tensor_parallel;
  }
  return replica;
}

}  // namespace cotune
