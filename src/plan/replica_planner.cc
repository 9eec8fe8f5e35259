#include "plan/replica_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "plan/cost/weight_sharding.h"
#include "plan/deployment/placement.h"
#include "plan/fusion/hybrid_tasks.h"
#include "plan/fusion/replica_jobs.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

PlannedReplica filled(const PlannedReplica& empty, int64_t budget, int64_t least_microbatches, const PricedRows& priced,
                      const ReplicaPrediction& prediction) {
  PlannedReplica replica = empty;
  replica.token_budget = budget;
  replica.least_microbatches = least_microbatches;
  replica.hybrid_tasks = priced.hybrid_tasks;
  replica.buckets = priced.buckets;
  replica.microbatches = priced.microbatches;
  replica.tokens = priced.tokens;
  replica.processed_tokens = priced.processed_tokens;
  replica.seconds = prediction.seconds;
  replica.bubble = prediction.bubble;
  replica.backward_ratio = priced.backward_ratio;
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    replica.stages[s].busy_s = prediction.busy_s[s];
    replica.stages[s].memory = prediction.memory[s];
  }
  return replica;
}

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

/// What no order is shorter than: the computation of the busiest rank.
double least_seconds(const ReplicaModel& replica, const PricedRows& priced) {
  const std::vector<double> of_rank = computing_seconds(replica, priced);
  return *std::max_element(of_rank.begin(), of_rank.end());
}

constexpr double small_bubble = 0.03;  // of a step, that no smaller microbatches are looked for

/// The best choice under one order so far.
class BestChoice {
 public:
  /// Whether it is the best so far.
  bool consider(const PlannedReplica& empty, int64_t budget, int64_t least_microbatches, const PricedRows& priced,
                const ReplicaPrediction& prediction) {
    if (fits() && (!prediction.fits() || prediction.seconds >= choice_->replica.seconds)) return false;
    choice_ = {.replica = filled(empty, budget, least_microbatches, priced, prediction),
               .constraint = prediction.constraint,
               .overflow = prediction.overflow,
               .is_bound = prediction.is_bound};
    return true;
  }

  /// Whether what takes at least so long cannot be it.
  bool rules_out(double least_s) const { return fits() && least_s >= choice_->replica.seconds; }

  std::optional<ReplicaChoice> take() { return std::move(choice_); }

 private:
  bool fits() const { return choice_ && choice_->constraint.empty(); }

  std::optional<ReplicaChoice> choice_;
};

/// Orders for pipelines with few microbatches.
bool is_for_few(PipelineOrder order) { return order == PipelineOrder::interleaved || order == PipelineOrder::split; }

/// As many microbatches as leave no pipeline idle for long.
int64_t enough_microbatches(size_t stages) { return stages > 1 ? 8 * static_cast<int64_t>(stages) : 0; }

/// The replica with `chunks` runs of layers a rank, all of one length.
PlannedReplica with_chunks(PlannedReplica replica, const ModelConfig& model, int64_t chunks) {
  const std::vector<StageShape> runs =
      even_stages(model, chunks * replica.pipeline_stages(), replica.tensor_parallel, replica.divides_tokens);
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

int64_t least_budget(const PlanOptions& options) {
  return std::max(atom_tokens, options.layout == Layout::chunked ? options.chunk_size : 0);
}

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

std::vector<ReplicaChoice> ReplicaPlanner::plan(const PlannedReplica& empty, Sharing sharing, const std::vector<PipelineOrder>& orders) {
  const std::vector<StepRow>& rows = empty.rows;
  if (rows.empty()) return std::vector<ReplicaChoice>(orders.size(), ReplicaChoice{.replica = without_rows(empty), .constraint = ""});
  const ReplicaModel replica = model_of(empty);
  const std::vector<TaskChoice>& choices = task_choices(replica, rows, sharing);
  std::map<PipelineOrder, ReplicaChoice> of_order;
  std::vector<PipelineOrder> plain;
  for (const PipelineOrder order : orders) {
    std::optional<ReplicaChoice> few;
    if (order == PipelineOrder::interleaved) few = interleaved(empty, rows, sharing, choices);
    if (order == PipelineOrder::split && sharing == Sharing::hybrid) few = split(replica, empty, rows, choices);
    if (few) of_order[order] = std::move(*few);
    const PipelineOrder other = is_for_few(order) ? PipelineOrder::automatic : order;
    if (!few && std::count(plain.begin(), plain.end(), other) == 0) plain.push_back(other);
  }
  std::vector<std::optional<ReplicaChoice>> found = search(
      replica, empty, rows, {.sharing = sharing, .choices = choices, .orders = plain, .wanted = enough_microbatches(replica.stages.size())});
  for (size_t o = 0; o < plain.size(); ++o) of_order[plain[o]] = std::move(found[o].value());
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

std::optional<ReplicaChoice> ReplicaPlanner::interleaved(const PlannedReplica& empty, const std::vector<StepRow>& rows, Sharing sharing,
                                                         const std::vector<TaskChoice>& choices) {
  std::optional<ReplicaChoice> best;
  const std::vector<PipelineOrder> order = {PipelineOrder::interleaved};
  for (const int64_t chunks : {2, 4}) {
    const int64_t stages = empty.pipeline_stages();
    if (stages == 1 || empty.shards > 1 || model_.layer_count % (chunks * stages) != 0) continue;
    const PlannedReplica runs = with_chunks(empty, model_, chunks);
    std::optional<ReplicaChoice> found =
        search(model_of(runs), runs, rows,
               {.sharing = sharing, .choices = choices, .orders = order, .wanted = enough_microbatches(empty.stages.size()), .is_few = true})
            .front();
    if (!found) return best;
    const bool is_better = !best || (found->constraint.empty() && (!best->constraint.empty() || found->replica.seconds < best->replica.seconds));
    if (!is_better) return best;
    best = std::move(found);
  }
  return best;
}

auto ReplicaPlanner::split_choices(const ReplicaModel& model, const std::vector<StepRow>& rows, const std::vector<TaskChoice>& choices)
    -> std::vector<TaskChoice> {
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

std::optional<ReplicaChoice> ReplicaPlanner::split(const ReplicaModel& model, const PlannedReplica& empty, const std::vector<StepRow>& rows,
                                                   const std::vector<TaskChoice>& choices) {
  const std::vector<TaskChoice> splits = split_choices(model, rows, choices);
  const std::vector<PipelineOrder> order = {PipelineOrder::split};
  return splits.empty() ? std::nullopt : search(model, empty, rows, {.choices = splits, .orders = order}).front();
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
  const int64_t wanted = enough_microbatches(replica.stages.size());
  const std::vector<PipelineOrder> order = {PipelineOrder::automatic};
  ReplicaChoice choice;
  for (const OrderEffort effort : {OrderEffort::quick, OrderEffort::full}) {
    choice = search(replica, empty, rows, {.choices = fused, .orders = order, .wanted = wanted, .effort = effort}).front().value();
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
        even_stages(model_, planned.pipeline_stages(), planned.tensor_parallel, planned.divides_tokens);
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
    each.rejected_for = slower > 0 ? fmt::format("{:.1f}% slower", 100 * slower) : "as fast";
  }
  return groupings;
}

std::vector<std::optional<ReplicaChoice>> ReplicaPlanner::search(const ReplicaModel& replica, const PlannedReplica& empty,
                                                                 const std::vector<StepRow>& rows, const Search& tried) {
  int64_t tokens = 0;
  for (const StepRow& row : rows) tokens += row.tokens;
  std::vector<BestChoice> best(tried.orders.size());
  // Each order goes on by itself, so that what one finds does not depend on which others are asked for.
  std::vector<int64_t> in_vain(tried.orders.size(), 0);  // halvings in a row that gained nothing
  std::vector<bool> is_done(tried.orders.size(), false);
  const int64_t least = whole_chunk_steps(least_budget(options_));  // longer rows are chains, which fill a pipeline
  const bool is_fixed =
      options_.token_budget > 0 || (tried.sharing == Sharing::batch_all && replica.stages.size() == 1);  // no choice, or none that is read
  for (int64_t budget = options_.token_budget > 0 ? options_.token_budget : std::max(empty.token_budget, least);;) {
    // No microbatch of a pipeline is larger than the budget.
    if (tried.is_few && (tokens + budget - 1) / budget >= tried.wanted) break;
    std::vector<bool> has_misfit(tried.orders.size(), false), has_gained(tried.orders.size(), false);
    std::vector<bool> waits(tried.orders.size(), false);  // for memory, as the default order does
    int64_t microbatches = 0;
    for (const TaskChoice& choice : tried.choices) {
      if (options_.stop != nullptr && *options_.stop) throw PlanningStopped();
      const PricedRows priced = price_rows(
          replica, rows,
          {tried.sharing, options_.layout, options_.chunk_size, budget, choice.tasks, choice.buckets, choice.least_microbatches},
          &prices(empty.tensor_parallel));
      microbatches = priced.microbatches;
      if (tried.is_few && (microbatches < 2 || microbatches >= tried.wanted)) continue;
      const double least_s = least_seconds(replica, priced);
      const bool is_full_too_early = !holds_a_full_pipeline(replica, priced);
      for (size_t o = 0; o < tried.orders.size(); ++o) {
        if (is_done[o] || best[o].rules_out(least_s)) continue;
        const ReplicaPrediction prediction = predict_replica(replica, priced, tried.orders[o], options_.rounds, tried.effort);
        has_misfit[o] = has_misfit[o] || !prediction.fits();
        const bool keeps_within = tried.effort == OrderEffort::full && tried.orders[o] == PipelineOrder::automatic;
        waits[o] = waits[o] || (keeps_within && is_full_too_early && prediction.bubble > small_bubble);
        has_gained[o] = best[o].consider(empty, budget, choice.least_microbatches, priced, prediction) || has_gained[o];
      }
    }
    const int64_t next = std::max(least, budget / 2 / 64 * 64);
    for (size_t o = 0; o < tried.orders.size(); ++o) {
      in_vain[o] = has_gained[o] ? 0 : in_vain[o] + 1;
      // Smaller microbatches of padded rows have fewer pads; of others, more can be under way where memory is short.
      const bool may_gain = (options_.layout == Layout::padded || waits[o]) && in_vain[o] < 2;
      is_done[o] = is_done[o] || (!has_misfit[o] && microbatches >= tried.wanted && !may_gain);
    }
    if (is_fixed || std::ranges::count(is_done, false) == 0 || next >= budget) break;
    budget = next;
  }
  std::vector<std::optional<ReplicaChoice>> found;
  for (BestChoice& each : best) found.push_back(each.take());
  return found;
}

auto ReplicaPlanner::task_choices(const ReplicaModel& replica, const std::vector<StepRow>& rows, Sharing sharing)
    -> const std::vector<TaskChoice>& {
  static const std::vector<TaskChoice> no_choice = {{}};
  if (sharing != Sharing::hybrid) return no_choice;
  std::map<int32_t, std::vector<int64_t>> lengths;
  for (const StepRow& row : rows) lengths[row.job].push_back(row.tokens);
  std::vector<int32_t> jobs;
  for (const auto& [job, own] : lengths) jobs.push_back(job);
  const int64_t tensor_parallel = replica.stages.front().tensor_parallel;
  // Replicas of one shape get like rows: what is best for the first with these jobs is tried on all.
  const auto [found, is_new] =
      task_choices_.try_emplace({tensor_parallel, replica.stages.front().divides_tokens, replica.stages.size(), replica.sharding.shards,
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
