#include "plan/nodes_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "plan/deployment_candidates.h"
#include "plan/placement.h"
#include "plan/plan_totals.h"

namespace cotune {
namespace {

constexpr const char* planner_version = "1";
/// Deployments beyond those that are simulated in full, at most, that a policy under which nothing fits yet is tried on.
constexpr int64_t most_sought = 8;

/// How many deployments are simulated under the last policy and order: estimates of few devices, and of few rows, whose microbatches are few, are
/// cheap to check, and are off by more, as they know no interleaved or split pipeline.
int64_t most_simulated(const PlanOptions& options, int64_t devices, int64_t rows) {
  constexpr int64_t few = 32, most_more = 8;
  return options.simulated_deployments + (devices <= few ? few / devices : 0) + std::min(most_more, few / std::max<int64_t>(1, rows));
}

bool has_few_microbatches(const Alternative& alternative) { return std::ranges::any_of(alternative.plans.front().replicas, suits_few); }

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

/// Why a deployment is not simulated in full where so many of those found are.
std::string reason_not_to_simulate(const EstimatedDeployment& deployed, const std::vector<EstimatedDeployment>& found, int64_t simulated) {
  if (!deployed.constraint.empty()) {
    return fmt::format("its estimate does not fit: {}; the best {} are simulated in full", deployed.constraint, simulated);
  }
  double least_s = deployed.estimated_s;
  for (const EstimatedDeployment& each : found) {
    if (each.constraint.empty()) least_s = std::min(least_s, each.estimated_s);
  }
  return fmt::format("its estimate is {:.1f}% above the least; the best {} are simulated in full",
                     100 * (deployed.estimated_s / least_s - 1), simulated);
}

Alternative of_system(System system, Alternative alternative) {
  alternative.deployment = system;
  for (Plan& plan : alternative.plans) plan.deployment = system;
  return alternative;
}

/// Whichever fits and is shorter, the first where neither does.
void keep_shorter(Alternative& kept, Alternative&& other) {
  if (other.fits() && (!kept.fits() || other.predicted.seconds < kept.predicted.seconds)) kept = std::move(other);
}

/// The best alternative so far of every policy and order, and of each order for few microbatches that suited something.
class BestAlternatives {
 public:
  /// `empty`: by policy, then order.
  BestAlternatives(std::vector<Alternative> empty, size_t orders) : best_(std::move(empty)), orders_(orders) {}

  bool fits_nowhere(size_t policy) const {
    return std::ranges::none_of(std::span(best_).subspan(policy * orders_, orders_), &Alternative::fits);
  }
  /// is_first: of all deployments, whose constraint is told where nothing fits.
  void take(size_t policy, Alternative&& tried, bool is_first) {
    const auto of_policy = std::span(best_).subspan(policy * orders_, orders_);
    const auto kept = std::ranges::find(of_policy, tried.order, &Alternative::order);
    if (is_first) {
      *kept = std::move(tried);
    } else {
      keep_shorter(*kept, std::move(tried));
    }
  }
  void take_for_few(Alternative&& tried) {
    const PipelineOrder order = tried.order;
    const auto kept = for_few_.find(order);
    if (kept == for_few_.end()) {
      for_few_.emplace(order, std::move(tried));
    } else {
      keep_shorter(kept->second, std::move(tried));
    }
  }
  void refuse(const std::string& constraint) {
    for (Alternative& each : best_) each.constraint = constraint;
  }
  std::vector<Alternative> all() && {
    for (auto& [order, alternative] : for_few_) best_.push_back(std::move(alternative));
    return std::move(best_);
  }

 private:
  std::vector<Alternative> best_;
  size_t orders_;
  std::map<PipelineOrder, Alternative> for_few_;
};

}  // namespace

NodesPlanner::NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                           const std::vector<JobShape>& jobs, const PlanOptions& options,
                           const MemorySaving& saving, std::vector<StepRow> rows)
    : model_(model), cluster_(cluster), jobs_(jobs), options_(options), nodes_(model, cluster, group, jobs, options, saving, std::move(rows)) {}

std::vector<Alternative> NodesPlanner::plan(System system, const std::vector<Sharing>& sharing,
                                            const std::vector<PipelineOrder>& orders,
                                            const std::vector<PipelineOrder>& orders_for_few) {
  std::vector<Alternative> empty;
  for (const Sharing policy : sharing) {
    for (const PipelineOrder order : orders) empty.push_back(empty_alternative(system, policy, order));
  }
  BestAlternatives best(std::move(empty), orders.size());
  if (!nodes_.no_deployment().empty()) return std::move(best).all();
  const std::vector<EstimatedDeployment> found = candidates(system);
  if (found.empty()) {
    best.refuse(fmt::format("out of memory: no configuration with sharded weights holds rows of {} tokens", nodes_.longest_row()));
  }
  const int64_t simulated_count = most_simulated(options_, nodes_.device_count(), nodes_.buckets().rows());
  int64_t sought = 0;
  for (size_t place = 0; place < found.size(); ++place) {
    const EstimatedDeployment& deployed = found[place];
    const bool is_full = std::cmp_less(place, options_.simulated_deployments), is_simulated = std::cmp_less(place, simulated_count);
    ConsideredDeployment& shown = deployments_.emplace_back(considered(system, deployed));
    if (!is_simulated) shown.rejected_for = reason_not_to_simulate(deployed, found, simulated_count);
    bool is_sought_here = false;
    for (size_t policy = 0; policy < sharing.size(); ++policy) {
      const bool is_preferred = is_simulated && policy + 1 == sharing.size();
      // Estimates have all jobs fused: a policy under which the best of them do not fit may have others that do.
      const bool is_sought = !is_full && sought < most_sought && best.fits_nowhere(policy);
      is_sought_here = is_sought_here || is_sought;
      std::vector<PipelineOrder> tried;
      if (is_full || is_sought) {
        tried = orders;
      } else if (is_preferred) {
        tried = {orders.back()};
      }
      const size_t tried_for_many = tried.size();
      if (is_preferred) append_suitable(tried, orders_for_few, sharing[policy], deployed);
      std::vector<Alternative> alternatives = simulated(system, deployed, sharing[policy], tried);
      for (size_t i = 0; i < alternatives.size(); ++i) {
        Alternative& each = alternatives[i];
        const bool is_for_few = i >= tried_for_many;
        if (is_for_few && !has_few_microbatches(each)) continue;
        if (is_full || is_preferred || (!is_simulated && each.fits())) show(each, shown);
        if (is_for_few) {
          best.take_for_few(std::move(each));
        } else {
          best.take(policy, std::move(each), place == 0);
        }
      }
    }
    sought += is_sought_here && !is_simulated;
  }
  return std::move(best).all();
}

void NodesPlanner::take_like(System unlike, std::vector<Alternative>& found, const std::vector<Alternative>& alike) {
  for (const Alternative& each : alike) {
    if (!each.fits()) continue;
    const auto is_alike = [&](const Alternative& other) { return other.sharing == each.sharing && other.order == each.order; };
    const auto kept = std::ranges::find_if(found, is_alike);
    if (kept != found.end() && kept->fits() && kept->predicted.seconds <= each.predicted.seconds) continue;
    Alternative taken = of_system(unlike, each);
    const std::string replicas = replicas_text(taken.plans.front());
    for (ConsideredDeployment& shown : deployments_) {
      if (shown.system == unlike && shown.replicas == replicas) show(taken, shown);
    }
    if (kept != found.end()) {
      *kept = std::move(taken);
    } else {
      found.push_back(std::move(taken));
    }
  }
}

std::vector<EstimatedDeployment> NodesPlanner::candidates(System system) {
  if (system == System::task_fused || system == System::task_sequential) return like_deployments(nodes_, options_);
  UnlikeDeployments unlike = unlike_deployments(nodes_, options_);
  if (system == System::lobra) lobra_ = std::move(unlike.closed_form);
  return std::move(unlike.found);
}

void NodesPlanner::append_suitable(std::vector<PipelineOrder>& orders, const std::vector<PipelineOrder>& candidates, Sharing sharing,
                                   const EstimatedDeployment& deployed) const {
  for (const PipelineOrder order : candidates) {
    for (size_t i = 0; i < deployed.replicas.size(); ++i) {
      if (deployed.replicas[i] == 0 || !nodes_.planner().may_suit(order, sharing, nodes_.configurations()[i])) continue;
      orders.push_back(order);
      break;
    }
  }
}

Alternative NodesPlanner::simulate(System system, const std::vector<int64_t>& replicas, Sharing sharing, PipelineOrder order) {
  COTUNE_CHECK(holds_all_rows(replicas));
  return simulated(system, nodes_.estimate(replicas), sharing, {order}).front();
}

ConsideredDeployment NodesPlanner::estimate(System system, const std::vector<int64_t>& replicas) {
  COTUNE_CHECK(holds_all_rows(replicas));
  return considered(system, nodes_.estimate(replicas));
}

ConsideredDeployment NodesPlanner::considered(System system, const EstimatedDeployment& deployed) const {
  return {.nodes = nodes_.group().name,
          .system = system,
          .recompute = nodes_.saving().recompute,
          .replicas = nodes_.text_of(deployed.replicas),
          .dispatch_s = deployed.dispatch.makespan,
          .estimated_s = deployed.estimated_s,
          .estimated_bytes = deployed.estimated_bytes,
          .estimate_constraint = deployed.constraint,
          .overflow = deployed.overflow};
}

Alternative NodesPlanner::empty_alternative(System system, Sharing sharing, PipelineOrder order) const {
  return {.nodes = nodes_.group().name,
          .deployment = system,
          .sharing = sharing,
          .order = order,
          .recompute = nodes_.saving().recompute,
          .shards_weights = nodes_.saving().most_shards > 1,
          .constraint = nodes_.no_deployment()};
}

std::vector<Alternative> NodesPlanner::simulated(System system, const EstimatedDeployment& deployed, Sharing sharing,
                                                 const std::vector<PipelineOrder>& orders) {
  if (orders.empty()) return {};
  const auto [found, is_new] = simulated_.try_emplace({deployed.replicas, sharing, orders});
  if (is_new) found->second = simulate_deployment(system, deployed, sharing, orders);
  std::vector<Alternative> alternatives;
  for (const Alternative& each : found->second) alternatives.push_back(of_system(system, each));
  return alternatives;
}

std::vector<Alternative> NodesPlanner::simulate_deployment(System system, const EstimatedDeployment& deployed, Sharing sharing,
                                                           const std::vector<PipelineOrder>& orders) {
  std::vector<const Configuration*> shapes;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < deployed.replicas.size(); ++i) {
    for (int64_t k = 0; k < deployed.replicas[i]; ++k) {
      shapes.push_back(&nodes_.configurations()[i]);
      sizes.push_back(nodes_.configurations()[i].devices());
    }
  }
  Plan frame = empty_plan(system, sharing);
  std::vector<Alternative> result;
  for (const PipelineOrder order : orders) {
    frame.order = order;
    result.push_back(empty_alternative(system, sharing, order));
    result.back().plans = {frame};
  }
  const auto placed = place_replicas(sizes, nodes_.group());
  if (!placed) {
    for (Alternative& each : result) {
      each.plans.clear();
      each.constraint = fmt::format("{} do not lie on whole nodes", nodes_.text_of(deployed.replicas));
    }
    return result;
  }
  const auto rows = nodes_.dealt(deployed.dispatch);
  std::vector<PlannedReplica> empty;
  std::vector<const Configuration*> shape_of;  // by replica
  for (size_t unit = 0; unit < shapes.size(); ++unit) {
    for (int64_t copy = 0; copy < shapes[unit]->shards; ++copy) {
      empty.push_back(nodes_.replica_with(*shapes[unit], (*placed)[unit], copy, rows[empty.size()]));
      shape_of.push_back(shapes[unit]);
    }
  }
  std::vector<size_t> longest_first(empty.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::ranges::stable_sort(longest_first, std::greater(), [&](size_t r) { return deployed.dispatch.replicas[r].seconds; });
  std::map<std::pair<const Configuration*, std::set<int32_t>>, std::vector<ReplicaChoice>> of_longest;  // by shape and jobs with rows
  std::vector<std::vector<ReplicaChoice>> choices(empty.size());
  for (const size_t r : longest_first) {
    std::set<int32_t> jobs;
    for (const StepRow& row : empty[r].rows) jobs.insert(row.job);
    std::vector<ReplicaChoice>& like = of_longest[{shape_of[r], std::move(jobs)}];
    choices[r] = nodes_.planner().plan(empty[r], sharing, orders, like);
    if (like.empty()) like = choices[r];
  }
  for (size_t a = 0; a < orders.size(); ++a) {
    std::vector<ReplicaChoice*> of_order;
    for (std::vector<ReplicaChoice>& each : choices) of_order.push_back(&each[a]);
    shorten_slowest(of_order, empty, sharing, orders[a]);
  }
  for (size_t r = 0; r < empty.size(); ++r) {
    for (size_t a = 0; a < result.size(); ++a) {
      ReplicaChoice& choice = choices[r][a];
      if (choice.overflow.bytes > result[a].overflow.bytes) {
        result[a].constraint = fmt::format("{} (replica {}, {})", choice.constraint, r, shape_of[r]->name());
        result[a].overflow = choice.overflow;
      }
      result[a].is_bound = result[a].is_bound || choice.is_bound;
      result[a].plans[0].replicas.push_back(std::move(choice.replica));
    }
  }
  for (Alternative& each : result) {
    Plan& plan = each.plans[0];
    each.predicted = plan.predicted = predicted_step(plan, model_, cluster_, jobs_);
  }
  return result;
}

void NodesPlanner::shorten_slowest(const std::vector<ReplicaChoice*>& choices, const std::vector<PlannedReplica>& empty, Sharing sharing,
                                   PipelineOrder order) {
  if (is_for_few(order) && std::ranges::none_of(choices, [](const ReplicaChoice* each) { return suits_few(each->replica); })) return;
  const auto seconds_of = [](const ReplicaChoice* each) { return each->replica.seconds; };
  while (true) {
    const auto slowest = static_cast<size_t>(std::ranges::max_element(choices, {}, seconds_of) - choices.begin());
    if (!choices[slowest]->is_like) return;
    ReplicaChoice alone = nodes_.planner().plan(empty[slowest], sharing, {order}).front();
    if (!alone.fits() || alone.replica.seconds >= choices[slowest]->replica.seconds) return;
    *choices[slowest] = std::move(alone);
  }
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
  plan.recompute = nodes_.saving().recompute ? Recompute::always : Recompute::never;
  return plan;
}

}  // namespace cotune
