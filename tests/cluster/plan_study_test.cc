#include "cluster/plan_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/make_plan.h"

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
  PlanStudy study(const Plan& plan, const std::vector<SlowStage>& slow = {}) const {
    return study_plan(plan, model, cluster, jobs, slow, options);
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
      ASSERT_EQ(study.simulated_s.size(), plan.replicas.size());
      for (size_t r = 0; r < plan.replicas.size(); ++r) {
        EXPECT_DOUBLE_EQ(study.simulated_s[r], plan.replicas[r].seconds);
        EXPECT_GE(study.idle[r], -1e-9);
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

TEST(StudyPlan, SlowsTheReplicaOfASlowStageAndNoOther) {
  const Case problem(4);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  ASSERT_GT(plan.replicas.size(), 1u);
  const PlanStudy usual = problem.study(plan);
  const int64_t rank = plan.replicas[0].pipeline_stages();  // the first of replica 1
  const PlanStudy slowed = problem.study(plan, {{.rank = rank, .factor = 2}});
  EXPECT_DOUBLE_EQ(slowed.simulated_s[0], usual.simulated_s[0]);
  EXPECT_GT(slowed.simulated_s[1], 1.5 * usual.simulated_s[1]);
  EXPECT_LE(slowed.simulated_s[1], 2.01 * usual.simulated_s[1]);
  EXPECT_DOUBLE_EQ(slowed.planned_step_s, usual.planned_step_s);
  EXPECT_DOUBLE_EQ(slowed.step_s, std::max(slowed.simulated_s[0], slowed.simulated_s[1]) + slowed.exchange_s);
  EXPECT_GT(slowed.idle[0], usual.idle[0]) << "the others wait";
  EXPECT_LE(slowed.hidden.exposed_s, slowed.exchange_s);
  EXPECT_THAT(to_text(slowed, plan), HasSubstr(" times the planned "));
}

TEST(StudyPlan, RefusesWhatThePlanWasNotMadeFor) {
  Case problem(2);
  const Plan plan = *make_plan(problem.model, problem.cluster, problem.jobs, problem.options).plan();
  const auto refusal = [&](const std::vector<SlowStage>& slow) {
    try {
      problem.study(plan, slow);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal({{.rank = 99, .factor = 2}}), HasSubstr("there is no rank 99; there are 0 to "));
  problem.jobs[1].name = "another";
  EXPECT_THAT(refusal({}), HasSubstr("the plan is of the jobs job-0, job-1, job-2, the jobs file has job-0, another, job-2"));
  problem.cluster.nodes[0].device.launch_seconds *= 2;
  EXPECT_THAT(refusal({}), HasSubstr("the plan was made for another cluster"));
}

}  // namespace
}  // namespace cotune
