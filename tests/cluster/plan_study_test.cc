#include "cluster/plan_study.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "cluster/instance_plan.h"
#include "plan/make_plan.h"
#include "plan/plan_origin.h"
#include "plan/random_pipeline.h"

namespace cotune {
namespace {

using testing::HasSubstr;

struct Case {
  ModelConfig model = model_preset("tinyllama-1.1b");
  ClusterSpec cluster;
  std::vector<JobShape> jobs;
  PlanOptions options;

  explicit Case(int64_t devices, double memory_share = 0.5) {
    cluster.nodes = {{.name = "n", .count = 1, .devices = devices, .device = device_preset("A40"), .link = link_preset("pcie4")}};
    cluster.nodes[0].device.memory_bytes = static_cast<int64_t>(memory_share * static_cast<double>(cluster.nodes[0].device.memory_bytes));
    for (int32_t j = 0; j < 3; ++j) {
      JobSpec spec;
      spec.adapter.r = 8 << j;
      jobs.push_back({.name = "job-" + std::to_string(j), .batch_size = 8 + 8 * j,
                      .lengths = histogram_of(std::vector<int64_t>{60, 200, 300 + 400 * j}), .adapters = adapter_shapes(spec, j, model)});
    }
  }
  std::vector<Alternative> alternatives() const { return make_plan(model, cluster, jobs, options).alternatives; }
  PlanStudy study(const Plan& plan, const Disturbances& slow = {}) const {
    return study_plan(plan, model, cluster, jobs, slow, options);
  }
  PlanStudy study_instance(const InstanceSettings& settings, const Disturbances& slow = {}) const {
    return study_plan(plan_instance(model, cluster, jobs, settings, options), model, cluster, jobs, slow, options);
  }
};

TEST(StudyPlan, IsThePlansOwnPredictionWhereNothingIsSlow) {
  int64_t several = 0;
  for (const Case& each : {Case(1), Case(4), Case(4, 0.06)}) {
    for (const Alternative& alternative : each.alternatives()) {
      if (!alternative.fits() || alternative.plans.size() != 1) continue;
      const Plan& plan = alternative.plans.front();
      const PlanStudy study = each.study(plan);
      EXPECT_DOUBLE_EQ(study.step_s, plan.predicted.seconds);
      EXPECT_DOUBLE_EQ(study.planned_step_s, plan.predicted.seconds);
      EXPECT_EQ(study.exchange_s, plan.predicted.exchange_s);
      ASSERT_EQ(study.replicas.size(), plan.replicas.size());
      for (size_t r = 0; r < plan.replicas.size(); ++r) {
        EXPECT_DOUBLE_EQ(study.replicas[r].simulated_s, plan.replicas[r].seconds);
        EXPECT_GE(study.replicas[r].idle, -1e-9);
      }
      several += plan.replicas.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(several, 10);
}

TEST(StudyPlan, HidesTheExchangeAtMostBehindTheLastBackwards) {
  const Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  ASSERT_GT(plan.replicas.size(), 1u);
  const PlanStudy study = problem.study(plan);
  EXPECT_GT(study.exchange_s, 0);
  EXPECT_LT(study.hidden.exposed_s, study.exchange_s) << "layers but the lowest can be exchanged earlier";
  EXPECT_GT(study.hidden.exposed_s, 0) << "the lowest layer's gradients come last";
  EXPECT_GE(study.hidden.seconds, study.exchange_s * (1 - 1e-9));
  EXPECT_GT(study.hidden.buckets, 1);
}

TEST(StudyPlan, OfInterleavedStagesIsTheirPredictionAndTheirLinksAreARing) {
  PlanningProblem problem = random_pipeline_problem(1);
  NodeGroup& group = problem.cluster.nodes[0];
  group.count = 8;
  group.device.memory_bytes = int64_t{7} << 30;
  for (JobShape& job : problem.jobs) {
    job.batch_size = 16;
    job.lengths = histogram_of(std::vector<int64_t>{200});
  }
  NodesPlanner planner(problem.model, problem.cluster, group, problem.jobs, problem.options, {});
  std::vector<int64_t> counts;
  for (const Configuration& each : planner.configurations()) counts.push_back(each.name() == "<1,4>" ? 2 : 0);
  const Alternative interleaved = planner.simulate(System::task_fused, counts, Sharing::hybrid, PipelineOrder::interleaved);
  ASSERT_TRUE(interleaved.fits()) << interleaved.constraint;
  const Plan& plan = interleaved.plans.front();
  ASSERT_EQ(plan.replicas.size(), 2u);
  for (const PlannedReplica& each : plan.replicas) ASSERT_GT(each.chunks(), 1);
  const auto study = [&](const Disturbances& slow) {
    return study_plan(plan, problem.model, problem.cluster, problem.jobs, slow, problem.options);
  };
  const PlanStudy calm = study({});
  EXPECT_DOUBLE_EQ(calm.step_s, plan.predicted.seconds);
  EXPECT_GT(calm.hidden.seconds, 0);
  EXPECT_LE(calm.hidden.exposed_s, calm.hidden.seconds);
  // A layer of the first run is ready last: with all in one bucket nothing is hidden.
  EXPECT_LT(calm.hidden.exposed_s, calm.exchange_s);
  EXPECT_GT(study({.links = {parse_slow_link("3-0:100000")}}).replicas[0].simulated_s, calm.replicas[0].simulated_s) << "the wrap";
  EXPECT_GT(study({.links = {parse_slow_link("2-6:10")}}).exchange_s, calm.exchange_s) << "both hold the same layers";
  EXPECT_THROW(study({.links = {parse_slow_link("0-2:10")}}), UserError);
}

TEST(StudyPlan, SlowsTheReplicaOfASlowStageAndNoOther) {
  const Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  ASSERT_GT(plan.replicas.size(), 1u);
  const PlanStudy usual = problem.study(plan);
  const int64_t rank = plan.replicas[0].pipeline_stages();  // the first of replica 1
  const PlanStudy slowed = problem.study(plan, {{{.rank = static_cast<int32_t>(rank), .factor = 2}}, {}});
  EXPECT_DOUBLE_EQ(slowed.replicas[0].simulated_s, usual.replicas[0].simulated_s);
  EXPECT_GT(slowed.replicas[1].simulated_s, 1.5 * usual.replicas[1].simulated_s);
  EXPECT_LE(slowed.replicas[1].simulated_s, 2.01 * usual.replicas[1].simulated_s);
  EXPECT_DOUBLE_EQ(slowed.planned_step_s, usual.planned_step_s);
  EXPECT_DOUBLE_EQ(slowed.step_s, std::max(slowed.replicas[0].simulated_s, slowed.replicas[1].simulated_s) + slowed.exchange_s);
  EXPECT_GT(slowed.replicas[0].idle, usual.replicas[0].idle) << "the others wait";
  EXPECT_LE(slowed.hidden.exposed_s, slowed.exchange_s);
  EXPECT_THAT(to_text(slowed, plan, 1), HasSubstr(" times the planned "));
}

TEST(StudyPlan, RefusesWhatThePlanWasNotMadeFor) {
  Case problem(2);
  Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  const auto refusal = [&](const Disturbances& slow) {
    try {
      problem.study(plan, slow);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal({{{.rank = 99, .factor = 2}}, {}}), HasSubstr("there is no rank 99; there are 0 to "));
  const PlannedReplica whole = plan.replicas.back();
  plan.replicas.back().stages.back().shape.last_layer -= 1;
  EXPECT_EQ(refusal({}), fmt::format("replicas[{}].stages: must end at 22, the model's layers; got 21", plan.replicas.size() - 1));
  plan.replicas.back() = whole;
  problem.jobs[1].name = "another";
  EXPECT_THAT(refusal({}), HasSubstr("the plan is of the jobs job-0, job-1, job-2, the jobs file has job-0, another, job-2"));
  problem.jobs[1].name = "job-1";
  problem.cluster.nodes[0].name = "others";
  EXPECT_THAT(refusal({}), HasSubstr("devices: the plan is of nodes `n`, the cluster has others"));
  problem.cluster.nodes[0].name = "n";
  problem.cluster.nodes[0].devices = 1;
  EXPECT_THAT(refusal({}), HasSubstr("where the cluster has 1 nodes of 1 devices"));
  problem.model.layer_count -= 1;
  EXPECT_THAT(refusal({}), HasSubstr("model: the plan was made for another model"));
}

TEST(StudyPlan, IsPricedOnTheClusterAtHand) {
  Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  EXPECT_EQ(other_origin(plan, problem.cluster, ""), "");
  problem.cluster.nodes[0].device.compute_efficiency /= 2;
  EXPECT_GT(problem.study(plan).step_s, 1.5 * plan.predicted.seconds);
  EXPECT_EQ(other_origin(plan, problem.cluster, ""), "another cluster");
  EXPECT_EQ(other_origin(plan, problem.cluster, "f00d"), "another cluster and profile");
}

TEST(StudyPlan, IsThePredictionWhereAGivenBudgetMovesRowsBetweenUnlikeReplicas) {
  int64_t unlike = 0;
  for (const int64_t budget : {512, 1024, 1536}) {
    for (const int64_t devices : {4, 8}) {
      Case problem(devices);
      problem.options.token_budget = budget;
      const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
      if (result.plan() == nullptr) continue;
      EXPECT_DOUBLE_EQ(problem.study(*result.plan()).planned_step_s, result.plan()->predicted.seconds);
      unlike += replicas_text(*result.plan()).find(',') != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(unlike, 0);
}

TEST(StudyPlan, ASlowLinkBetweenReplicasSlowsTheExchangeAndNothingElse) {
  const Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  ASSERT_GT(plan.replicas.size(), 1u);
  const PlanStudy usual = problem.study(plan), slowed = problem.study(plan, {{}, {{0, plan.replicas[0].pipeline_stages(), 8}}});
  EXPECT_DOUBLE_EQ(slowed.exchange_s, 8 * usual.exchange_s);
  EXPECT_DOUBLE_EQ(slowed.planned_step_s, usual.planned_step_s);
  EXPECT_DOUBLE_EQ(slowed.step_s - slowed.exchange_s, usual.step_s - usual.exchange_s);
  EXPECT_GT(slowed.hidden.exposed_s, usual.hidden.exposed_s);
}

TEST(PlanInstance, TakesWhatItsOwnSimulationTakes) {
  for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
    const Case problem(4);
    const Plan plan = plan_instance(problem.model, problem.cluster, problem.jobs, {1, 4, sharing, {}}, problem.options);
    ASSERT_EQ(plan.replicas.size(), 1u);
    EXPECT_EQ(plan.sharing, sharing);
    const PlanStudy study = problem.study_instance({1, 4, sharing, {}});
    EXPECT_DOUBLE_EQ(study.step_s, plan.predicted.seconds);
    EXPECT_DOUBLE_EQ(study.step_s, study.planned_step_s);
    EXPECT_EQ(study.replicas[0].runs.size(), sharing == Sharing::separate ? 3u : 1u);
    EXPECT_EQ(study.tokens, plan.predicted.tokens);
    for (const StudiedStage& stage : study.replicas[0].stages) {
      EXPECT_GT(stage.memory_bytes, 0);
      EXPECT_LE(stage.memory_bytes, stage.memory_limit_bytes);
    }
    EXPECT_EQ(plan_instance(problem.model, problem.cluster, problem.jobs, {1, 4, sharing, {}}, problem.options), plan) << "pure";
  }
}

TEST(PlanInstance, KeepsToAGivenTokenBudgetAndLayout) {
  Case problem(4);
  const Plan free = plan_instance(problem.model, problem.cluster, problem.jobs, {1, 4, Sharing::hybrid, {}}, problem.options);
  const PlanStudy same = problem.study_instance({1, 4, Sharing::hybrid, free.replicas[0].token_budget});
  EXPECT_DOUBLE_EQ(same.step_s, free.predicted.seconds);
  const Plan given = plan_instance(problem.model, problem.cluster, problem.jobs, {1, 4, Sharing::hybrid, 2560}, problem.options);
  EXPECT_EQ(given.replicas[0].token_budget, 2560);
  const PlanStudy study = problem.study_instance({1, 4, Sharing::hybrid, 2560});
  EXPECT_NE(study.step_s, same.step_s);
  problem.options.layout = Layout::padded;
  EXPECT_GT(problem.study_instance({1, 4, Sharing::batch_all, {}}).step_s, study.step_s);
}

TEST(PlanInstance, RowsBeyondAGivenBudgetBecomeChains) {
  const Case problem(4);
  const PlanStudy study = problem.study_instance({1, 4, Sharing::temporal, 512});
  const PlanStudy whole = problem.study_instance({1, 4, Sharing::temporal, 1280});
  EXPECT_GT(study.replicas[0].runs[0].run.work.microbatches.size(), whole.replicas[0].runs[0].run.work.microbatches.size());
}

TEST(PlanInstance, SaysWhatDoesNotFitAndWhichShapesThereAre) {
  const auto refusal = [](const Case& problem, const InstanceSettings& settings) {
    try {
      plan_instance(problem.model, problem.cluster, problem.jobs, settings, problem.options);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(Case(4), {3, 1}), HasSubstr("--instance: must be a TPxPP that the model and the nodes allow, such as 1x1, 1x2"));
  // Another shape holds rows a little shorter; on a tenth of that memory none does.
  EXPECT_THAT(
      refusal(Case(4, 0.02), {1, 1}),
      testing::AllOf(HasSubstr("the jobs do not fit on 1x1 devices: "), HasSubstr("with activations recomputed: "), HasSubstr("What would:\n"),
                     HasSubstr("rows of 1100 tokens need at least "), HasSubstr(" would hold it as <1,8> (2 nodes in place of 1"),
                     HasSubstr("as it is, rows of up to 1088 tokens fit")));
  EXPECT_THAT(refusal(Case(4, 0.002), {1, 1}), testing::AllOf(HasSubstr("What would:\n"), HasSubstr("need at least")));
  Case two(4);
  two.cluster.nodes.push_back(two.cluster.nodes[0]);
  EXPECT_THAT(refusal(two, {1, 4}), HasSubstr("cluster: nodes: must be one group of like nodes, which a step without --plan takes, got 2 groups"));
}

TEST(Disturbances, AStragglerCostsTimeAndTheMoreTheSlowerItIs) {
  const Case problem(4);
  double before = problem.study_instance({1, 4}).step_s;
  const double planned = before;
  for (const double factor : {1.5, 2.0, 4.0}) {
    const PlanStudy study = problem.study_instance({1, 4}, {{{.rank = 2, .factor = factor}}, {}});
    EXPECT_GT(study.step_s, before);
    EXPECT_LE(study.step_s, planned * factor * (1 + 1e-9));
    EXPECT_DOUBLE_EQ(study.planned_step_s, planned);
    before = study.step_s;
  }
  const double late_s = 100 * planned;
  EXPECT_DOUBLE_EQ(problem.study_instance({1, 4}, {{{.rank = 2, .from_s = late_s, .until_s = 2 * late_s, .factor = 4}}, {}}).step_s, planned);
}

TEST(Disturbances, MomentsCountFromTheStartOfTheStepWhereJobsGoOneAfterTheOther) {
  const Case problem(4);
  const InstanceSettings separate{1, 4, Sharing::separate, {}};
  const PlanStudy usual = problem.study_instance(separate);
  const StudiedRun& last = usual.replicas[0].runs.back();
  ASSERT_GT(last.start_s, 0);
  // Slow while the last job runs: the others take what they took.
  const PlanStudy slowed = problem.study_instance(separate, {{{.rank = 1, .from_s = last.start_s, .factor = 3}}, {}});
  for (size_t r = 0; r + 1 < usual.replicas[0].runs.size(); ++r) {
    EXPECT_EQ(slowed.replicas[0].runs[r].run.simulation.makespan_s, usual.replicas[0].runs[r].run.simulation.makespan_s);
  }
  EXPECT_GT(slowed.replicas[0].runs.back().run.simulation.makespan_s, last.run.simulation.makespan_s);
}

TEST(Disturbances, ASlowLinkDelaysItsMessagesEitherWayAndNoOthers) {
  const Case problem(4);
  const PlanStudy usual = problem.study_instance({1, 4}), slowed = problem.study_instance({1, 4}, {{}, {{2, 1, 50}}});
  EXPECT_GT(slowed.step_s, usual.step_s);
  EXPECT_DOUBLE_EQ(slowed.planned_step_s, usual.step_s);
  const PipelineSimulation &before = usual.replicas[0].runs[0].run.simulation, &after = slowed.replicas[0].runs[0].run.simulation;
  std::map<std::pair<int32_t, int32_t>, double> took_before, took_after;
  for (const SimulatedTransfer& each : before.transfers) took_before[{each.from, each.to}] += each.end_s - each.start_s;
  for (const SimulatedTransfer& each : after.transfers) took_after[{each.from, each.to}] += each.end_s - each.start_s;
  for (const auto& [link, seconds] : took_before) {
    const bool is_slow = link == std::pair{1, 2} || link == std::pair{2, 1};
    EXPECT_NEAR(took_after[link] / seconds, is_slow ? 50 : 1, 1e-6) << link.first << "-" << link.second;
  }
}

TEST(Disturbances, AreReadAndRefusedWithWhatTheyMustBe) {
  EXPECT_EQ(parse_slowdown("3:1.5"), (Slowdown{.rank = 3, .factor = 1.5}));
  EXPECT_EQ(parse_slowdown("0:2:10:250"), (Slowdown{.rank = 0, .from_s = 0.01, .until_s = 0.25, .factor = 2}));
  EXPECT_EQ(parse_slow_link("1-2:8"), (SlowLink{1, 2, 8}));
  for (const char* text : {"", "1", "1:", "1:0.5", "-1:2", "1.5:2", "1:2:3", "1:2:5:3", "1:nan", "1:2x", "1:inf", "9999999:2"}) {
    EXPECT_THROW(parse_slowdown(text), UserError) << text;
  }
  for (const char* text : {"", "1", "1-2", "1:2", "1-1:2", "1-2:0.5", "1-2:3:4", "1--2:3", "a-b:2", "1-nan:2"}) {
    EXPECT_THROW(parse_slow_link(text), UserError) << text;
  }
  const Case problem(4);
  EXPECT_THROW(problem.study_instance({1, 4}, {{}, {{0, 2, 4}}}), UserError) << "no neighbours";
  EXPECT_THROW(problem.study_instance({1, 4}, {{}, {{3, 4, 4}}}), UserError) << "no rank 4";
}

TEST(PlanTrace, HoldsEveryReplicaOnTracksOfItsOwn) {
  const Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  const PlanStudy study = problem.study(plan);
  std::set<std::pair<int64_t, int64_t>> tracks;
  size_t spans = 0, seen = 0;
  const nlohmann::json trace = nlohmann::json::parse(render_trace(study, plan));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("pid").get<int64_t>() % 4 == 3) continue;  // links
    tracks.insert({event.at("pid").get<int64_t>(), event.at("tid").get<int64_t>()});
    ++seen;
  }
  int64_t ranks = 0;
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    ranks += plan.replicas[r].pipeline_stages();
    for (const StudiedRun& each : study.replicas[r].runs) {
      for (const SimulatedRank& rank : each.run.simulation.ranks) spans += rank.spans.size();
    }
  }
  EXPECT_EQ(static_cast<int64_t>(tracks.size()), ranks);
  EXPECT_EQ(seen, spans);
}

/// Long rows among short ones, which pad all of a large microbatch.
Case padded_case(int64_t rare) {
  Case problem(1, 1);
  problem.options.layout = Layout::padded;
  problem.options.savings.clear();
  problem.options.sharing = {Sharing::hybrid};
  problem.jobs.clear();
  for (int32_t j = 0; j < 2; ++j) {
    JobSpec spec;
    std::vector<int64_t> lengths(10, 64);
    lengths.push_back(j == 0 ? rare : 128);
    problem.jobs.push_back({.name = "job-" + std::to_string(j), .batch_size = 16, .lengths = histogram_of(lengths), .adapters = adapter_shapes(spec, j, problem.model)});
  }
  return problem;
}

TEST(PlanInstance, HasTheStepThatPlanningFindsForTheShape) {
  for (const int64_t rare : {256, 512, 1000}) {
    const Case problem = padded_case(rare);
    const Plan instance = plan_instance(problem.model, problem.cluster, problem.jobs, {}, problem.options);
    for (const Alternative& each : problem.alternatives()) {
      if (each.order != PipelineOrder::automatic) continue;
      ASSERT_TRUE(each.fits());
      EXPECT_EQ(each.predicted.seconds, instance.predicted.seconds) << rare;
      EXPECT_EQ(each.plans.front().replicas, instance.replicas) << rare;
    }
  }
}

TEST(PlanInstance, IsNoSlowerThanWithATokenBudgetThatIsGiven) {
  for (const int64_t rare : {256, 512, 1000}) {
    const Case problem = padded_case(rare);
    const double found_s = plan_instance(problem.model, problem.cluster, problem.jobs, {}, problem.options).predicted.seconds;
    for (int64_t budget = 64; budget <= 16384; budget *= 2) {
      if (budget < rare) continue;
      const Plan given = plan_instance(problem.model, problem.cluster, problem.jobs, {.token_budget = budget}, problem.options);
      EXPECT_LE(found_s, given.predicted.seconds * 1.01) << rare << ", " << budget;
    }
  }
}

}  // namespace
}  // namespace cotune
