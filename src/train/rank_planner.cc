#include "train/rank_planner.h"

#include <algorithm>
#include <limits>

#include "engine/labelled_rows.h"
#include "plan/cost/replica_stages.h"
#include "schedule/memory.h"
#include "train/training_job.h"

namespace cotune {
namespace {

std::vector<JobShape> shapes_of(std::span<const std::unique_ptr<TrainingJob>> jobs) {
  std::vector<JobShape> shapes;
  for (const auto& job : jobs) shapes.push_back(job->shape());
  return shapes;
}

/// Among ranks that divide layers. Prices are of sums in the compute dtype; they travel in that of accumulations (TensorGroup::sum).
LinkSpec link_of_sums(const Link& link, const StageMachine& machine) {
  const double share = static_cast<double>(machine.element_size()) / static_cast<double>(std::max<int64_t>(4, machine.element_size()));
  return {.bandwidth = link.bytes_per_s * share, .latency = link.latency_s};
}

/// Of LoRA's factors the one that every rank of a group has whole: their gradients are summed once a step.
int64_t summand_count(const ModelConfig& model, const AdapterShape& adapter) {
  if (adapter.method != AdapterMethod::lora) return 0;
  const ProjectionShape shape = projection_shape(model, adapter.projection);
  return adapter.width * (divides_outputs(adapter.projection) ? shape.in : shape.out);
}

}  // namespace

PipelineLayout balanced_layout(const ModelConfig& model, std::span<const std::unique_ptr<TrainingJob>> jobs,
                               const DeviceCosts& costs, const PackingPolicy& policy, const Parallel& parallel) {
  const std::vector<JobShape> shapes = shapes_of(jobs);
  StageMachine machine = costs.machine;
  machine.recompute = policy.recompute;
  machine.link = link_of_sums(thread_link, machine);
  StagePrices prices(model, shapes, machine);
  return {.stages = balanced_stages(model, shapes, parallel.pipeline, parallel.tensor, policy.token_budget, prices,
                                    std::numeric_limits<int64_t>::max()),
          .stage_rank = one_stage_per_rank(static_cast<int32_t>(parallel.pipeline))};
}

RankPlanner::RankPlanner(const ModelConfig& model, std::span<const std::unique_ptr<TrainingJob>> jobs,
                         const DeviceCosts& costs, PipelineLayout layout, RankOrder order, const Link& link)
    : model_(model), machine_(costs.machine), jobs_(shapes_of(jobs)), layout_(std::move(layout)) {
  machine_.link = link_of_sums(link, machine_);
  options_.order = order;
  options_.cluster.link = link;
  options_.bytes_per_token = model_.hidden_size * costs.machine.element_size();
  options_.most_in_flight = layout_.rank_count();
  for (const JobShape& job : jobs_) add_optimizer_step(job);
}

void RankPlanner::add(const TrainingJob& job) {
  jobs_.push_back(job.shape());
  add_optimizer_step(jobs_.back());
}

/// As if every rank had as many of the job's values. Where ranks divide layers, the sum of gradients that goes before it is its part.
void RankPlanner::add_optimizer_step(const JobShape& job) {
  int64_t values = 0, summands = 0;
  for (const AdapterShape& adapter : job.adapters) {
    values += parameter_count(model_, adapter);
    summands += summand_count(model_, adapter);
  }
  const auto bytes = static_cast<double>(summands / layout_.rank_count() * machine_.element_size());
  options_.optimizer_s.push_back(optimizer_seconds(values / layout_.worker_count(), job.moment_count, machine_.device) +
                                 (summands > 0 ? all_reduce_seconds(bytes, layout_.tensor_parallel(), machine_.link) : 0));
}

StagePrices& RankPlanner::prices(bool recompute) {
  StageMachine machine = machine_;
  machine.recompute = recompute;
  return prices_.try_emplace(recompute, model_, jobs_, machine).first->second;
}

RankPlan RankPlanner::plan(std::vector<StepPlan> plans, std::span<const JobRound> rounds) {
  struct Shape {
    MicrobatchCounts counts;
    size_t jobs = 0;
  };
  std::map<const StepPlan*, std::vector<Shape>> shapes;  // the plans stay where they are when their vector is moved
  for (const StepPlan& plan : plans) shapes[&plan];
  for (auto& [plan, own] : shapes) {
    const std::vector<int64_t> labelled = labelled_rows(*plan, rounds);
    for (size_t m = 0; m < plan->microbatches.size(); ++m) {
      Shape& shape = own.emplace_back();
      shape.counts = count_microbatch(plan->microbatches[m], labelled[m]);
      shape.counts.job_tokens.resize(jobs_.size());
      shape.counts.job_atoms.resize(jobs_.size());
      std::vector<int32_t> jobs;
      for (const Atom& atom : plan->microbatches[m].atoms) jobs.push_back(atom.job);
      std::sort(jobs.begin(), jobs.end());
      jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
      shape.jobs = prices(plan->policy.recompute).jobs_number(jobs);
    }
  }
  const auto cost = [&](const StepPlan& plan, size_t microbatch, size_t stage) {
    const Shape& shape = shapes.at(&plan)[microbatch];
    const PricedStage& priced = prices(plan.policy.recompute).at(layout_.stages[stage], shape.jobs);
    const StageSeconds seconds = priced.seconds(shape.counts);
    return StageCost{seconds.forward, seconds.backward, priced.kept_bytes(shape.counts)};
  };
  return plan_ranks(std::move(plans), layout_, cost, options_);
}

}  // namespace cotune
