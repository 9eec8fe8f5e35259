// Prices that follow measured times while a run goes on: what they correct, and that nothing else changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/rank_group.h"
#include "train/balanced_layout.h"
#include "train/price_refit.h"
#include "train/rank_planner.h"
#include "train/round_planner.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

DeviceCosts costs_of_cpu(const std::string& source) {
  DeviceCosts costs;
  costs.machine.device = device_preset("cpu");
  costs.machine.dtype = "float32";
  costs.source = source;
  return costs;
}

/// A pipeline of two ranks with a stage each, on which microbatch m is priced m + 1 (forward) and 2 · (m + 1) (backward).
class TwoStages : public ::testing::Test {
 protected:
  TwoStages() {
    prices.stage_count = 2;
    prices.optimizer_s = {0.5};
    for (int32_t m = 0; m < 4; ++m) {
      for (int stage = 0; stage < 2; ++stage) prices.work.push_back({m + 1.0, 2 * (m + 1.0)});
    }
    for (int32_t stage = 0; stage < 2; ++stage) {
      std::vector<Action>& list = actions.emplace_back();
      for (int32_t m = 0; m < 4; ++m) {
        list.push_back({.kind = ActionKind::forward, .microbatch = m, .stage = stage});
        list.push_back({.kind = ActionKind::recompute, .microbatch = m, .first_layer = 0, .last_layer = 1, .stage = stage});
        list.push_back({.kind = ActionKind::backward, .microbatch = m, .stage = stage});
      }
      list.push_back({.kind = ActionKind::optimizer_step, .job = 0, .job_step = 1, .stage = stage});
    }
  }

  /// Rounds in which stage s takes scales[s] times what is predicted, and 0.1 s besides.
  void run(PriceRefit& refit, const std::array<double, 2>& scales, double round_s) {
    std::vector<std::vector<SimulatedSpan>> spans(2);
    for (size_t stage = 0; stage < 2; ++stage) {
      double now = 0;
      for (size_t i = 0; i < actions[stage].size(); ++i) {
        const Action& action = actions[stage][i];
        const double predicted = action.kind == ActionKind::optimizer_step ? 0.5 : action.microbatch + 1.0;
        const double seconds = scales[stage] * predicted + (action.kind == ActionKind::recompute ? 0 : 0.1);
        spans[stage].push_back({i, now, now + seconds});
        now += seconds;
      }
    }
    const std::vector<MeasuredRank> ranks{{actions[0], spans[0]}, {actions[1], spans[1]}};
    const PricedRounds priced{.replicas = {prices}, .uncorrected_s = 30, .corrected_s = 30};
    refit.observe(priced, {&ranks, 1}, 1, round_s);
  }

  ReplicaPrices prices;
  std::vector<std::vector<Action>> actions;
};

TEST_F(TwoStages, AreCorrectedEachByWhatItTook) {
  PriceRefit refit({2});
  run(refit, {9, 9}, 500);  // warms up
  EXPECT_TRUE(refit.prices().whole.is_none());
  for (int i = 0; i < 3; ++i) run(refit, {2, 3}, 90);
  const std::vector<WorkCorrections>& stages = refit.prices().stages.front();
  for (size_t stage = 0; stage < 2; ++stage) {
    EXPECT_NEAR(stages[stage].forward.scale, 2.0 + static_cast<double>(stage), 1e-6);
    EXPECT_NEAR(stages[stage].forward.per_call_s, 0.1, 1e-6);
    EXPECT_NEAR(stages[stage].backward.scale, 2.0 + static_cast<double>(stage), 1e-6) << "recomputation is part of it";
    EXPECT_NEAR(stages[stage].step.of(0.5), (2.0 + static_cast<double>(stage)) * 0.5 + 0.1, 1e-6);
  }
  EXPECT_NEAR(refit.prices().whole.forward.scale, 2.5, 1e-6);
  EXPECT_NEAR(refit.settled_ratio(), 2.5 + 4 * 0.1 / (2 * 2.5 * 3), 1e-3);
}

TEST_F(TwoStages, SayHowLongBackwardsTookBesideForwards) {  // MX-15
  PriceRefit refit({2});
  run(refit, {9, 9}, 500);  // warms up
  EXPECT_EQ(refit.measured().forward, 0);
  EXPECT_EQ(refit.measured().backward, 0);
  for (int i = 0; i < 3; ++i) run(refit, {2, 3}, 90);
  // Forwards of 1 + 2 + 3 + 4 each; what is run again for a backward is part of it.
  EXPECT_NEAR(refit.measured().forward, 3 * ((2 * 10 + 4 * 0.1) + (3 * 10 + 4 * 0.1)), 1e-9);
  EXPECT_NEAR(refit.measured().backward, 3 * ((2 * 20 + 4 * 0.1) + (3 * 20 + 4 * 0.1)), 1e-9);
}

TEST_F(TwoStages, CountHowFarPredictionsWereOffBeforeAndAfter) {
  PriceRefit refit({2});
  run(refit, {1, 1}, 500);
  EXPECT_EQ(refit.errors().rounds, 0);
  for (int i = 0; i < 5; ++i) run(refit, {2, 2}, 60);
  EXPECT_EQ(refit.errors().rounds, 4) << "the first of them had nothing to go by";
  EXPECT_NEAR(refit.errors().before(), 0.5, 1e-9);
  EXPECT_NEAR(refit.errors().after(), 0.5 * 0.8 / 60, 1e-6) << "two of the four by the stages' corrections alone";
}

TEST_F(TwoStages, LearnAStagesCorrectionOnce) {
  PriceRefit refit({2});
  const auto priced_now = [&] {
    PricedRounds priced{.replicas = {prices}, .uncorrected_s = 30, .corrected_s = 30, .corrections = refit.prices().stages};
    for (WorkCorrections& stage : priced.corrections.front()) {
      priced.corrected_s = 0;
      for (size_t m = 0; m < 4; ++m) priced.corrected_s += stage.of(prices.at(m, 0)).total();
    }
    return priced;
  };
  const PricedRounds at_first = priced_now();
  for (int i = 0; i < 4; ++i) run(refit, {2, 2}, 66);
  const PricedRounds by_then = priced_now();
  EXPECT_NEAR(by_then.corrected_s, 60.8, 1e-6);
  EXPECT_NEAR(refit.predicted_s(by_then, 1), 66, 1e-6) << "the rounds before were priced without corrections";
  EXPECT_NEAR(refit.predicted_s(at_first, 1), 66, 1e-6) << "as what was planned ahead is";
  for (int i = 0; i < 200; ++i) run(refit, {4, 4}, 132);
  EXPECT_NEAR(refit.predicted_s(by_then, 1), 132, 1.5) << "and priced with corrections that have changed since";
}

TEST_F(TwoStages, BeginAnotherDivisionWithWhatIsKnownOfTheWork) {
  PriceRefit refit({2});
  for (int i = 0; i < 4; ++i) run(refit, {2, 2}, 60);
  refit.divide({1, 3});
  ASSERT_EQ(refit.prices().stages.size(), 2u);
  ASSERT_EQ(refit.prices().stages[1].size(), 3u);
  EXPECT_NEAR(refit.prices().stages[1][2].forward.scale, 2, 1e-6);
}

TEST_F(TwoStages, SettleOnlyWhereAMicrobatchTakesATenthMoreOrLess) {
  PriceRefit refit({2});
  for (int i = 0; i < 4; ++i) run(refit, {2, 2}, 60);
  const WorkCorrections settled = refit.settled();
  EXPECT_FALSE(settled.is_none());
  for (int i = 0; i < 200; ++i) run(refit, {2.05, 2.05}, 60);
  EXPECT_EQ(refit.settled(), settled);
  for (int i = 0; i < 200; ++i) run(refit, {3, 3}, 60);
  EXPECT_NE(refit.settled(), settled);
}

TrainerOptions refitting(int64_t ranks = 1) {
  TrainerOptions options;
  options.ranks = ranks;
  options.rounds_at_once = 2;
  options.policy.token_budget = 256;
  options.refits_prices = true;
  return options;
}

TEST(RefittedRuns, ChangeNoBitOnOneRank) {
  const std::vector<JobSpec> specs = mixed_jobs(12);
  SmallRun plain("plain", compared_dtype()), refitted("refitted", compared_dtype());
  TrainerOptions options = refitting();
  const RunSummary summary = refitted.trainer(specs, options)->run();
  options.refits_prices = false;
  const RunSummary before = plain.trainer(specs, options)->run();
  expect_same_adapters(finished_adapters(refitted, specs), finished_adapters(plain, specs));
  EXPECT_EQ(before.prediction_errors.rounds, 0);
  if (!test_device().is_cpu()) return;
  EXPECT_GE(summary.prediction_errors.rounds, 8);
  EXPECT_GT(summary.prediction_errors.before(), 0);
}

TEST(RefittedRuns, LeaveTheAdaptersOfOneRankOnSeveral) {
  const std::vector<JobSpec> specs = mixed_jobs(9);
  SmallRun one("one", at::kDouble);
  one.trainer(specs, refitting())->run();
  for (const char* degrees : {"pp=2", "dp=2", "dp=1,len=30+pp=2", "dp=1,len=5+dp=1"}) {
    SmallRun several("several", at::kDouble);
    TrainerOptions options = refitting(parse_parallel(degrees)->ranks());
    options.parallel = *parse_parallel(degrees);
    const RunSummary summary = several.trainer(specs, options)->run();
    expect_equal_adapters(several, one, specs);
    if (test_device().is_cpu()) {
      EXPECT_GT(summary.prediction_errors.rounds, 0) << degrees;
    }
  }
}

/// What rounds on ranks were predicted to take.
class Predictions : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    seconds.push_back(plans.predicted_s());
    for (const RankPlan& plan : plans.replicas) lists.push_back(plan.ranks);
  }
  std::vector<double> seconds;
  std::vector<std::vector<std::vector<Action>>> lists;
};

TEST(RefittedRuns, OnADeviceThatIsNotTherePlanAsBefore) {
  const auto device = std::make_shared<EmulatedDevice>();
  device->operator_seconds = [](const StageShape&, const Operator&, const MicrobatchCounts& counts) {
    return 1e-3 * static_cast<double>(counts.tokens);
  };
  device->optimizer_seconds = [](int64_t, int64_t) { return 1e-3; };
  device->all_reduce_seconds = [](int64_t, int64_t) { return 0.0; };
  device->now_s = [] { return 0.0; };
  device->sleep_until_s = [](double) {};
  const std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 8), small_job("b", AdapterMethod::lora, 2, 8)};
  std::array<Predictions, 2> predictions;
  for (const bool refits : {false, true}) {
    SmallRun run("emulated");
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    for (size_t i = 0; i < specs.size(); ++i) {
      JobData data{.train = small_data(7 + i, 20, 40), .eval = small_data(9 + i, 5, 30)};
      jobs.push_back(std::make_unique<TrainingJob>(static_cast<int32_t>(i), specs[i], std::move(data), small_config(), at::kFloat,
                                                   at::Device(at::kMeta), "small", run.folder / "jobs" / specs[i].name));
    }
    TrainerOptions options = refitting(2);
    options.refits_prices = refits;
    options.device.device = at::kMeta;
    options.costs = costs_of_cpu("a device that is not there");
    options.observers = {&predictions[refits ? 1 : 0]};
    const RunSummary summary = Trainer(Backbone::emulated(small_config(), at::kFloat, {}, device), std::move(jobs), options).run();
    EXPECT_EQ(summary.prediction_errors, PredictionErrors{});
    EXPECT_EQ(summary.rounds, 8);
  }
  EXPECT_EQ(predictions[0].seconds, predictions[1].seconds);
  EXPECT_EQ(predictions[0].lists, predictions[1].lists);
}

TEST(RefittedPlans, SayWithWhichCorrectionsTheyWerePriced) {
  SmallRun run("priced");
  const auto job = run.job(0, small_job("a", AdapterMethod::lora, 1, 3));
  const DeviceCosts costs = costs_of_cpu("a device");
  const PackingPolicy policy{.token_budget = 256, .layer_count = small_config().layer_count};
  const JobRound round = job->next_round();
  for (const char* degrees : {"pp=2", "dp=2", "dp=1,len=30+pp=2"}) {
    const std::vector<PipelineLayout> layouts = balanced_layouts(small_config(), {job->shape()}, costs, policy, *parse_parallel(degrees));
    RankPlanner planner(small_config(), {job->shape()}, costs, layouts, {});
    StageCorrections corrections;
    for (const PipelineLayout& layout : layouts) corrections.emplace_back(layout.stages.size(), WorkCorrections{{0, 3}, {0, 3}, {0, 3}});
    planner.correct(corrections);
    const BatchShape shape = round.batch->shape(0, 0);
    const std::vector<PlannedRun> planned = planner.plan({plan_step({&shape, 1}, policy)}, {&round, 1});
    ASSERT_EQ(planned.size(), 1u);
    const PricedRounds& priced = planned.front().priced;
    EXPECT_GT(priced.corrected_s, 2 * priced.uncorrected_s) << degrees;
    RoundRefit refit;
    refit.fit(corrections);
    EXPECT_NEAR(refit.predicted_s(priced, 1), priced.corrected_s, 1e-9 * priced.corrected_s) << degrees << ": not corrected again";
  }
}

TEST(RefittedPlans, FuseJobsWhoseCallsTurnOutToBeDear) {
  std::vector<JobSpec> specs{small_job("upper", AdapterMethod::lora, 1, 3), small_job("whole", AdapterMethod::lora, 2, 3)};
  specs[0].adapter.layers_to_transform = {1};
  SmallRun run("planner");
  std::vector<std::unique_ptr<TrainingJob>> jobs;
  std::vector<TrainingJob*> resident;
  for (size_t i = 0; i < specs.size(); ++i) resident.push_back(jobs.emplace_back(run.job(i, specs[i])).get());
  DeviceCosts costs = costs_of_cpu("a device of small fixed costs");
  costs.machine.device.launch_seconds = 3e-7;
  costs.machine.device.memory_bandwidth = 1e18;
  RoundPlanner planner(small_config(), costs, TaskFusion::predicted);
  const PackingPolicy policy{.layer_count = small_config().layer_count};
  EXPECT_EQ(planner.plan(resident, policy, Parallel{}).tasks.size(), 2u);
  planner.correct({.forward = {.per_call_s = 1, .scale = 2}, .backward = {}, .step = {}});
  const RoundPlanner::Answer& answer = planner.plan(resident, policy, Parallel{});
  EXPECT_EQ(answer.tasks.size(), 1u);
  EXPECT_THAT(answer.round.costs, ::testing::HasSubstr("refitted to measured times"));
  EXPECT_GT(answer.round.taken().seconds, 1);
}

}  // namespace
}  // namespace cotune::testing
