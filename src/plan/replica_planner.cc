#include "plan/replica_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "plan/cost/weight_sharding.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "plan/placement.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

Buckets each_by_itself(size_t tasks) {
  Buckets buckets;
  for (size_t task = 0; task < tasks; ++task) buckets.push_back({static_cast<int32_t>(task)});
  return buckets;
}

/// Groups of places in `jobs` as groups of jobs.
HybridTasks named(const std::vector<std::vector<int32_t>>& groups, const std::vector<int32_t>& jobs) {
  HybridTasks tasks;
  for (const std::vector<int32_t>& group : groups) {
    std::vector<int32_t>& members = tasks.emplace_back();
    for (const int32_t index : group) members.push_back(jobs[static_cast<size_t>(index)]);
  }
  return tasks;
}

/// The replica with `chunks` runs of layers a rank, all of one length.
PlannedReplica with_chunks(PlannedReplica replica, const ModelConfig& model, int64_t chunks) {
  const std::vector<StageShape> runs =
      even_stages(model, chunks * replica.pipeline_stages(), replica.tensor_parallel, replica.is_sequence_parallel);
  for (size_t k = 0; k < runs.size(); ++k) {
    PlannedStage& stage = replica.stages[k % replica.stages.size()];
    if (k < replica.stages.size()) {
      stage.shape = runs[k];
    } else {
      stage.further.push_back(runs[k]);
    }
  }
  return replica;
}

}  // namespace

bool is_for_few(PipelineOrder order) { return order == PipelineOrder::interleaved || order == PipelineOrder::split; }

int64_t enough_microbatches(int64_t stages) { return stages > 1 ? 8 * stages : 0; }

bool suits_few(const PlannedReplica& replica) { return replica.chunks() > 1 || replica.least_microbatches > 1; }

StageMachine ReplicaPlanner::machine(int64_t tensor_parallel) const {
  return {.device = group_.device,
          .link = cluster_.link_of(group_, tensor_parallel),
          .dtype = options_.dtype,
          .measured = options_.measured,
          .recompute = recompute_};
}

StagePrices& ReplicaPlanner::prices(int64_t tensor_parallel) {
  return prices_.try_emplace(tensor_parallel, model_, jobs_, machine(tensor_parallel)).first->second;
}

ReplicaModel ReplicaPlanner::model_of(const PlannedReplica& empty) const {
  ReplicaModel replica{.model = model_,
                       .jobs = jobs_,
                       .stages = {},
                       .machine = machine(empty.tensor_parallel),
                       .links = links_between_stages(cluster_, empty.stages),
                       .memory_limit = group_.device.usable_bytes(),
                       .sharding = {empty.shards, options_.replicas.gather_overlap},
                       .between_copies = cluster_.link_of(group_, empty.devices() * empty.shards)};
  replica.stages = empty.layer_runs();
  replica.chunks = empty.chunks();
  return replica;
}

PlannedReplica ReplicaPlanner::without_rows(PlannedReplica replica) {
  StagePrices& own = prices(replica.tensor_parallel);
  for (PlannedStage& stage : replica.stages) {
    stage.memory = with_sharded_weights(own.resident(stage.shape), model_, stage.shape, {replica.shards, options_.replicas.gather_overlap},
                                        own.machine());
  }
  return replica;
}

std::vector<ReplicaChoice> ReplicaPlanner::plan(const PlannedReplica& empty, Sharing sharing, const std::vector<PipelineOrder>& orders,
                                                const std::vector<ReplicaChoice>& like) {
  if (empty.rows.empty()) return std::vector<ReplicaChoice>(orders.size(), ReplicaChoice{.replica = without_rows(empty), .constraint = ""});
  const ReplicaModel replica = model_of(empty);
  const std::vector<TaskChoice>& choices = task_choices(replica, empty.rows, sharing);
  std::map<PipelineOrder, ReplicaChoice> of_order;
  std::vector<PipelineOrder> plain;
  for (size_t o = 0; o < orders.size(); ++o) {
    const PipelineOrder order = orders[o];
    if (!like.empty()) {
      const PipelineOrder own = suits_few(like[o].replica) || !is_for_few(order) ? order : PipelineOrder::automatic;
      if (of_order.contains(own)) continue;
      if (std::optional<ReplicaChoice> taken = as(like[o], empty, sharing, own)) {
        of_order[own] = std::move(*taken);
        continue;
      }
    }
    std::optional<ReplicaChoice> found;
    if (order == PipelineOrder::interleaved) found = interleaved(empty, sharing, choices);
    if (order == PipelineOrder::split && sharing == Sharing::hybrid) found = split(replica, empty, choices);
    const PipelineOrder other = is_for_few(order) ? PipelineOrder::automatic : order;
    if (!found && std::count(plain.begin(), plain.end(), other) == 0) plain.push_back(other);
    if (found) of_order[order] = std::move(*found);
  }
  std::erase_if(plain, [&](PipelineOrder order) { return of_order.contains(order); });
  if (!plain.empty()) {
    std::vector<std::optional<ReplicaChoice>> found =
        search(replica, empty, {.sharing = sharing, .choices = choices, .orders = plain, .wanted = enough_microbatches(empty.pipeline_stages())});
    for (size_t o = 0; o < plain.size(); ++o) of_order[plain[o]] = std::move(found[o].value());
  }
  std::vector<ReplicaChoice> result;
  for (const PipelineOrder order : orders) {
    result.push_back(of_order.at(of_order.contains(order) ? order : PipelineOrder::automatic));
  }
  return result;
}

bool ReplicaPlanner::may_suit(PipelineOrder order, Sharing sharing, const Configuration& shape) const {
  if (order == PipelineOrder::interleaved) {
    return shape.pipeline_stages > 1 && shape.shards == 1 && model_.layer_count % (2 * shape.pipeline_stages) == 0;
  }
  return order != PipelineOrder::split || (sharing == Sharing::hybrid && shape.pipeline_stages > 2 && jobs_.size() > 1);
}

std::optional<ReplicaChoice> ReplicaPlanner::interleaved(const PlannedReplica& empty, Sharing sharing, const std::vector<TaskChoice>& choices) {
  std::optional<ReplicaChoice> best;
  const std::vector<PipelineOrder> order = {PipelineOrder::interleaved};
  for (const int64_t chunks : {2, 4}) {
    const int64_t stages = empty.pipeline_stages();
    if (stages == 1 || empty.shards > 1 || model_.layer_count % (chunks * stages) != 0) continue;
    const PlannedReplica runs = with_chunks(empty, model_, chunks);
    std::optional<ReplicaChoice> found =
        search(model_of(runs), runs,
               {.sharing = sharing, .choices = choices, .orders = order, .wanted = enough_microbatches(empty.pipeline_stages()), .is_few = true})
            .front();
    if (!found) return best;
    const bool is_better = !best || (found->constraint.empty() && (!best->constraint.empty() || found->replica.seconds < best->replica.seconds));
    if (!is_better) return best;
    best = std::move(found);
  }
  return best;
}

std::vector<TaskChoice> ReplicaPlanner::split_choices(const ReplicaModel& model, const std::vector<StepRow>& rows,
                                                      const std::vector<TaskChoice>& choices) {
  std::map<int32_t, int64_t> rows_of;
  for (const StepRow& row : rows) ++rows_of[row.job];
  std::vector<TaskChoice> splits;
  const auto stages = static_cast<int64_t>(model.rank_count());
  for (TaskChoice each : choices) {
    const auto tasks = static_cast<int64_t>(each.tasks.size());
    if (tasks < 2 || tasks >= stages || each.buckets.size() != each.tasks.size()) continue;
    int64_t most = 1;
    for (const auto& [job, count] : rows_of) most = std::max(most, count);
    each.least_microbatches = lorapp_microbatches(stages, tasks, most);
    if (each.least_microbatches > 1) splits.push_back(std::move(each));
  }
  return splits;
}

std::optional<ReplicaChoice> ReplicaPlanner::split(const ReplicaModel& model, const PlannedReplica& empty, const std::vector<TaskChoice>& choices) {
  const std::vector<TaskChoice> splits = split_choices(model, empty.rows, choices);
  const std::vector<PipelineOrder> order = {PipelineOrder::split};
  return splits.empty() ? std::nullopt : search(model, empty, {.choices = splits, .orders = order}).front();
}

std::optional<ReplicaChoice> ReplicaPlanner::as(const ReplicaChoice& like, const PlannedReplica& empty, Sharing sharing, PipelineOrder order) {
  if (!like.fits()) return std::nullopt;
  const PlannedReplica runs = like.replica.chunks() > 1 ? with_chunks(empty, model_, like.replica.chunks()) : empty;
  BudgetSearch tried{.sharing = sharing,
                     .choices = {{}},
                     .orders = {order},
                     .budget = like.replica.token_budget};
  if (sharing == Sharing::hybrid) tried.choices = {{like.replica.hybrid_tasks, like.replica.buckets, like.replica.least_microbatches}};
  std::optional<ReplicaChoice> found = search(model_of(runs), runs, tried).front();
  if (!found || !found->fits()) return std::nullopt;
  found->is_like = true;
  return found;
}

ReplicaChoice ReplicaPlanner::estimate(const PlannedReplica& empty) {
  const std::vector<StepRow>& rows = empty.rows;
  std::vector<int32_t> jobs;
  for (const StepRow& row : rows) {
    if (std::find(jobs.begin(), jobs.end(), row.job) == jobs.end()) jobs.push_back(row.job);
  }
  std::sort(jobs.begin(), jobs.end());
  const ReplicaModel replica = model_of(empty);
  const std::vector<TaskChoice> fused = {{{jobs}, each_by_itself(1)}};
  const int64_t wanted = enough_microbatches(empty.pipeline_stages());
  const std::vector<PipelineOrder> order = {PipelineOrder::automatic};
  ReplicaChoice choice;
  for (const EstimatedOrder estimated : {EstimatedOrder::continuous_one_f_one_b, EstimatedOrder::chosen}) {
    choice = search(replica, empty, {.choices = fused, .orders = order, .wanted = wanted, .estimated = estimated}).front().value();
    if (choice.fits()) break;
  }
  return choice;
}

std::vector<ConsideredGrouping> ReplicaPlanner::groupings(const PlannedReplica& planned, PipelineOrder order) {
  const std::vector<StepRow>& rows = planned.rows;
  const ReplicaModel replica = model_of(planned);
  PlannedReplica whole = planned;  // with one run of layers a rank, as plan() asks for hybrid tasks
  if (planned.chunks() > 1) {
    for (PlannedStage& stage : whole.stages) stage.further.clear();
    const std::vector<StageShape> even =
        even_stages(model_, planned.pipeline_stages(), planned.tensor_parallel, planned.is_sequence_parallel);
    for (size_t s = 0; s < even.size(); ++s) whole.stages[s].shape = even[s];
  }
  std::vector<TaskChoice> choices = task_choices(model_of(whole), rows, Sharing::hybrid);
  if (planned.least_microbatches > 1) choices = split_choices(replica, rows, choices);
  const TaskChoice own{planned.hybrid_tasks, planned.buckets, planned.least_microbatches};
  if (std::find(choices.begin(), choices.end(), own) == choices.end()) choices.insert(choices.begin(), own);
  std::vector<ConsideredGrouping> groupings;
  for (const TaskChoice& choice : choices) {
    const PricedRows priced = price_rows(
        replica, rows,
        {Sharing::hybrid, options_.layout, options_.chunk_size, planned.token_budget, choice.tasks, choice.buckets, choice.least_microbatches},
        &prices(planned.tensor_parallel));
    const ReplicaPrediction prediction = predict_replica(replica, priced, order, options_.rounds);
    ConsideredGrouping& each = groupings.emplace_back();
    each.hybrid_tasks = priced.hybrid_tasks;
    each.buckets = priced.buckets;
    each.least_microbatches = choice.least_microbatches;
    each.fullest_bytes = prediction.fullest_bytes();
    each.constraint = prediction.constraint;
    each.overflow = prediction.overflow;
    each.seconds = prediction.seconds;
    each.is_bound = prediction.is_bound;
    if (!prediction.fits()) each.rejected_for = prediction.constraint;
    if (!prediction.fits() || choice == own) continue;
    const double slower = prediction.seconds / planned.seconds - 1;
    // Only the three best of all budgets have their hybrid tasks exchanged when a plan is made.
    each.rejected_for = slower > 0 ? fmt::format("{:.1f}% slower", 100 * slower)
                        : slower < 0 ? fmt::format("{:.1f}% faster, but not among the three best before exchanges", -100 * slower)
                                     : "as fast";
  }
  return groupings;
}

std::vector<std::optional<ReplicaChoice>> ReplicaPlanner::search(const ReplicaModel& model, const PlannedReplica& empty, const BudgetSearch& tried) {
  return search_budgets(model, empty, tried, options_, prices(empty.tensor_parallel));
}

const std::vector<TaskChoice>& ReplicaPlanner::task_choices(const ReplicaModel& replica, const std::vector<StepRow>& rows, Sharing sharing) {
  static const std::vector<TaskChoice> no_choice = {{}};
  if (sharing != Sharing::hybrid) return no_choice;
  std::map<int32_t, std::vector<int64_t>> lengths;
  for (const StepRow& row : rows) lengths[row.job].push_back(row.tokens);
  std::vector<int32_t> jobs;
  for (const auto& [job, own] : lengths) jobs.push_back(job);
  const int64_t tensor_parallel = replica.stages.front().tensor_parallel;
  // Replicas of one shape get like rows: what is best for the first with these jobs is tried on all.
  const auto [found, is_new] =
      task_choices_.try_emplace({tensor_parallel, replica.stages.front().is_sequence_parallel, replica.stages.size(), replica.sharding.shards,
                                 jobs});
  std::vector<TaskChoice>& choices = found->second;
  if (!is_new) return choices;
  const auto add = [&](HybridTasks tasks, Buckets buckets) {
    TaskChoice choice{std::move(tasks), std::move(buckets)};
    if (std::find(choices.begin(), choices.end(), choice) == choices.end()) choices.push_back(std::move(choice));
  };
  HybridTasks apart;
  for (const int32_t job : jobs) apart.push_back({job});
  add({jobs}, each_by_itself(1));
  add(apart, each_by_itself(apart.size()));
  const bool interleaves = has_clocks(replica.stages.front());
  if (interleaves && jobs.size() > 1) {
    std::vector<double> tokens;
    for (const auto& [job, own] : lengths) {
      tokens.push_back(static_cast<double>(std::accumulate(own.begin(), own.end(), int64_t{0})));
    }
    add(apart, balanced_buckets(tokens, static_cast<int64_t>(jobs.size() + 1) / 2));
    add(named(balanced_buckets(tokens, 2), jobs), {{0, 1}});
  }
  ReplicaJobs own{
      .model = model_,
      .jobs = {},
      .stages = replica.stages,
      .machine = replica.machine,
      .between_stages =
          cluster_.link_of(group_, tensor_parallel * static_cast<int64_t>(replica.stages.size())),
      .memory_bytes = replica.memory_limit,
      .sharding = replica.sharding,
      .between_copies = replica.between_copies};
  for (const int32_t job : jobs) {
    JobShape& shape = own.jobs.emplace_back(jobs_[static_cast<size_t>(job)]);
    for (AdapterShape& each : shape.adapters) each.job = static_cast<int32_t>(own.jobs.size()) - 1;
    shape.batch_size = static_cast<int64_t>(lengths[job].size());
    shape.lengths = histogram_of(lengths[job]);
  }
  const ChosenHybridTasks planned = choose_hybrid_tasks(fusion_problems(own));
  if (planned.chosen.fits()) {
    // One stage that waits for its collectives interleaves nothing: its tasks run one after the other.
    const bool is_alone = !interleaves && replica.stages.size() == 1;
    add(named(planned.chosen.tasks, jobs), is_alone ? each_by_itself(planned.chosen.tasks.size()) : planned.chosen.buckets);
  }
  return choices;
}

}  // namespace cotune
