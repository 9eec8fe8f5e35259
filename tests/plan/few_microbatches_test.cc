/// Interleaved 1F1B and the split of few jobs' steps among the schedules that a plan compares.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/plan_json.h"
#include "plan/plan_report.h"
#include "plan/random_pipeline.h"
#include "plan/replica_models.h"
#include "schedule/pipeline/interleaved.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

using testing::HasSubstr;

int64_t units_of(const std::vector<StepRow>& rows, int32_t job) {
  BatchShape batch{.job = job};
  for (const StepRow& row : rows) {
    if (row.job == job) batch.row_lengths.push_back(row.tokens);
  }
  if (batch.row_lengths.empty()) return 0;
  const std::vector<Atom> atoms = cut_into_atoms(batch, {});
  return std::ranges::count_if(atoms, [](const Atom& atom) { return atom.segments.front().position == 0; });
}

/// What an alternative says of its only replica, from its parts.
void expect_as_its_parts(const PlanningProblem& problem, const Alternative& each) {
  const Plan& plan = each.plans.front();
  const ReplicaModel model = replica_models(plan, problem.model, problem.cluster, problem.jobs).front();
  const PlannedReplica& replica = plan.replicas.front();
  const PricedRows priced = price_rows(model, replica.rows, packing_of(plan, replica));
  const ReplicaPrediction again = predict_replica(model, priced, plan.order, problem.options.rounds);
  EXPECT_EQ(again.seconds, replica.seconds);
  EXPECT_EQ(again.fullest_bytes(), each.predicted.fullest_bytes);
  EXPECT_EQ(again.constraint.empty(), each.fits());
  EXPECT_EQ(plan_from_json(to_json(plan).dump(), "plan.json"), plan);
  if (plan.order == PipelineOrder::interleaved) {
    EXPECT_EQ(model.stages.size(), replica.stages.size() * static_cast<size_t>(replica.chunks()));
    EXPECT_EQ(compute_order(again.runs.front().schedule),
              interleaved_one_f_one_b(again.runs.front().work, BatchBoundary::continuous));
    for (size_t k = 0; k < model.stages.size(); ++k) {
      EXPECT_EQ(model.stages[k].first_layer, k == 0 ? 0 : model.stages[k - 1].last_layer);
      EXPECT_EQ(model.stages[k].has_head, k + 1 == model.stages.size());
      EXPECT_TRUE(replica.stages[k % replica.stages.size()].holds(model.stages[k].first_layer));
    }
    EXPECT_EQ(model.stages.back().last_layer, problem.model.layer_count);
    // Every stage's devices hold the weights of all its layers.
    int64_t weights = 0;
    for (const PlannedStage& stage : replica.stages) weights += stage.memory.weights;
    EXPECT_EQ(weights, frozen_bytes(problem.model, even_stages(problem.model, 1, replica.tensor_parallel).front(), 2));
  }
  if (plan.order == PipelineOrder::split) {
    const auto tasks = static_cast<int64_t>(replica.hybrid_tasks.size());
    EXPECT_LT(tasks, replica.pipeline_stages());
    std::map<int32_t, int64_t> rows, microbatches;
    for (const StepRow& row : replica.rows) ++rows[row.job];
    for (const PipelineMicrobatch& microbatch : priced.works.front().microbatches) ++microbatches[microbatch.hybrid_task];
    int64_t most = 0;
    for (const auto& [job, count] : rows) most = std::max(most, count);
    EXPECT_EQ(replica.least_microbatches, lorapp_microbatches(replica.pipeline_stages(), tasks, most));
    for (int32_t task = 0; task < tasks; ++task) {
      int64_t units = 0;  // that are never cut: long rows, and atoms of short ones
      for (const int32_t job : replica.hybrid_tasks[static_cast<size_t>(task)]) units += units_of(replica.rows, job);
      EXPECT_GE(microbatches[task], std::min(units, replica.least_microbatches));
    }
  }
}

/// One job after the other.
TEST(SumsInTurn, TakeAnOrderForFewMicrobatchesWhereItSuitsAJobAndIsFaster) {
  const auto alternative = [](PipelineOrder order, double seconds) {
    return Alternative{.deployment = System::task_sequential,
                       .sharing = Sharing::separate,
                       .order = order,
                       .plans = {Plan{.order = order}},
                       .predicted = {.seconds = seconds, .device_seconds = seconds, .fullest_bytes = 1}};
  };
  const auto gpipe = PipelineOrder::gpipe, automatic = PipelineOrder::automatic, interleaved = PipelineOrder::interleaved;
  const std::vector<std::vector<Alternative>> of_jobs = {
      {alternative(gpipe, 5), alternative(automatic, 4)},                                // does not suit it
      {alternative(gpipe, 5), alternative(automatic, 4), alternative(interleaved, 3)},   // faster
      {alternative(gpipe, 5), alternative(automatic, 4), alternative(interleaved, 6)}};  // slower
  const std::vector<Alternative> sums = sums_in_turn(of_jobs, {"a", "b", "c"}, 1);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[0].order, gpipe);
  EXPECT_EQ(sums[0].predicted.seconds, 15);
  EXPECT_EQ(sums[1].order, automatic);
  EXPECT_EQ(sums[1].predicted.seconds, 12);
  EXPECT_EQ(sums[2].order, interleaved);
  EXPECT_EQ(sums[2].predicted.seconds, 11);
  ASSERT_EQ(sums[2].plans.size(), 3u);
  EXPECT_EQ(sums[2].plans[1].order, interleaved);
  EXPECT_EQ(sums[2].plans[2].order, automatic);
}

void expect_told(const PlanningResult& result, const std::string& text) {
  if (result.plan()->order == PipelineOrder::interleaved) {
    EXPECT_THAT(text, testing::ContainsRegex("stage 0: layers 0-[0-9]+ and [0-9]+-[0-9]+.*, embedding, busy"));
    EXPECT_THAT(text, HasSubstr("order interleaved"));
  } else if (result.plan()->order == PipelineOrder::split) {
    EXPECT_THAT(text, testing::ContainsRegex("a step of each is split into [0-9]+ microbatches"));
  }
}

TEST(OrdersForFew, AreChosenWhereTheyArePredictedFasterAndElseRejectedWithNumbers) {
  std::map<PipelineOrder, int64_t> chosen, rejected;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    PlanningProblem problem = random_pipeline_problem(seed);
    for (JobShape& job : problem.jobs) job.batch_size *= seed % 2 == 0 ? 1 : 6;  // of few short rows no more microbatches can be made
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    ASSERT_NE(result.plan(), nullptr) << result.advice;
    ++chosen[result.plan()->order];
    expect_told(result, explain(result, problem.cluster));
    for (const Alternative& each : result.alternatives) {
      if (each.plans.empty() || each.plans.front().replicas.size() != 1) continue;
      expect_as_its_parts(problem, each);
      if (each.rejected_for.empty()) continue;
      ++rejected[each.order];
      EXPECT_GT(each.predicted.fullest_bytes, 0);
      if (!each.fits()) continue;
      EXPECT_GE(each.predicted.seconds, 0.999 * result.plan()->predicted.seconds) << each.rejected_for;
    }
  }
  for (const PipelineOrder order : {PipelineOrder::automatic, PipelineOrder::interleaved, PipelineOrder::split}) {
    EXPECT_GT(chosen[order], 0) << name_of(order);
    EXPECT_GT(rejected[order], 2) << name_of(order);
  }
}

TEST(OrdersForFew, AreNotTriedWhereTheyCannotGain) {
  const auto orders_of = [](const PlanningProblem& problem) {
    std::vector<PipelineOrder> orders;
    for (const Alternative& each : make_plan(problem.model, problem.cluster, problem.jobs, problem.options).alternatives) {
      if (std::count(orders.begin(), orders.end(), each.order) == 0) orders.push_back(each.order);
    }
    return orders;
  };
  using testing::ElementsAre;
  PlanningProblem problem = random_pipeline_problem(1);
  while (problem.jobs.size() > 2) problem.jobs.pop_back();
  for (JobShape& job : problem.jobs) {
    job.batch_size = 8;
    job.lengths = histogram_of(std::vector<int64_t>{200});
  }
  EXPECT_THAT(orders_of(problem), ElementsAre(PipelineOrder::automatic, PipelineOrder::interleaved, PipelineOrder::split));
  PlanningProblem one_job = problem;
  one_job.jobs.pop_back();
  EXPECT_THAT(orders_of(one_job), ElementsAre(PipelineOrder::automatic, PipelineOrder::interleaved));
  PlanningProblem odd = problem;
  odd.model.layer_count = 31;
  for (JobShape& job : odd.jobs) std::erase_if(job.adapters, [](const AdapterShape& each) { return each.layer == 31; });
  EXPECT_THAT(orders_of(odd), ElementsAre(PipelineOrder::automatic, PipelineOrder::split));
  PlanningProblem many = problem;  // every microbatch an atom: hundreds
  many.jobs[0].batch_size = many.jobs[1].batch_size = 4096;
  many.options.token_budget = 1024;
  EXPECT_THAT(orders_of(many), testing::Not(testing::Contains(PipelineOrder::interleaved)));
  PlanningProblem one_device = problem;
  one_device.cluster.nodes[0].count = 1;
  one_device.cluster.nodes[0].device.memory_bytes = int64_t{80} << 30;
  EXPECT_THAT(orders_of(one_device), ElementsAre(PipelineOrder::automatic));
}

TEST(PlanJson, OfInterleavedStagesIsCheckedRunByRun) {
  const PlanningProblem problem = random_pipeline_problem(1);
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  const auto interleaved = std::find_if(result.alternatives.begin(), result.alternatives.end(),
                                        [](const Alternative& each) { return each.order == PipelineOrder::interleaved; });
  ASSERT_NE(interleaved, result.alternatives.end());
  const nlohmann::ordered_json good = to_json(interleaved->plans.front());
  const auto refusal = [&](size_t stage, const nlohmann::ordered_json& layers) -> std::string {
    nlohmann::ordered_json bad = good;
    bad["replicas"][0]["stages"][stage]["layers"] = layers;
    try {
      plan_from_json(bad.dump(), "plan.json");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const auto layers = good["replicas"][0]["stages"][1]["layers"].get<std::vector<int64_t>>();
  EXPECT_EQ(refusal(1, layers), "");
  EXPECT_THAT(refusal(1, {layers[0], layers[1]}), HasSubstr("stages[1].layers: must be a list of " + std::to_string(layers.size()) + " numbers"));
  std::vector<int64_t> gap = layers;
  ++gap[2];
  EXPECT_THAT(refusal(1, gap), HasSubstr("stages[1].layers[2]: must be a whole number from " + std::to_string(layers[2])));
  EXPECT_THAT(refusal(0, {0}), HasSubstr("must be [first layer, one past the last]"));
}

}  // namespace
}  // namespace cotune
