#include "plan/make_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "plan/cost/replica_stages.h"
#include "plan/deployment/placement.h"
#include "plan/deployment/step_dispatch.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "plan/plan_advice.h"
#include "schedule/memory.h"

namespace cotune {
namespace {

constexpr const char* planner_version = "1";

/// Replica counts over the configurations of a kind of nodes, with the rows that each replica gets.
struct Deployed {
  System system = System::lobra;
  std::vector<int64_t> replicas;
  Dispatch dispatch;
};

/// All jobs of a list together, on one kind of nodes.
class NodesPlanner {
 public:
  NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
               const std::vector<JobShape>& jobs, const PlanOptions& options)
      : model_(model),
        cluster_(cluster),
        group_(group),
        jobs_(jobs),
        options_(options),
        rows_(typical_step(jobs)) {
    for (const StepRow& row : rows_) {
      longest_ = std::max(longest_, row.tokens);
      tokens_ += row.tokens;
    }
    find_configurations();
  }

  const std::vector<ConsideredConfiguration>& considered() const { return considered_; }
  const std::vector<ConsideredDeployment>& considered_deployments() const { return deployments_; }
  const Deployment& lobra() const { return lobra_; }

  /// The best alternative for each sharing policy and order, in that order.
  std::vector<Alternative> plan(System system, const std::vector<Sharing>& sharing,
                                const std::vector<PipelineOrder>& orders) {
    const bool unlike = system == System::lobra || system == System::lobra_sequential;
    std::vector<Alternative> best;
    for (const Sharing policy : sharing) {
      for (const PipelineOrder order : orders) {
        best.push_back(
            {.deployment = system, .sharing = policy, .order = order, .constraint = no_deployment_});
      }
    }
    if (!no_deployment_.empty()) return best;
    bool is_first = true;
    for (const Deployed& deployed : unlike ? unlike_deployments(system) : alike_deployments(system)) {
      ConsideredDeployment& shown = deployments_.emplace_back(ConsideredDeployment{
          group_.name, system, text_of(deployed.replicas), deployed.dispatch.makespan, 0});
      size_t place = 0;
      for (const Sharing policy : sharing) {
        for (Alternative& tried : simulate_deployment(deployed, policy, orders)) {
          Alternative& kept = best[place++];
          if (tried.fits() && (shown.simulated_s == 0 || tried.predicted.seconds < shown.simulated_s)) {
            shown.simulated_s = tried.predicted.seconds;
          }
          const bool better =
              tried.fits() && (!kept.fits() || tried.predicted.seconds < kept.predicted.seconds);
          if (better || is_first) kept = std::move(tried);
        }
      }
      is_first = false;
    }
    return best;
  }

 private:
  StageMachine machine(int64_t tensor_parallel) const {
    return {.device = group_.device,
            .link = cluster_.link_of(group_, tensor_parallel),
            .dtype = options_.dtype,
            .measured = options_.measured};
  }

  int64_t device_count() const { return group_.count * group_.devices; }
  /// A replica must take an atom, or a chunk, and is of use for rows that fit whole.
  int64_t least_budget() const {
    return std::max(atom_tokens, options_.layout == Layout::chunked ? options_.chunk_size : 0);
  }

  void find_configurations() {
    const double mean = static_cast<double>(tokens_) / static_cast<double>(rows_.size());
    const auto mean_row = std::max<int64_t>(1, std::llround(mean));
    int64_t reach = 0;
    for (ReplicaCandidate& candidate : replica_candidates(model_, jobs_, cluster_, group_, options_.dtype,
                                                          options_.replicas, options_.measured)) {
      const Configuration& shape = candidate.configuration;
      ConsideredConfiguration& shown = considered_.emplace_back();
      shown = {group_.name,          shape.tensor_parallel, shape.pipeline_stages, shape.chunk_tokens,
               shape.rate(mean_row), candidate.memory,      candidate.reason};
      if (shape.chunk_tokens > 0 && shape.chunk_tokens < least_budget()) {
        shown.rejected_for = fmt::format("only {} tokens fit; a microbatch takes at least {}",
                                         shape.chunk_tokens, least_budget());
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
      costs_ = step_costs(configurations_, buckets_, options_.layout);
    }
  }

  std::string text_of(const std::vector<int64_t>& replicas) const {
    std::vector<std::string> parts;
    for (size_t i = 0; i < replicas.size(); ++i) {
      if (replicas[i] > 0) parts.push_back(fmt::format("{}×{}", configurations_[i].name(), replicas[i]));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  void keep_best(std::vector<Deployed>& found) const {
    std::stable_sort(found.begin(), found.end(), [](const Deployed& a, const Deployed& b) {
      return a.dispatch.makespan < b.dispatch.makespan;
    });
    if (static_cast<int64_t>(found.size()) > options_.simulated_deployments) {
      found.resize(static_cast<size_t>(options_.simulated_deployments));
    }
  }

  std::vector<Deployed> alike_deployments(System system) const {
    std::vector<Deployed> found;
    for (size_t i = 0; i < configurations_.size(); ++i) {
      const int64_t count = device_count() / configurations_[i].devices();
      if (configurations_[i].chunk_tokens < longest_ || count == 0) continue;
      Deployed& each =
          found.emplace_back(Deployed{system, std::vector<int64_t>(configurations_.size(), 0), {}});
      each.replicas[i] = count;
      each.dispatch =
          dispatch_balanced(costs_, each.replicas, buckets_.sequences, options_.deployment.dispatch);
    }
    keep_best(found);
    return found;
  }

  std::vector<Deployed> unlike_deployments(System system) {
    const std::vector<Configuration> proposed = propose_configurations(configurations_, buckets_.tokens);
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
    const Deployment result = plan_deployment(costs, buckets_.sequences, device_count(), options_.deployment);
    if (system == System::lobra) lobra_ = result;
    std::vector<Deployed> found;
    const auto add = [&](const std::vector<int64_t>& replicas) {
      Deployed& each =
          found.emplace_back(Deployed{system, std::vector<int64_t>(configurations_.size(), 0), {}});
      for (size_t i = 0; i < place.size(); ++i) each.replicas[place[i]] = replicas[i];
      each.dispatch =
          dispatch_balanced(costs_, each.replicas, buckets_.sequences, options_.deployment.dispatch);
    };
    if (!result.empty()) add(result.replicas);
    for (const ConsideredPlan& each : result.runners_up) add(each.replicas);
    // LB-33: unlike replicas never lose against like ones.
    for (Deployed& each : alike_deployments(system)) {
      const bool is_known = std::any_of(
          found.begin(), found.end(), [&](const Deployed& other) { return other.replicas == each.replicas; });
      if (!is_known) found.push_back(std::move(each));
    }
    keep_best(found);
    return found;
  }

  /// One alternative per order.
  std::vector<Alternative> simulate_deployment(const Deployed& deployed, Sharing sharing,
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
      result.push_back({.deployment = deployed.system, .sharing = sharing, .order = order, .plans = {frame}});
    }
    const auto placed = place_replicas(sizes, group_);
    if (!placed) {
      for (Alternative& each : result) {
        each.plans.clear();
        each.constraint = fmt::format("{} do not lie on whole nodes", text_of(deployed.replicas));
      }
      return result;
    }
    const auto rows = deal_rows(rows_, buckets_, deployed.replicas, deployed.dispatch);
    for (size_t r = 0; r < shapes.size(); ++r) {
      PlannedReplica replica = empty_replica(*shapes[r], (*placed)[r]);
      add_replica(replica, rows[r], sharing, result);
    }
    for (Alternative& each : result) {
      each.rows = {rows};
      add_up(each);
    }
    return result;
  }

  Plan empty_plan(System system, Sharing sharing) const {
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
    return plan;
  }

  PlannedReplica empty_replica(const Configuration& shape, const std::vector<PlannedDevice>& devices) {
    const auto stages = stages_.try_emplace({shape.tensor_parallel, shape.pipeline_stages});
    if (stages.second) {
      stages.first->second =
          balanced_stages(model_, jobs_, shape.pipeline_stages, shape.tensor_parallel, shape.chunk_tokens,
                          machine(shape.tensor_parallel), group_.device.usable_bytes());
    }
    PlannedReplica replica{.tensor_parallel = shape.tensor_parallel, .token_budget = shape.chunk_tokens};
    auto next = devices.begin();
    for (const StageShape& stage : stages.first->second) {
      PlannedStage& planned = replica.stages.emplace_back(PlannedStage{.shape = stage});
      planned.devices.assign(next, next + shape.tensor_parallel);
      next += shape.tensor_parallel;
    }
    return replica;
  }

  /// The replica with its best token budget under every order, added to the alternatives' plans.
  void add_replica(const PlannedReplica& empty, const std::vector<StepRow>& rows, Sharing sharing,
                   std::vector<Alternative>& alternatives) {
    if (rows.empty()) {
      for (Alternative& each : alternatives) each.plans[0].replicas.push_back(empty);
      return;
    }
    ReplicaModel replica{.model = model_,
                         .jobs = jobs_,
                         .stages = {},
                         .machine = machine(empty.tensor_parallel),
                         .links = links_between_stages(cluster_, empty.stages),
                         .memory_limit = group_.device.usable_bytes()};
    int64_t longest = 0;
    for (const StepRow& row : rows) longest = std::max(longest, row.tokens);
    for (const PlannedStage& stage : empty.stages) replica.stages.push_back(stage.shape);
    struct Best {
      PlannedReplica replica;
      ReplicaPrediction prediction;
      bool known = false;
    };
    std::vector<Best> best(alternatives.size());
    const int64_t least = (std::max(longest, least_budget()) + 63) / 64 * 64;
    int64_t microbatches = 0;
    for (int64_t budget = std::max(empty.token_budget, longest);;) {
      bool goes_on = false;
      for (const auto& tasks : task_choices(replica, rows, sharing)) {
        const PricedRows priced =
            price_rows(replica, rows, {sharing, options_.layout, options_.chunk_size, budget, tasks});
        microbatches = priced.microbatches;
        for (size_t a = 0; a < alternatives.size(); ++a) {
          ReplicaPrediction prediction =
              predict_replica(replica, priced, alternatives[a].order, options_.rounds);
          goes_on = goes_on || !prediction.fits();
          Best& kept = best[a];
          const bool better =
              prediction.fits() && (!kept.prediction.fits() || prediction.seconds < kept.prediction.seconds);
          if (kept.known && !better && (kept.prediction.fits() || prediction.fits())) continue;
          kept.known = true;
          kept.replica = filled(empty, budget, priced, prediction);
          prediction.runs.clear();
          kept.prediction = std::move(prediction);
        }
      }
      // A pipeline wants several microbatches per stage.
      goes_on = goes_on ||
                (replica.stages.size() > 1 && microbatches < 8 * static_cast<int64_t>(replica.stages.size()));
      const int64_t next = std::max(least, budget / 2 / 64 * 64);
      if (!goes_on || next >= budget) break;
      budget = next;
    }
    for (size_t a = 0; a < alternatives.size(); ++a) {
      Plan& plan = alternatives[a].plans[0];
      const std::string& constraint = best[a].prediction.constraint;
      if (!constraint.empty() && alternatives[a].constraint.empty()) {
        alternatives[a].constraint = fmt::format("{} (replica {}, <{},{}>)", constraint, plan.replicas.size(),
                                                 empty.tensor_parallel, empty.stages.size());
      }
      plan.replicas.push_back(std::move(best[a].replica));
    }
  }

  /// Partitions of the jobs with rows that are tried; one that is not read where the policy leaves no choice.
  const std::vector<HybridTasks>& task_choices(const ReplicaModel& replica, const std::vector<StepRow>& rows,
                                               Sharing sharing) {
    static const std::vector<HybridTasks> no_choice = {{}};
    if (sharing != Sharing::hybrid) return no_choice;
    std::map<int32_t, std::vector<int64_t>> lengths;
    for (const StepRow& row : rows) lengths[row.job].push_back(row.tokens);
    std::vector<int32_t> jobs;
    for (const auto& [job, own] : lengths) jobs.push_back(job);
    // Replicas of one shape get like rows: what is best for the first with these jobs is tried on all.
    const auto [found, is_new] =
        task_choices_.try_emplace({replica.stages.front().tensor_parallel, replica.stages.size(), jobs});
    std::vector<HybridTasks>& choices = found->second;
    if (!is_new) return choices;
    HybridTasks apart;
    for (const int32_t job : jobs) apart.push_back({job});
    choices = {{jobs}, apart};
    ReplicaJobs own{
        .model = model_,
        .jobs = {},
        .stages = replica.stages,
        .machine = replica.machine,
        .between_stages = cluster_.link_of(
            group_, replica.stages.front().tensor_parallel * static_cast<int64_t>(replica.stages.size())),
        .memory_bytes = replica.memory_limit};
    for (const int32_t job : jobs) {
      JobShape& shape = own.jobs.emplace_back(jobs_[static_cast<size_t>(job)]);
      for (AdapterShape& each : shape.adapters) each.job = static_cast<int32_t>(own.jobs.size()) - 1;
      shape.batch_size = static_cast<int64_t>(lengths[job].size());
      shape.lengths = histogram_of(lengths[job]);
    }
    const ChosenHybridTasks planned = choose_hybrid_tasks(fusion_problems(own));
    if (!planned.chosen.fits()) return choices;
    HybridTasks named;
    for (const std::vector<int32_t>& task : planned.chosen.tasks) {
      auto& members = named.emplace_back();
      for (const int32_t index : task) members.push_back(jobs[static_cast<size_t>(index)]);
    }
    if (named.size() != 1 && named.size() != jobs.size()) choices.push_back(std::move(named));
    return choices;
  }

  static PlannedReplica filled(const PlannedReplica& empty, int64_t budget, const PricedRows& priced,
                               const ReplicaPrediction& prediction) {
    PlannedReplica replica = empty;
    replica.token_budget = budget;
    replica.hybrid_tasks = priced.hybrid_tasks;
    for (size_t task = 0; task < replica.hybrid_tasks.size(); ++task)
      replica.buckets.push_back({static_cast<int32_t>(task)});
    replica.rows = priced.rows;
    replica.microbatches = priced.microbatches;
    replica.tokens = priced.tokens;
    replica.processed_tokens = priced.processed_tokens;
    replica.seconds = prediction.seconds;
    replica.bubble = prediction.bubble;
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      replica.stages[s].busy_s = prediction.busy_s[s];
      replica.stages[s].memory = prediction.memory[s];
    }
    return replica;
  }

  /// Ring all-reduce of adapter gradients, f32, on the rank that holds most of them.
  double exchange_seconds(const Plan& plan) const {
    if (plan.replicas.size() < 2) return 0;
    int64_t most = 0;
    bool one_node = true;
    const PlannedDevice& first = plan.replicas.front().stages.front().devices.front();
    for (const PlannedReplica& replica : plan.replicas) {
      for (const PlannedStage& stage : replica.stages) {
        int64_t parameters = 0;
        for (const JobShape& job : jobs_) {
          for (const AdapterShape& each : job.adapters) {
            if (each.layer >= stage.shape.first_layer && each.layer < stage.shape.last_layer) {
              parameters += parameter_count(model_, each);
            }
          }
        }
        most = std::max(most, parameters);
        for (const PlannedDevice& device : stage.devices) one_node = one_node && device.node == first.node;
      }
    }
    return all_reduce_seconds(static_cast<double>(most * 4), static_cast<int64_t>(plan.replicas.size()),
                              one_node ? group_.link : cluster_.network);
  }

  void add_up(Alternative& alternative) const {
    Plan& plan = alternative.plans[0];
    PredictedStep& step = plan.predicted;
    double busy = 0, while_computing = 0;
    for (const PlannedReplica& replica : plan.replicas) {
      step.seconds = std::max(step.seconds, replica.seconds);
      step.tokens += replica.tokens;
      step.processed_tokens += replica.processed_tokens;
      while_computing += replica.seconds * static_cast<double>(replica.devices());
      for (const PlannedStage& stage : replica.stages) {
        busy += stage.busy_s * static_cast<double>(replica.tensor_parallel);
        step.fullest_bytes = std::max(step.fullest_bytes, stage.memory.total());
      }
    }
    if (!alternative.fits()) step.seconds = 0;  // of those that do fit, which says nothing
    if (step.seconds > 0) {
      step.exchange_s = exchange_seconds(plan);
      step.seconds += step.exchange_s;
      step.device_seconds = step.seconds * static_cast<double>(device_count());
      step.bubble = std::max(0.0, 1 - busy / while_computing);
      step.idle = std::max(0.0, 1 - busy / step.device_seconds);
      step.cost = step.device_seconds / 3600 * group_.device.cost_per_hour;
    }
    alternative.predicted = step;
  }

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  std::vector<StepRow> rows_;
  int64_t longest_ = 0, tokens_ = 0;
  std::string no_deployment_;
  std::vector<Configuration> configurations_;  ///< that fit
  std::vector<size_t> place_in_considered_;
  StepBuckets buckets_;
  std::vector<BucketCosts> costs_;
  std::map<std::pair<int64_t, int64_t>, std::vector<StageShape>> stages_;
  std::map<std::tuple<int64_t, size_t, std::vector<int32_t>>, std::vector<HybridTasks>> task_choices_;
  std::vector<ConsideredConfiguration> considered_;
  std::vector<ConsideredDeployment> deployments_;
  Deployment lobra_;
};

/// The job as the only one.
JobShape alone(JobShape job) {
  for (AdapterShape& each : job.adapters) each.job = 0;
  return job;
}

/// One job after the other: a sum over jobs for every order.
std::vector<Alternative> plan_in_turn(const ModelConfig& model, const ClusterSpec& cluster,
                                      const NodeGroup& group, const std::vector<JobShape>& jobs,
                                      const PlanOptions& options, System system) {
  std::vector<Alternative> sums;
  for (const PipelineOrder order : options.orders) {
    sums.push_back({.deployment = system, .sharing = Sharing::separate, .order = order});
  }
  double devices = static_cast<double>(group.count * group.devices);
  std::vector<double> busy(sums.size(), 0), computing(sums.size(), 0);
  for (const JobShape& job : jobs) {
    const std::vector<JobShape> only = {alone(job)};
    const std::vector<Alternative> own =
        NodesPlanner(model, cluster, group, only, options).plan(system, {Sharing::separate}, options.orders);
    for (size_t a = 0; a < sums.size(); ++a) {
      const PredictedStep& step = own[a].predicted;
      if (!own[a].fits() && sums[a].fits())
        sums[a].constraint = fmt::format("{}: {}", job.name, own[a].constraint);
      sums[a].plans.insert(sums[a].plans.end(), own[a].plans.begin(), own[a].plans.end());
      sums[a].rows.insert(sums[a].rows.end(), own[a].rows.begin(), own[a].rows.end());
      PredictedStep& sum = sums[a].predicted;
      sum.seconds += step.seconds;
      sum.exchange_s += step.exchange_s;
      sum.tokens += step.tokens;
      sum.processed_tokens += step.processed_tokens;
      sum.device_seconds += step.device_seconds;
      sum.fullest_bytes = std::max(sum.fullest_bytes, step.fullest_bytes);
      sum.cost += step.cost;
      const double own_busy = (1 - step.idle) * step.device_seconds;
      busy[a] += own_busy;
      computing[a] += step.bubble < 1 ? own_busy / (1 - step.bubble) : 0;
    }
  }
  for (size_t a = 0; a < sums.size(); ++a) {
    PredictedStep& sum = sums[a].predicted;
    if (!sums[a].fits()) {
      sum = {
          .tokens = sum.tokens, .processed_tokens = sum.processed_tokens, .fullest_bytes = sum.fullest_bytes};
    } else if (sum.seconds > 0) {
      sum.idle = std::max(0.0, 1 - busy[a] / (sum.seconds * devices));
      sum.bubble = computing[a] > 0 ? std::max(0.0, 1 - busy[a] / computing[a]) : 0;
    }
  }
  return sums;
}

bool is_sequential(System system) {
  return system == System::task_sequential || system == System::lobra_sequential;
}

/// Whether the first is to be taken in place of the second.
bool is_preferred(const Alternative& a, const Alternative& b) {
  if (a.predicted.seconds < 0.999 * b.predicted.seconds) return true;
  return a.predicted.seconds <= b.predicted.seconds && a.predicted.fullest_bytes < b.predicted.fullest_bytes;
}

void choose(PlanningResult& result) {
  for (size_t a = 0; a < result.alternatives.size(); ++a) {
    const Alternative& each = result.alternatives[a];
    if (!each.fits() || is_sequential(each.deployment)) continue;
    if (!result.chosen || is_preferred(each, result.alternatives[*result.chosen])) result.chosen = a;
  }
  for (size_t a = 0; a < result.alternatives.size(); ++a) {
    Alternative& each = result.alternatives[a];
    if (!each.fits()) {
      each.rejected_for = each.constraint;
    } else if (!result.chosen || a != *result.chosen) {
      const Alternative* best = result.chosen ? &result.alternatives[*result.chosen] : nullptr;
      const double ratio = best == nullptr ? 1 : each.predicted.seconds / best->predicted.seconds;
      each.rejected_for =
          best == nullptr  ? "runs jobs one after the other"
          : ratio > 1.0005 ? fmt::format("{:.1f}% slower", 100 * (ratio - 1))
          : ratio < 0.9995
              ? fmt::format("{:.1f}% faster, but runs jobs one after the other", 100 * (1 - ratio))
          : each.predicted.fullest_bytes > best->predicted.fullest_bytes ? "as fast, with more memory"
                                                                         : "as fast";
    }
  }
}

}  // namespace

PlanningResult make_plan(const ModelConfig& model, const ClusterSpec& cluster,
                         const std::vector<JobShape>& jobs, const PlanOptions& options) {
  COTUNE_CHECK(!jobs.empty() && !cluster.nodes.empty(), "{} jobs, {} kinds of nodes", jobs.size(),
               cluster.nodes.size());
  COTUNE_CHECK(options.replicas.most_shards == 1, "copies that share their weights are no replicas of a plan yet");
  PlanningResult result;
  std::vector<Alternative> best;
  double least = 0;
  for (const NodeGroup& group : cluster.nodes) {
    NodesPlanner planner(model, cluster, group, jobs, options);
    PlanningResult here;
    for (const System system : options.deployments) {
      std::vector<Alternative> found = is_sequential(system)
                                           ? plan_in_turn(model, cluster, group, jobs, options, system)
                                           : planner.plan(system, options.sharing, options.orders);
      std::move(found.begin(), found.end(), std::back_inserter(here.alternatives));
    }
    choose(here);
    result.configurations.insert(result.configurations.end(), planner.considered().begin(),
                                 planner.considered().end());
    result.deployments.insert(result.deployments.end(), planner.considered_deployments().begin(),
                              planner.considered_deployments().end());
    const double seconds = here.chosen ? here.alternatives[*here.chosen].predicted.seconds : 0;
    const bool is_better = here.chosen && (!result.chosen || seconds < least);
    if (is_better || &group == &cluster.nodes.front()) {
      result.alternatives = std::move(here.alternatives);
      result.chosen = here.chosen;
      result.lobra = planner.lobra();
      least = seconds;
    }
  }
  if (!result.chosen) result.advice = advise(model, cluster, jobs, options.dtype, options.replicas);
  return result;
}

std::vector<ReplicaModel> replica_models(const Plan& plan, const ModelConfig& model,
                                         const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                         const MeasuredTimes* measured) {
  std::vector<ReplicaModel> models;
  for (const PlannedReplica& replica : plan.replicas) {
    const NodeGroup& group = nodes_called(cluster, replica.stages.front().devices.front().nodes);
    ReplicaModel& each = models.emplace_back();
    each.model = model;
    each.jobs = jobs;
    for (const PlannedStage& stage : replica.stages) each.stages.push_back(stage.shape);
    each.machine = {.device = group.device,
                    .link = cluster.link_of(group, replica.tensor_parallel),
                    .dtype = plan.dtype,
                    .measured = measured};
    each.links = links_between_stages(cluster, replica.stages);
    each.memory_limit = group.device.usable_bytes();
  }
  return models;
}

}  // namespace cotune
