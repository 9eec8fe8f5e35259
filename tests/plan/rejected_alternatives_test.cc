#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/quantity_text.h"
#include "plan/cost/stage_memory.h"
#include "plan/placement.h"
#include "plan/plan_json.h"
#include "plan/planning_json.h"
#include "plan/random_planning.h"
#include "plan/replica_models.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

/// `<2,1>×3, <1,1>×2` as counts.
std::vector<int64_t> counts_of(const std::string& text, const std::vector<Configuration>& configurations) {
  std::vector<int64_t> counts;
  for (const Configuration& each : configurations) {
    const std::string name = each.name() + "×";
    size_t at = text.find(name);
    counts.push_back(at == std::string::npos ? 0 : std::stoll(text.substr(at + name.size())));
  }
  return counts;
}

TEST(RejectedAlternatives, DeploymentsHaveTheSecondsThatTheirCountsGive) {
  int64_t estimated = 0, simulated = 0;
  for (uint64_t seed = 200; seed < 215; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    NodesPlanner planner(problem.model, problem.cluster, problem.cluster.nodes.front(), problem.jobs, problem.options, {});
    const int64_t limit = problem.cluster.nodes.front().device.usable_bytes();
    int64_t taken = 0;
    for (const ConsideredDeployment& each : result.deployments) {
      const std::vector<int64_t> counts = counts_of(each.replicas, planner.configurations());
      const ConsideredDeployment again = planner.estimate(each.system, counts);
      EXPECT_EQ(again.replicas, each.replicas) << seed;
      EXPECT_EQ(again.dispatch_s, each.dispatch_s) << seed << " " << each.replicas;
      EXPECT_EQ(again.estimated_s, each.estimated_s) << seed << " " << each.replicas;
      EXPECT_EQ(again.estimated_bytes, each.estimated_bytes) << seed << " " << each.replicas;
      EXPECT_EQ(again.estimate_constraint, each.estimate_constraint) << seed << " " << each.replicas;
      EXPECT_GT(each.estimated_s, 0);
      EXPECT_EQ(each.estimated_bytes > limit, !each.estimate_constraint.empty()) << seed << " " << each.replicas;
      ++estimated;
      if (each.simulated_bytes == 0) {
        const bool fits = each.estimate_constraint.empty();
        EXPECT_THAT(each.rejected_for, testing::HasSubstr(fits ? "its estimate is " : "its estimate does not fit: "));
        EXPECT_EQ(each.simulated_s, 0);
        continue;
      }
      std::optional<Alternative> fastest;
      for (const PipelineOrder order : {PipelineOrder::automatic, PipelineOrder::interleaved, PipelineOrder::split}) {
        Alternative full = planner.simulate(each.system, counts, Sharing::hybrid, order);
        const bool is_faster = fastest && full.fits() && (!fastest->fits() || full.predicted.seconds < fastest->predicted.seconds);
        if (!fastest || is_faster) fastest = std::move(full);
      }
      EXPECT_EQ(fastest->fits() ? fastest->predicted.seconds : 0, each.simulated_s) << seed << " " << each.replicas;
      EXPECT_EQ(fastest->predicted.fullest_bytes, each.simulated_bytes) << seed << " " << each.replicas;
      EXPECT_EQ(fastest->constraint, each.constraint) << seed << " " << each.replicas;
      EXPECT_EQ(fastest->overflow, each.overflow) << seed << " " << each.replicas;
      taken += each.rejected_for.empty() ? 1 : 0;
      ++simulated;
    }
    EXPECT_EQ(taken, result.chosen ? 1 : 0) << seed;
    // Every configuration that holds all rows is there as like replicas.
    for (size_t i = 0; i < planner.configurations().size(); ++i) {
      std::vector<int64_t> alike(planner.configurations().size(), 0);
      alike[i] = problem.cluster.device_count() / planner.configurations()[i].devices();
      if (alike[i] == 0 || !planner.holds_all_rows(alike)) continue;
      const std::string text = planner.configurations()[i].name() + "×" + std::to_string(alike[i]);
      EXPECT_TRUE(std::any_of(result.deployments.begin(), result.deployments.end(),
                              [&](const ConsideredDeployment& each) { return each.replicas == text; }))
          << seed << " " << text;
    }
  }
  EXPECT_GT(estimated, 50);
  EXPECT_GT(simulated, 30);
}

TEST(RejectedAlternatives, GroupingsHaveTheSecondsAndMemoryThatTheyGive) {
  int64_t rejected = 0;
  for (uint64_t seed = 230; seed < 250; ++seed) {
    const PlanningProblem problem = random_planning_problem(seed);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    if (result.plan() == nullptr) continue;
    const Plan& plan = *result.plan();
    const std::vector<ReplicaModel> models = replica_models(plan, problem.model, problem.cluster, problem.jobs);
    int64_t taken = 0;
    for (const ConsideredGrouping& each : result.groupings) {
      const PlannedReplica& replica = plan.replicas[each.replica];
      ReplicaPacking packing = packing_of(plan, replica);
      packing.hybrid_tasks = each.hybrid_tasks;
      packing.buckets = each.buckets;
      packing.least_microbatches = each.least_microbatches;
      const PricedRows priced =
          price_rows(models[each.replica], replica.rows, packing);
      const ReplicaPrediction prediction = predict_replica(models[each.replica], priced, plan.order, problem.options.rounds);
      EXPECT_EQ(prediction.constraint, each.constraint) << seed;
      EXPECT_EQ(prediction.fullest_bytes(), each.fullest_bytes) << seed;
      EXPECT_EQ(prediction.overflow, each.overflow) << seed;
      EXPECT_EQ(prediction.seconds, each.seconds) << seed;
      EXPECT_EQ(prediction.is_bound, each.is_bound) << seed;
      if (each.rejected_for.empty()) {
        ++taken;
        EXPECT_EQ(each.seconds, replica.seconds) << seed;
      } else {
        ++rejected;
      }
    }
    EXPECT_GE(taken, 1) << seed;
  }
  EXPECT_GT(rejected, 10);
}

/// A problem whose devices have so much of their memory.
PlanningProblem tight_problem(uint64_t seed, double memory_share) {
  PlanningProblem problem = random_planning_problem(seed);
  DeviceSpec& device = problem.cluster.nodes.front().device;
  device.memory_bytes = static_cast<int64_t>(memory_share * static_cast<double>(device.memory_bytes));
  problem.options.token_budget = 4096;  // so that what fits must not be found
  problem.options.orders = {PipelineOrder::gpipe, PipelineOrder::automatic};
  return problem;
}

TEST(RejectedAlternatives, ThatDoNotFitHaveTimeMemoryAndTheTermThatOverflowsByHowMuch) {
  int64_t ordered = 0, bounds = 0, not_deployed = 0;
  for (uint64_t seed = 260; seed < 300; ++seed) {
    const PlanningProblem problem = tight_problem(seed, seed % 2 == 0 ? 0.5 : 0.2);
    const int64_t limit = problem.cluster.nodes.front().device.usable_bytes();
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    for (const Alternative& each : result.alternatives) {
      if (each.fits()) continue;
      if (each.plans.empty()) {
        EXPECT_EQ(each.predicted, PredictedStep{}) << seed;
        EXPECT_FALSE(each.is_bound) << seed;
        EXPECT_EQ(each.overflow, Overflow{}) << seed;
        EXPECT_THAT(each.constraint, testing::HasSubstr("no configuration")) << seed;
        ++not_deployed;
        continue;
      }
      const Plan& plan = each.plans.front();
      const std::vector<ReplicaModel> models = replica_models(plan, problem.model, problem.cluster, problem.jobs);
      double slowest = 0;
      int64_t fullest = 0;
      bool is_bound = false;
      Overflow overflow;
      for (size_t r = 0; r < models.size(); ++r) {
        if (plan.replicas[r].rows.empty()) {
          for (const PlannedStage& stage : plan.replicas[r].stages) fullest = std::max(fullest, stage.memory.total());
          continue;
        }
        const PricedRows priced = price_rows(models[r], plan.replicas[r].rows, packing_of(plan, plan.replicas[r]));
        const ReplicaPrediction prediction = predict_replica(models[r], priced, plan.order, problem.options.rounds);
        slowest = std::max(slowest, prediction.seconds);
        fullest = std::max(fullest, prediction.fullest_bytes());
        is_bound = is_bound || prediction.is_bound;
        if (prediction.overflow.bytes > overflow.bytes) overflow = prediction.overflow;
        if (!prediction.is_bound) continue;
        // Nothing is ordered: the busiest rank's computation.
        std::vector<double> busy(models[r].rank_count(), 0);
        for (const PipelineWork& work : priced.works) {
          for (const PipelineMicrobatch& microbatch : work.microbatches) {
            for (size_t s = 0; s < microbatch.cost.size(); ++s) {
              busy[s % busy.size()] += microbatch.cost[s].forward_s + microbatch.cost[s].backward_s;  // every stage has adapters
            }
          }
        }
        EXPECT_NEAR(prediction.seconds, *std::max_element(busy.begin(), busy.end()), 1e-9);
      }
      EXPECT_EQ(each.predicted.seconds, slowest + each.predicted.exchange_s) << seed;
      EXPECT_EQ(each.predicted.fullest_bytes, fullest) << seed;
      EXPECT_GT(fullest, limit);
      EXPECT_EQ(each.is_bound, is_bound) << seed;
      EXPECT_EQ(each.overflow, overflow) << seed;
      EXPECT_GT(overflow.bytes, 0);
      EXPECT_EQ(overflow.bytes, fullest - limit) << seed;
      EXPECT_THAT(each.constraint, testing::HasSubstr(overflow.term + " overflow by " + bytes_text(overflow.bytes)));
      (is_bound ? bounds : ordered) += 1;
    }
    const nlohmann::ordered_json json = to_json(result);
    for (size_t a = 0; a < result.alternatives.size(); ++a) {
      const Alternative& each = result.alternatives[a];
      const auto& shown = json.at("alternatives")[a];
      EXPECT_EQ(shown.at("predicted"), each.plans.empty() ? nlohmann::ordered_json(nullptr) : to_json(each.predicted)) << seed;
      EXPECT_EQ(shown.at("is_bound").get<bool>(), each.is_bound);
      EXPECT_EQ(shown.at("overflow").is_null(), each.overflow.bytes == 0);
      if (each.overflow.bytes > 0) {
        EXPECT_EQ(shown.at("overflow").at("bytes").get<int64_t>(), each.overflow.bytes);
      }
    }
  }
  EXPECT_GT(ordered, 5);
  EXPECT_GT(bounds, 5);
  EXPECT_GT(not_deployed, 5);
}

/// Tight problems, so that there are configurations without a chunk and deployments that nobody simulates.
TEST(RejectedAlternatives, AreNullInJsonWhereNothingIsKnown) {
  int64_t rates = 0, steps = 0;
  for (uint64_t seed = 260; seed < 275; ++seed) {
    const PlanningProblem problem = tight_problem(seed, seed % 2 == 0 ? 0.5 : 0.2);
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    const nlohmann::ordered_json json = to_json(result);
    for (size_t i = 0; i < result.configurations.size(); ++i) {
      const auto& rate = json.at("configurations")[i].at("tokens_per_device_s");
      EXPECT_EQ(rate.is_null(), result.configurations[i].tokens_per_device_s == 0);
      rates += rate.is_null();
    }
    for (size_t i = 0; i < result.deployments.size(); ++i) {
      const ConsideredDeployment& each = result.deployments[i];
      const auto& shown = json.at("deployments")[i];
      EXPECT_EQ(shown.at("simulated_s").is_null(), each.simulated_s == 0);
      EXPECT_EQ(shown.at("simulated_bytes").is_null(), each.simulated_bytes == 0);
      EXPECT_GT(shown.at("estimated_s").get<double>(), 0);
      steps += shown.at("simulated_bytes").is_null();
    }
    EXPECT_EQ(json.at("enumerated").at("lower_bound_s").is_null(), result.lobra.empty());
  }
  EXPECT_GT(rates, 5);
  EXPECT_GT(steps, 5);
}

TEST(RejectedAlternatives, OfJobsInTurnHaveTheMemoryOfThoseThatHavePlans) {
  PlanningProblem problem = tight_problem(260, 0.5);
  JobSpec spec;
  spec.adapter.r = 512;
  add_job(problem, spec, {problem.model.context_length}, 1);
  problem.jobs.back().lengths = histogram_of(std::vector<int64_t>{int64_t{1} << 17});
  problem.options.deployments = {System::task_sequential};
  problem.options.token_budget = 0;
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  const nlohmann::ordered_json json = to_json(result);
  ASSERT_FALSE(result.alternatives.empty());
  for (size_t a = 0; a < result.alternatives.size(); ++a) {
    const Alternative& each = result.alternatives[a];
    const auto& predicted = json.at("alternatives")[a].at("predicted");
    EXPECT_EQ(each.plans.size(), problem.jobs.size() - 1);
    EXPECT_GT(predicted.at("fullest_bytes").get<int64_t>(), 0);
    for (const char* field : {"seconds", "exchange_s", "tokens", "processed_tokens", "device_seconds", "bubble", "idle", "cost"}) {
      EXPECT_TRUE(predicted.at(field).is_null()) << field;
    }
  }
}

TEST(RejectedAlternatives, ConfigurationsHaveTheTimeAndMemoryOfTheirChunkAndWhatOverflows) {
  int64_t fitting = 0, rejected = 0;
  for (uint64_t seed = 320; seed < 332; ++seed) {
    PlanningProblem problem = tight_problem(seed, seed % 2 == 0 ? 1 : 0.25);
    const NodeGroup& group = problem.cluster.nodes.front();
    const int64_t limit = group.device.usable_bytes();
    std::vector<AdapterShape> adapters;
    std::vector<double> shares;
    double tokens = 0;
    for (const JobShape& job : problem.jobs) {
      adapters.insert(adapters.end(), job.adapters.begin(), job.adapters.end());
      tokens += shares.emplace_back(static_cast<double>(job.batch_size) * job.lengths.mean());
    }
    for (double& share : shares) share /= tokens;
    const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
    for (const ConsideredConfiguration& each : result.configurations) {
      const StageMachine machine{group.device, problem.cluster.link_of(group, each.tensor_parallel), problem.options.dtype};
      const MicrobatchCounts counts = even_microbatch(1, std::max<int64_t>(64, each.chunk_tokens), shares);
      const std::vector<StageShape> stages = even_stages(problem.model, each.pipeline_stages, each.tensor_parallel, each.is_sequence_parallel);
      const int64_t sent = largest_slice(counts.tokens, stages.front());
      int64_t fullest = 0;
      const LinkSpec between = problem.cluster.link_of(group, each.tensor_parallel * each.pipeline_stages);
      const auto bytes = static_cast<double>(sent * problem.model.hidden_size * machine.element_size());
      double slowest = stages.size() == 1 ? 0 : 2 * between.seconds(bytes);
      for (size_t s = 0; s < stages.size(); ++s) {
        const StageMemory memory = stage_memory(problem.model, stages[s], adapters, 2, counts, static_cast<int64_t>(stages.size() - s),
                                                machine.element_size());
        fullest = std::max(fullest, memory.total());
        slowest = std::max(slowest, stage_seconds(problem.model, stages[s], adapters, counts, machine).total());
      }
      EXPECT_EQ(each.memory.total(), fullest) << seed;
      EXPECT_NEAR(each.chunk_s, slowest, 1e-9 * slowest) << seed;
      if (each.chunk_tokens > 0) {
        ++fitting;
        EXPECT_EQ(each.overflow, Overflow{});
        EXPECT_LE(fullest, limit);
        continue;
      }
      ++rejected;
      EXPECT_EQ(each.overflow.bytes, fullest - limit) << seed;
      EXPECT_EQ(each.overflow.term, each.memory.overflowing_term(limit)) << seed;
      EXPECT_THAT(each.rejected_for, testing::HasSubstr(each.overflow.term + " overflow by "));
    }
  }
  EXPECT_GT(fitting, 20);
  EXPECT_GT(rejected, 5);
}

TEST(RejectedAlternatives, KindsOfNodesThatLoseAreThere) {
  PlanningProblem problem = random_planning_problem(3);
  problem.cluster.nodes.push_back(problem.cluster.nodes.front());
  problem.cluster.nodes.back().name = "fast";
  problem.cluster.nodes.back().device = device_preset("H100");
  const PlanningResult result = make_plan(problem.model, problem.cluster, problem.jobs, problem.options);
  ASSERT_NE(result.plan(), nullptr);
  EXPECT_EQ(result.alternatives[*result.chosen].nodes, "fast");
  int64_t slow = 0;
  const nlohmann::ordered_json json = to_json(result, {});
  for (const auto& each : json.at("alternatives")) {
    if (each.at("nodes") != "n") continue;
    ++slow;
    EXPECT_NE(each.at("rejected_for"), "");
  }
  EXPECT_GE(slow, 2);
}

}  // namespace
}  // namespace cotune
