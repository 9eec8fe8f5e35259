#include "plan/fusion/hybrid_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "plan/fusion/replica_jobs.h"
#include "plan/random_fusion.h"
#include "schedule/pipeline/pipeline_schedule.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/pipeline/structured_template.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

constexpr double order_tolerance = 1.0011;  // of orders within a thousandth the one with the lower peak is taken

/// All jobs in one task, and each in its own.
std::array<HybridTasks, 2> fused_and_apart(const FusionProblem& problem) {
  std::array<HybridTasks, 2> result{HybridTasks(1), HybridTasks(problem.tokens.size())};
  for (size_t job = 0; job < problem.tokens.size(); ++job) {
    for (std::vector<int32_t>* task : {&result[0].front(), &result[1][job]}) task->push_back(static_cast<int32_t>(job));
  }
  return result;
}

TEST(ChooseHybridTasks, PlansAreProvenAndKeepMemoryOverRandomProblems) {
  int fitting = 0, refused = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const FusionProblem problem =
        random_fusion(seed, {.jobs = 1 + static_cast<int64_t>(seed % 7), .with_memory = seed % 2 == 0});
    const ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
    if (!choice.chosen.fits()) {
      ++refused;
      ASSERT_FALSE(choice.rejected.empty());
      for (const HybridTaskChoice& each : choice.rejected) EXPECT_FALSE(each.rejected_for.empty()) << seed << each.name;
      continue;
    }
    ++fitting;
    std::vector<int32_t> jobs;
    for (const auto& task : choice.chosen.tasks) jobs.insert(jobs.end(), task.begin(), task.end());
    std::sort(jobs.begin(), jobs.end());
    ASSERT_EQ(jobs.size(), problem.tokens.size()) << seed;
    for (size_t i = 0; i < jobs.size(); ++i) EXPECT_EQ(jobs[i], static_cast<int32_t>(i)) << seed;
    const PipelineFacts facts = verify(choice.work, make_schedule(choice.work, choice.compute_order, problem.cluster));
    EXPECT_EQ(facts.peak_kept_bytes, choice.chosen.activation_bytes) << seed;
    for (size_t s = 0; s < problem.memory_bytes.size(); ++s) {
      EXPECT_LE(choice.chosen.activation_bytes[s] + choice.chosen.workspace_bytes[s], problem.memory_bytes[s]) << seed;
    }
    for (const HybridTaskChoice& each : choice.rejected) {
      EXPECT_GE(each.seconds, choice.chosen.seconds * (1 - 1e-9)) << seed << each.name;
      EXPECT_FALSE(each.rejected_for.empty()) << seed << each.name;
    }
    // Neither all fused nor each job by itself is faster, whether it was tried or not (MX-2).
    for (const HybridTasks& tasks : fused_and_apart(problem)) {
      EXPECT_GE(fusion_time(problem, tasks).seconds * order_tolerance, choice.chosen.seconds) << seed << ": " << tasks.size() << " tasks";
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(refused, 4);
}

TEST(ChooseHybridTasks, KeepsTheTimeOfEveryAlternative) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const FusionProblem problem = random_fusion(700 + seed, {.jobs = 2 + static_cast<int64_t>(seed % 6)});
    ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
    choice.rejected.push_back(choice.chosen);
    for (const HybridTaskChoice& each : choice.rejected) {
      // One task a bucket is what fusion judged; the other counts and other orders may only be better.
      ASSERT_EQ(each.seconds_of_bucket_count.size(), each.tasks.size());
      const double apart = fusion_time(problem, each.tasks).seconds;
      EXPECT_NEAR(each.seconds_of_bucket_count.back(), apart, 1e-9 * apart) << seed << each.name;
      const double least = *std::min_element(each.seconds_of_bucket_count.begin(), each.seconds_of_bucket_count.end());
      EXPECT_LE(each.seconds, least * order_tolerance) << seed << each.name;
    }
    EXPECT_EQ(choice.chosen.rejected_for, "");
  }
}

/// Of every task so much of its seconds is communication, which the other tasks of a clock compute beside: a clock of several takes the
/// longer of all that they compute and all that they communicate.
FusionProblem with_communication(FusionProblem problem, double share) {
  problem.clock_cost = [cost = problem.cost, share](std::span<const std::vector<int32_t>> tasks) {
    FusedCost clock = cost(tasks.front());
    for (const std::vector<int32_t>& jobs : tasks.subspan(1)) {
      const FusedCost next = cost(jobs);
      for (size_t s = 0; s < clock.stages.size(); ++s) {
        clock.stages[s].forward_s += next.stages[s].forward_s;
        clock.stages[s].backward_s += next.stages[s].backward_s;
        clock.stages[s].kept_bytes += next.stages[s].kept_bytes;
        clock.workspace_bytes[s] = std::max(clock.workspace_bytes[s], next.workspace_bytes[s]);
      }
      clock.message_bytes += next.message_bytes;
    }
    for (StageCost& stage : clock.stages) {
      if (tasks.size() == 1) break;  // nothing to hide behind
      stage.forward_s *= std::max(share, 1 - share);
      stage.backward_s *= std::max(share, 1 - share);
    }
    return clock;
  };
  return problem;
}

/// Seconds of a round of so many balanced buckets under the template, simulated in full.
double seconds_of(const FusionProblem& problem, const HybridTasks& tasks, size_t count) {
  std::vector<double> latencies;
  for (const std::vector<int32_t>& jobs : tasks) {
    const StageCost first = problem.cost(jobs).stages.front();
    latencies.push_back(first.forward_s + first.backward_s);
  }
  const PipelineWork work = round_of_buckets(problem, tasks, balanced_buckets(latencies, static_cast<int64_t>(count)));
  const auto times = ComputeGraph(work, problem.cluster).times(structured_template(work, problem.cluster));
  return makespan_s(times.value()) / static_cast<double>(problem.rounds);
}

TEST(ChooseHybridTasks, TakeTheNumberOfBucketsWhoseTimeIsTheLeastOfAllNumbers) {
  int64_t alternatives = 0, fewer_buckets = 0, in_between = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    FusionProblem problem = random_fusion(1700 + seed, {.jobs = 2 + static_cast<int64_t>(seed % 7)});
    if (seed % 4 != 3) problem = with_communication(std::move(problem), 0.1 * static_cast<double>(1 + seed % 6));
    ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
    for (const HybridTasks& tasks : fused_and_apart(problem)) {
      for (size_t count = 1; count <= tasks.size(); ++count) {
        EXPECT_GE(seconds_of(problem, tasks, count) * order_tolerance, choice.chosen.seconds) << seed << ": " << count << " of " << tasks.size();
      }
    }
    choice.rejected.push_back(choice.chosen);
    for (const HybridTaskChoice& each : choice.rejected) {
      SCOPED_TRACE(std::to_string(seed) + " " + each.name);
      const std::vector<double>& seconds = each.seconds_of_bucket_count;
      ASSERT_EQ(seconds.size(), each.tasks.size());
      const double least = *std::min_element(seconds.begin(), seconds.end());
      EXPECT_LE(seconds.at(each.buckets.size() - 1), least * (1 + 1e-9));
      EXPECT_EQ(each.template_seconds, seconds.at(each.buckets.size() - 1));
      EXPECT_TRUE(each.order != "template" || each.seconds <= least * (1 + 1e-9)) << each.seconds << " and " << least;
      for (size_t count = 1; count <= seconds.size(); ++count) {
        const double simulated = seconds_of(problem, each.tasks, count);
        EXPECT_LE(each.template_seconds, simulated * (1 + 1e-9)) << count << " buckets";
        EXPECT_LE(seconds[count - 1], simulated * (1 + 1e-9)) << count << " buckets";
      }
      const double chosen = seconds_of(problem, each.tasks, each.buckets.size());
      EXPECT_NEAR(each.template_seconds, chosen, 1e-9 * chosen);
      ++alternatives;
      fewer_buckets += each.buckets.size() < each.tasks.size() ? 1 : 0;
      in_between += each.buckets.size() < each.tasks.size() && each.buckets.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(alternatives, 150);
  EXPECT_GT(fewer_buckets, 50);
  EXPECT_GT(in_between, 10) << "neither all in one clock nor each in its own";
}

TEST(ChooseHybridTasks, HaveOneShapePerBucketOverAHundredRounds) {
  FusionProblem problem = random_fusion(7, {.jobs = 6});
  const ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
  problem.rounds = 100;
  const PipelineWork work = round_of_buckets(problem, choice.chosen.tasks, choice.chosen.buckets);
  std::map<int32_t, std::vector<StageCost>> shapes;
  std::map<int32_t, int64_t> counts;
  for (const PipelineMicrobatch& microbatch : work.microbatches) {
    EXPECT_EQ(shapes.emplace(microbatch.hybrid_task, microbatch.cost).first->second, microbatch.cost);
    ++counts[microbatch.hybrid_task];
  }
  ASSERT_EQ(shapes.size(), choice.chosen.buckets.size());
  ASSERT_EQ(choice.chosen.backward_ratio.size(), choice.chosen.buckets.size());
  for (const auto& [bucket, cost] : shapes) {
    EXPECT_EQ(counts[bucket], 100 * problem.microbatches);
    double forward = 0, backward = 0;
    for (const StageCost& stage : cost) {
      forward += stage.forward_s;
      backward += stage.backward_s;
    }
    EXPECT_NEAR(choice.chosen.backward_ratio[static_cast<size_t>(bucket)], backward / forward, 1e-9);
  }
}

/// `count` LoRA jobs on `model`, their examples of 32 to 512 tokens.
ReplicaJobs replica_of(const std::string& preset, int64_t count, int64_t stages, int64_t batch_size) {
  ReplicaJobs replica{.model = model_preset(preset)};
  for (int64_t j = 0; j < count; ++j) {
    JobSpec spec;
    spec.adapter.r = 8 + 8 * (j % 3);
    replica.jobs.push_back({.batch_size = batch_size,
                            .lengths = {{{32 << j % 5, 1.0}}},
                            .adapters = adapter_shapes(spec, static_cast<int32_t>(j), replica.model)});
  }
  replica.stages = even_stages(replica.model, stages, 1);
  replica.machine = {device_preset("A40"), link_preset("pcie4"), "bfloat16"};
  replica.between_stages = link_preset("pcie4");
  replica.memory_bytes = replica.machine.device.usable_bytes();
  return replica;
}

/// Some adapt what gathers errors and lends columns to messages, some do not.
TEST(FusionProblem, OfDividedTokensCostsWhatStagesAndTheirMemoryDo) {
  for (const bool recompute : {false, true}) {
    ReplicaJobs replica = replica_of("tinyllama-1.1b", 3, 2, 3);
    replica.jobs[1].adapters = {{1, AdapterMethod::bottleneck, 5, Projection::down, 40, 0}, {1, AdapterMethod::lora, 12, Projection::o, 8, 0}};
    replica.jobs[2].adapters = {{2, AdapterMethod::diff_pruning, 13, Projection::gate, 0, 900}};
    replica.stages = even_stages(replica.model, 2, 4, true);
    replica.machine.recompute = recompute;
    const FusionProblem problem = fusion_problem(replica, 1);
    EXPECT_EQ(problem.clock_cost, nullptr) << "every collective is waited for";
    for (const std::vector<int32_t>& set : std::vector<std::vector<int32_t>>{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}}) {
      std::vector<AdapterShape> adapters;
      MicrobatchCounts counts{.job_tokens = {0, 0, 0}};
      double pairs = 0;
      for (const int32_t job : set) {
        const JobShape& shape = replica.jobs[static_cast<size_t>(job)];
        adapters.insert(adapters.end(), shape.adapters.begin(), shape.adapters.end());
        const auto length = static_cast<int64_t>(shape.lengths.mean());
        counts.tokens += counts.job_tokens[static_cast<size_t>(job)] = 3 * length;
        pairs += static_cast<double>(3 * length * (length + 1) / 2);
      }
      counts.labelled = counts.tokens;
      counts.attention_pairs = static_cast<int64_t>(pairs);
      const FusedCost cost = problem.cost(set);
      EXPECT_EQ(cost.message_bytes, (counts.tokens + 3) / 4 * token_bytes(replica.model.hidden_size, 2));
      for (size_t s = 0; s < replica.stages.size(); ++s) {
        const StageSeconds seconds = stage_seconds(replica.model, replica.stages[s], adapters, counts, replica.machine);
        const StageMemory memory = stage_memory(replica.model, replica.stages[s], adapters, 2, counts, 1, 2, recompute);
        EXPECT_NEAR(cost.stages[s].forward_s, seconds.forward, 1e-9 * seconds.forward);
        EXPECT_NEAR(cost.stages[s].backward_s, seconds.backward, 1e-9 * seconds.backward);
        EXPECT_EQ(cost.stages[s].kept_bytes, memory.activations);
        EXPECT_EQ(cost.workspace_bytes[s], memory.workspace);
      }
    }
  }
}

TEST(ChooseHybridTasks, OnOneDeviceFuseAllJobsWhileTheyFitAndCutThemFinerWhereTheyDoNot) {
  ReplicaJobs replica = replica_of("smollm2-135m", 8, 1, 2);
  const auto problems = fusion_problems(replica);
  ASSERT_GT(problems.size(), 1u);
  const ChosenHybridTasks roomy = choose_hybrid_tasks(problems);
  EXPECT_EQ(roomy.chosen.tasks.size(), 1u);
  EXPECT_EQ(roomy.chosen.microbatches, 1);
  for (const HybridTaskChoice& each : roomy.rejected) EXPECT_NE(each.rejected_for.find("slower"), std::string::npos);

  // Room for half of what that takes.
  const int64_t resident = resident_memory(replica).front().total();
  replica.memory_bytes = resident + (roomy.chosen.activation_bytes[0] + roomy.chosen.workspace_bytes[0]) / 2;
  const ChosenHybridTasks tight = choose_hybrid_tasks(fusion_problems(replica));
  ASSERT_TRUE(tight.chosen.fits());
  EXPECT_GT(tight.chosen.microbatches * static_cast<int64_t>(tight.chosen.tasks.size()), 1);
  EXPECT_LE(resident + tight.chosen.activation_bytes[0] + tight.chosen.workspace_bytes[0], replica.memory_bytes);
  EXPECT_GE(tight.chosen.seconds, roomy.chosen.seconds);
  const auto is_whole = [](const HybridTaskChoice& each) { return each.microbatches == 1 && each.tasks.size() == 1; };
  const auto whole = std::find_if(tight.rejected.begin(), tight.rejected.end(), is_whole);
  ASSERT_NE(whole, tight.rejected.end());
  EXPECT_NE(whole->rejected_for.find("stage 1 of 1"), std::string::npos) << whole->rejected_for;

  replica.memory_bytes = resident;  // nothing but the model
  const ChosenHybridTasks none = choose_hybrid_tasks(fusion_problems(replica));
  EXPECT_FALSE(none.chosen.fits());
  EXPECT_FALSE(none.rejected.empty());
}

TEST(ChooseHybridTasks, OfAModelOnEightStagesAreBetterThanAllFusedAndAllApart) {
  const ReplicaJobs replica = replica_of("llama-2-7b", 16, 8, 8);
  const FusionProblem problem = fusion_problem(replica, 8);
  const ChosenHybridTasks choice = choose_hybrid_tasks(std::span(&problem, 1));
  EXPECT_EQ(choice.chosen.name, "planned");
  for (const HybridTaskChoice& each : choice.rejected) EXPECT_GT(each.seconds, choice.chosen.seconds) << each.name;
}

}  // namespace
}  // namespace cotune
