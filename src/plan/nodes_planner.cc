#include "plan/nodes_planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "plan/cost/replica_stages.h"
#include "plan/deployment/placement.h"
#include "plan/deployment/replica_counts.h"
#include "plan/deployment/system_deployments.h"
#include "plan/plan_totals.h"

namespace cotune {
namespace {

constexpr const char* planner_version = "1";
/// Deployments beyond those that are simulated in full, at most, that a policy under which nothing fits yet is tried on.
constexpr int64_t most_sought = 8;

/// Whether a replica of it is interleaved or has its steps split.
bool has_few_microbatches(const Alternative& alternative) {
  const std::vector<PlannedReplica>& replicas = alternative.plans.front().replicas;
  return std::any_of(replicas.begin(), replicas.end(),
                     [](const PlannedReplica& each) { return each.chunks() > 1 || each.least_microbatches > 1; });
}

/// Takes the shortest step of those that fit, the first where none does.
void show(const Alternative& tried, ConsideredDeployment& shown) {
  const bool is_first = shown.simulated_s == 0 && shown.constraint.empty();
  if (tried.fits() && (shown.simulated_s == 0 || tried.predicted.seconds < shown.simulated_s)) {
    shown.simulated_s = tried.predicted.seconds;
    shown.simulated_bytes = tried.predicted.fullest_bytes;
    shown.constraint = "";
    shown.overflow = {};
  } else if (is_first) {
    shown.simulated_bytes = tried.predicted.fullest_bytes;
    shown.constraint = tried.constraint;
    shown.overflow = tried.overflow;
  }
}

/// Vectors of replica counts, at most, that are all looked at, also with configurations that suit no length best: few rows on few devices go
/// by how many replicas there are for them.
constexpr int64_t few_plans = 32;

bool are_few(const std::vector<BucketCosts>& costs, int64_t devices) {
  std::vector<int64_t> sizes;
  for (const BucketCosts& each : costs) sizes.push_back(each.devices);
  return count_plans(sizes, devices) <= few_plans;
}

/// Numbers of nodes below `count` that are tried by themselves: one less, and halves of all down to one.
std::vector<int64_t> fewer_nodes(int64_t count) {
  std::vector<int64_t> tried;
  if (count > 2) tried.push_back(count - 1);
  for (int64_t nodes = count / 2; nodes > 0; nodes /= 2) {
    if (nodes != count - 1 || count == 2) tried.push_back(nodes);
  }
  return tried;
}

}  // namespace

NodesPlanner::NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                           const std::vector<JobShape>& jobs, const PlanOptions& options,
                           const MemorySaving& saving)
    : model_(model),
      cluster_(cluster),
      group_(group),
      jobs_(jobs),
      options_(options),
      saving_(saving),
      rows_(typical_step(jobs)),
      replica_planner_(model, cluster, group, jobs, options, saving.recompute) {
  for (const StepRow& row : rows_) {
    longest_ = std::max(longest_, row.tokens);
    tokens_ += row.tokens;
  }
  find_configurations();
}

std::vector<Alternative> NodesPlanner::plan(System system, const std::vector<Sharing>& sharing,
                                            const std::vector<PipelineOrder>& orders,
                                            const std::vector<PipelineOrder>& orders_for_few) {
  const bool unlike = system == System::lobra || system == System::lobra_sequential;
  std::vector<Alternative> best;
  for (const Sharing policy : sharing) {
    for (const PipelineOrder order : orders) {
      best.push_back(empty_alternative(system, policy, order));
    }
  }
  if (!no_deployment_.empty()) return best;
  const std::vector<Deployed> found = unlike ? unlike_deployments(system) : alike_deployments(system);
  if (found.empty()) {
    for (Alternative& each : best) {
      each.constraint = fmt::format("out of memory: no configuration with sharded weights holds rows of {} tokens", longest_);
    }
    return best;
  }
  std::map<PipelineOrder, Alternative> best_for_few;
  const int64_t further = device_count() <= 32 ? 32 / device_count() : 0;
  int64_t place = 0, sought = 0;
  for (const Deployed& deployed : found) {
    ConsideredDeployment& shown = deployments_.emplace_back(considered(deployed));
    const bool is_first = place == 0, is_full = place < options_.simulated_deployments,
               is_simulated = place < options_.simulated_deployments + further;
    ++place;
    if (!is_simulated) shown.rejected_for = reason_not_to_simulate(deployed, found, options_.simulated_deployments + further);
    // Estimates have all jobs fused: a policy under which the best of them do not fit may have others that do.
    const auto fits_nowhere = [&](size_t policy) {
      const auto of_policy = std::span(best).subspan(policy * orders.size(), orders.size());
      return std::ranges::none_of(of_policy, &Alternative::fits);
    };
    bool is_sought_here = false;
    for (size_t policy = 0; policy < sharing.size(); ++policy) {
      const bool is_last = policy + 1 == sharing.size(), is_sought = !is_full && sought < most_sought && fits_nowhere(policy);
      is_sought_here = is_sought_here || is_sought;
      std::vector<size_t> tried;  // of the orders
      for (size_t o = 0; o < orders.size(); ++o) {
        // Estimates of few devices are cheap to check: more deployments, in what is taken most.
        const bool is_taken_most = is_simulated && is_last && o + 1 == orders.size();
        if (is_full || is_taken_most || is_sought) tried.push_back(o);
      }
      std::vector<PipelineOrder> tried_orders;
      for (const size_t o : tried) tried_orders.push_back(orders[o]);
      if (is_last && is_simulated) append_suitable(tried_orders, orders_for_few, sharing[policy], deployed);
      if (tried_orders.empty()) continue;
      std::vector<Alternative> alternatives = simulated(deployed, sharing[policy], tried_orders);
      for (size_t i = 0; i < alternatives.size(); ++i) {
        Alternative& each = alternatives[i];
        const bool is_for_few = i >= tried.size();
        if (is_for_few && !has_few_microbatches(each)) continue;
        if (is_full || (is_simulated && is_last) || (!is_simulated && each.fits())) show(each, shown);
        Alternative* kept = nullptr;
        if (is_for_few) {
          kept = &best_for_few.try_emplace(each.order, each).first->second;
        } else {
          kept = &best[policy * orders.size() + tried[i]];
          if (is_first) *kept = each;
        }
        if (each.fits() && (!kept->fits() || each.predicted.seconds < kept->predicted.seconds)) *kept = std::move(each);
      }
    }
    sought += is_sought_here && !is_simulated;
  }
  for (auto& [order, alternative] : best_for_few) best.push_back(std::move(alternative));
  return best;
}

void NodesPlanner::append_suitable(std::vector<PipelineOrder>& orders, const std::vector<PipelineOrder>& candidates, Sharing sharing,
                                   const Deployed& deployed) const {
  for (const PipelineOrder order : candidates) {
    for (size_t i = 0; i < configurations_.size(); ++i) {
      if (deployed.replicas[i] == 0 || !replica_planner_.may_suit(order, sharing, configurations_[i])) continue;
      orders.push_back(order);
      break;
    }
  }
}

bool NodesPlanner::holds_all_rows(const std::vector<int64_t>& replicas) const {
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0 && configurations_[i].chunk_tokens >= longest_) return no_deployment_.empty();
  }
  return false;
}

Alternative NodesPlanner::simulate(System system, const std::vector<int64_t>& replicas, Sharing sharing, PipelineOrder order) {
  COTUNE_CHECK(holds_all_rows(replicas));
  return simulated(deployed(system, replicas), sharing, {order}).front();
}

ConsideredDeployment NodesPlanner::estimate(System system, const std::vector<int64_t>& replicas) {
  COTUNE_CHECK(holds_all_rows(replicas));
  return considered(deployed(system, replicas));
}

ConsideredDeployment NodesPlanner::considered(const Deployed& deployed) const {
  return {.nodes = group_.name,
          .system = deployed.system,
          .recompute = saving_.recompute,
          .replicas = text_of(deployed.replicas),
          .dispatch_s = deployed.dispatch.makespan,
          .estimated_s = deployed.estimated_s,
          .estimated_bytes = deployed.estimated_bytes,
          .estimate_constraint = deployed.constraint,
          .overflow = deployed.overflow};
}

Alternative NodesPlanner::empty_alternative(System system, Sharing sharing, PipelineOrder order) const {
  return {.nodes = group_.name,
          .deployment = system,
          .sharing = sharing,
          .order = order,
          .recompute = saving_.recompute,
          .shards_weights = saving_.most_shards > 1,
          .constraint = no_deployment_};
}

void NodesPlanner::find_configurations() {
  const double mean = static_cast<double>(tokens_) / static_cast<double>(rows_.size());
  const auto mean_row = std::max<int64_t>(1, std::llround(mean));
  int64_t reach = 0;
  ReplicaLimits limits = options_.replicas;
  limits.recompute = saving_.recompute;
  limits.most_shards = saving_.most_shards;
  for (ReplicaCandidate& candidate :
       replica_candidates(model_, jobs_, cluster_, group_, options_.dtype, limits, options_.measured)) {
    const Configuration& shape = candidate.configuration;
    ConsideredConfiguration& shown = considered_.emplace_back(
        ConsideredConfiguration{.nodes = group_.name,
                                .tensor_parallel = shape.tensor_parallel,
                                .pipeline_stages = shape.pipeline_stages,
                                .divides_tokens = shape.divides_tokens,
                                .shards = shape.shards,
                                .recompute = saving_.recompute,
                                .chunk_tokens = shape.chunk_tokens,
                                .tokens_per_device_s = shape.rate(mean_row),
                                .memory = candidate.memory,
                                .chunk_s = candidate.chunk_s,
                                .overflow = candidate.overflow,
                                .rejected_for = candidate.reason});
    if (shape.chunk_tokens > 0 && shape.chunk_tokens < least_budget(options_)) {
      shown.rejected_for = fmt::format("only {} tokens fit; a microbatch takes at least {}",
                                       shape.chunk_tokens, least_budget(options_));
    }
    if (!shown.rejected_for.empty()) continue;
    reach = std::max(reach, shape.chunk_tokens);
    configurations_.push_back(shape);
    place_in_considered_.push_back(considered_.size() - 1);
  }
  if (configurations_.empty()) {
    no_deployment_ = "out of memory: no configuration fits on the devices";
  } else if (reach < longest_) {
    no_deployment_ =
        fmt::format("out of memory: no configuration holds rows of {} tokens, at most {}", longest_, reach);
  } else {
    buckets_ = bucket_rows(rows_, options_.length_buckets, configurations_);
    const std::span<const double> unpadded = options_.layout == Layout::padded ? std::span<const double>() : buckets_.mean;
    costs_ = bucket_costs(configurations_, buckets_.tokens, unpadded);
    for (size_t i = 0; i < configurations_.size(); ++i) calibrate(i);
  }
}

std::string NodesPlanner::text_of(const std::vector<int64_t>& replicas) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0) parts.push_back(fmt::format("{}×{}", configurations_[i].name(), replicas[i]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

bool NodesPlanner::is_wanted(const std::vector<int64_t>& replicas) const {
  if (saving_.most_shards <= 1) return true;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0 && configurations_[i].shards > 1) return true;
  }
  return false;
}

std::string NodesPlanner::reason_not_to_simulate(const Deployed& deployed, const std::vector<Deployed>& found, int64_t simulated) {
  if (!deployed.constraint.empty()) {
    return fmt::format("its estimate does not fit: {}; the best {} are simulated in full", deployed.constraint, simulated);
  }
  double least_s = deployed.estimated_s;
  for (const Deployed& each : found) {
    if (each.constraint.empty()) least_s = std::min(least_s, each.estimated_s);
  }
  return fmt::format("its estimate is {:.1f}% above the least; the best {} are simulated in full",
                     100 * (deployed.estimated_s / least_s - 1), simulated);
}

std::optional<ReplicaChoice> NodesPlanner::estimated(size_t configuration, const std::vector<std::vector<StepRow>>& rows,
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
  PlannedReplica empty = empty_replica(shape, placed->front(), 0);
  empty.rows = rows[slowest];
  return replica_planner_.estimate(empty);
}

void NodesPlanner::calibrate(size_t configuration) {
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
  const std::optional<ReplicaChoice> slowest = estimated(configuration, deal_rows(that_fit, buckets_, dispatch), dispatch);
  if (!slowest || !slowest->fits()) return;
  const double factor = slowest->replica.seconds / dispatch.makespan;
  for (double& seconds : costs.seconds) seconds *= factor;
  costs.fill *= factor;
}

void NodesPlanner::sort(std::vector<Deployed>& found) const {
  std::stable_sort(found.begin(), found.end(),
                   [](const Deployed& a, const Deployed& b) { return a.fitting_s < b.fitting_s; });
}

auto NodesPlanner::deployed(System system, std::vector<int64_t> replicas) -> Deployed {
  Deployed result{.system = system, .replicas = std::move(replicas)};
  result.dispatch = dispatched(result.replicas);
  const auto rows = deal_rows(rows_, buckets_, result.dispatch);
  for (size_t i = 0; i < result.replicas.size(); ++i) {
    const std::optional<ReplicaChoice> slowest = result.replicas[i] > 0 ? estimated(i, rows, result.dispatch) : std::nullopt;
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
  const double exchange = exchange_s(result.replicas);
  result.estimated_s += exchange;
  result.fitting_s += exchange;
  return result;
}

double NodesPlanner::exchange_s(const std::vector<int64_t>& replicas) {
  int64_t most = 0, count = 0, devices = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] == 0) continue;
    const Configuration& shape = configurations_[i];
    const auto [found, is_new] = exchanged_.try_emplace(i);
    if (is_new) {
      const std::vector<PlannedDevice> nowhere(static_cast<size_t>(shape.devices()));
      found->second = exchanged_parameters(empty_replica(shape, nowhere, 0), model_, jobs_);
    }
    most = std::max(most, found->second);
    count += replicas[i] * shape.shards;
    devices += replicas[i] * shape.devices();
  }
  return exchange_seconds(most, count, cluster_.link_of(group_, devices));
}

std::vector<int64_t> NodesPlanner::placed(std::vector<int64_t> replicas) const {
  std::vector<int64_t> sizes;
  std::vector<size_t> configuration;
  for (size_t i = 0; i < replicas.size(); ++i) {
    sizes.insert(sizes.end(), static_cast<size_t>(replicas[i]), configurations_[i].devices());
    configuration.insert(configuration.end(), static_cast<size_t>(replicas[i]), i);
  }
  const std::vector<std::vector<PlannedDevice>> places = place_what_fits(sizes, group_);
  for (size_t r = 0; r < places.size(); ++r) replicas[configuration[r]] -= places[r].empty() ? 1 : 0;
  return replicas;
}

std::optional<int64_t> NodesPlanner::best_fewer(size_t configuration, int64_t most) {
  const BucketCosts& costs = costs_[configuration];
  double work = 0, longest = 0;
  for (size_t j = 0; j < buckets_.sequences.size(); ++j) {
    if (buckets_.sequences[j] == 0) continue;
    work += static_cast<double>(buckets_.sequences[j]) * costs.seconds[j];
    longest = std::max(longest, costs.seconds[j] + costs.fill);
  }
  std::vector<int64_t> replicas(configurations_.size(), 0);
  std::optional<int64_t> best;
  double least = 0;
  for (int64_t count = most - 1; count > 0; --count) {
    replicas[configuration] = count;
    const double exchange = exchange_s(replicas), copies = static_cast<double>(count * costs.copies);
    if (best && std::max(longest, work / copies) + exchange >= least) continue;
    const double seconds = dispatched(replicas).makespan + exchange;
    if (!best || seconds < least) best = count, least = seconds;
  }
  return best;
}

void NodesPlanner::add(std::vector<Deployed>& found, System system, const std::vector<int64_t>& replicas) {
  const bool is_known = std::ranges::any_of(found, [&](const Deployed& other) { return other.replicas == replicas; });
  if (!is_known && is_wanted(replicas) && holds_all_rows(replicas)) found.push_back(deployed(system, replicas));
}

auto NodesPlanner::alike_deployments(System system) -> std::vector<Deployed> {
  std::vector<Deployed> found;
  for (std::vector<int64_t>& replicas : like_replicas(costs_, buckets_.sequences, device_count())) {
    const size_t i = static_cast<size_t>(std::ranges::find_if(replicas, [](int64_t count) { return count > 0; }) - replicas.begin());
    const int64_t most = most_replicas(configurations_[i].devices(), group_);
    replicas[i] = most;
    add(found, system, replicas);
    if (!options_.may_idle) continue;
    if (const std::optional<int64_t> fewer = best_fewer(i, most)) {
      replicas[i] = *fewer;
      add(found, system, replicas);
    }
  }
  sort(found);
  return found;
}

auto NodesPlanner::unlike_deployments(System system) -> std::vector<Deployed> {
  const std::vector<Configuration> proposed =
      are_few(costs_, device_count()) ? configurations_ : propose_configurations(configurations_, buckets_.tokens);
  std::vector<size_t> place;  // of the proposed among all
  for (const Configuration& each : proposed) {
    for (size_t i = 0; i < configurations_.size(); ++i) {
      if (configurations_[i].name() == each.name()) place.push_back(i);
    }
  }
  for (size_t i = 0; i < configurations_.size(); ++i) {
    if (std::count(place.begin(), place.end(), i) > 0) continue;
    considered_[place_in_considered_[i]].rejected_for =
        "no length at which it gives most tokens per device; for like replicas only";
  }
  std::vector<BucketCosts> costs;
  for (const size_t i : place) costs.push_back(costs_[i]);
  // LB-33: unlike replicas never lose against like ones.
  std::vector<Deployed> found = alike_deployments(system);
  double least_s = std::numeric_limits<double>::infinity();
  const auto plan_on = [&](int64_t devices) {
    const Deployment result = plan_deployment(costs, buckets_.sequences, devices, options_.deployment);
    if (system == System::lobra && devices == device_count()) lobra_ = result;
    const auto add_placed = [&](const std::vector<int64_t>& of_proposed) {
      std::vector<int64_t> replicas(configurations_.size(), 0);
      for (size_t i = 0; i < place.size(); ++i) replicas[place[i]] = of_proposed[i];
      add(found, system, placed(std::move(replicas)));
    };
    if (!result.empty()) add_placed(result.replicas);
    for (const ConsideredPlan& each : result.runners_up) add_placed(each.replicas);
    for (const Deployed& each : found) {
      if (each.constraint.empty()) least_s = std::min(least_s, each.estimated_s);
    }
  };
  plan_on(device_count());
  // What fewer nodes save of the exchange may be more than what their devices would compute.
  for (const int64_t nodes : options_.may_idle ? fewer_nodes(group_.count) : std::vector<int64_t>()) {
    const int64_t devices = nodes * group_.devices;
    if (least_seconds(costs, buckets_.sequences, devices) < least_s) plan_on(devices);
  }
  sort(found);
  return found;
}

std::vector<Alternative> NodesPlanner::simulated(const Deployed& deployed, Sharing sharing,
                                                 const std::vector<PipelineOrder>& orders) {
  const auto [found, is_new] = simulated_.try_emplace({deployed.replicas, sharing, orders});
  if (is_new) found->second = simulate_deployment(deployed, sharing, orders);
  std::vector<Alternative> alternatives = found->second;
  for (Alternative& each : alternatives) {
    each.deployment = deployed.system;
    for (Plan& plan : each.plans) plan.deployment = deployed.system;
  }
  return alternatives;
}

std::vector<Alternative> NodesPlanner::simulate_deployment(const Deployed& deployed, Sharing sharing,
                                                           const std::vector<PipelineOrder>& orders) {
  std::vector<const Configuration*> shapes;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < deployed.replicas.size(); ++i) {
    for (int64_t k = 0; k < deployed.replicas[i]; ++k) {
      shapes.push_back(&configurations_[i]);
      sizes.push_back(configurations_[i].devices());
    }
  }
  Plan frame = empty_plan(deployed.system, sharing);
  std::vector<Alternative> result;
  for (const PipelineOrder order : orders) {
    frame.order = order;
    result.push_back(empty_alternative(deployed.system, sharing, order));
    result.back().plans = {frame};
  }
  const auto placed = place_replicas(sizes, group_);
  if (!placed) {
    for (Alternative& each : result) {
      each.plans.clear();
      each.constraint = fmt::format("{} do not lie on whole nodes", text_of(deployed.replicas));
    }
    return result;
  }
  const auto rows = deal_rows(rows_, buckets_, deployed.dispatch);
  size_t r = 0;
  for (size_t unit = 0; unit < shapes.size(); ++unit) {
    for (int64_t copy = 0; copy < shapes[unit]->shards; ++copy, ++r) {
      PlannedReplica empty = empty_replica(*shapes[unit], (*placed)[unit], copy);
      empty.rows = rows[r];
      std::vector<ReplicaChoice> choices = replica_planner_.plan(empty, sharing, orders);
      for (size_t a = 0; a < result.size(); ++a) {
        if (choices[a].overflow.bytes > result[a].overflow.bytes) {
          result[a].constraint =
              fmt::format("{} (replica {}, {})", choices[a].constraint, r, shapes[unit]->name());
          result[a].overflow = choices[a].overflow;
        }
        result[a].is_bound = result[a].is_bound || choices[a].is_bound;
        result[a].plans[0].replicas.push_back(std::move(choices[a].replica));
      }
    }
  }
  for (Alternative& each : result) {
    Plan& plan = each.plans[0];
    each.predicted = plan.predicted = predicted_step(plan, model_, cluster_, jobs_);
  }
  return result;
}

Plan NodesPlanner::empty_plan(System system, Sharing sharing) const {
  Plan plan{.planner = planner_version,
            .model_hash = hash_of(model_),
            .cluster_hash = hash_of(cluster_),
            .profile_hash = options_.profile_hash,
            .dtype = options_.dtype};
  for (const JobShape& job : jobs_) plan.jobs.push_back(job.name);
  plan.deployment = system;
  plan.sharing = sharing;
  plan.layout = options_.layout;
  plan.chunk_size = options_.chunk_size;
  plan.recompute = saving_.recompute ? Recompute::always : Recompute::never;
  return plan;
}

PlannedReplica NodesPlanner::empty_replica(const Configuration& shape,
                                           const std::vector<PlannedDevice>& devices, int64_t copy) {
  const auto stages = stages_.try_emplace(shape.name());
  if (stages.second) {
    stages.first->second =
        balanced_stages(model_, jobs_, shape.pipeline_stages, shape.tensor_parallel, shape.chunk_tokens,
                        replica_planner_.prices(shape.tensor_parallel), group_.device.usable_bytes(),
                        {shape.shards, options_.replicas.gather_overlap}, shape.divides_tokens);
  }
  PlannedReplica replica{.tensor_parallel = shape.tensor_parallel,
                         .divides_tokens = shape.divides_tokens,
                         .token_budget = shape.chunk_tokens,
                         .shards = shape.shards};
  auto next = devices.begin() + copy * shape.tensor_parallel * shape.pipeline_stages;
  for (const StageShape& stage : stages.first->second) {
    PlannedStage& planned = replica.stages.emplace_back(PlannedStage{.shape = stage});
    planned.devices.assign(next, next + shape.tensor_parallel);
    next += shape.tensor_parallel;
  }
  return replica;
}

}  // namespace cotune
