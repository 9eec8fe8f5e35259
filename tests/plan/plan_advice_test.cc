// What `advice` of a result says where nothing fits, followed.

#include "plan/plan_advice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/quantity_text.h"
#include "plan/plan_report.h"
#include "plan/small_problems.h"

namespace cotune {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(MakePlan, SaysWhatWouldFitWhereNothingDoes) {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 8, {512}, 16)};
  const ClusterSpec cluster = cluster_of(1, 1, "A40");
  const PlanningResult result = make_plan(model, cluster, jobs);
  EXPECT_FALSE(result.chosen.has_value());
  for (const Alternative& each : result.alternatives)
    EXPECT_THAT(each.rejected_for, HasSubstr("out of memory"));
  // 69 G parameters in bf16 are 128.5 GiB.
  EXPECT_THAT(result.advice, testing::ContainsRegex("n: rows of 512 tokens need at least 13[0-9] GiB per device, as <1,1> with "
                                                    "recomputation, 128 GiB of frozen weights of it"));
  EXPECT_THAT(result.advice, HasSubstr("4 devices would hold it as "));
  EXPECT_THAT(explain(result, cluster),
              HasSubstr("No plan: nothing that was tried fits.\nWhat would:\n  n: rows of 512"));
  // What it says holds: on four such devices there is a plan.
  EXPECT_TRUE(make_plan(model, cluster_of(4, 1, "A40"), jobs).chosen.has_value());
}

/// In one microbatch a row may take less than as a chain of small ones.
TEST(MakePlan, NeedsTheMemoryThatItSaysAndNoLess) {
  for (const auto& [name, tokens] : {std::pair("tinyllama-1.1b", 2048), std::pair("llama-2-7b", 4096)}) {
    SCOPED_TRACE(name);
    const ModelConfig model = model_preset(name);
    const std::vector<JobShape> jobs = {job_of(model, 0, 8, {tokens}, 8), job_of(model, 1, 8, {128}, 8)};
    PlanOptions options;
    options.sharing = {Sharing::hybrid};
    options.orders = {PipelineOrder::automatic};
    const auto planned = [&](double gib) {
      ClusterSpec cluster = cluster_of(1, 1, "A100-40", gib / 40);
      cluster.nodes[0].device.usable_memory = 1;
      return make_plan(model, cluster, jobs, options);
    };
    const std::string advice = planned(0.1).advice;
    const std::string before = "need at least ";
    ASSERT_THAT(advice, HasSubstr(before));
    const double needed = std::stod(advice.substr(advice.find(before) + before.size()));
    EXPECT_NE(planned(1.01 * needed).plan(), nullptr) << advice;
    EXPECT_EQ(planned(0.98 * needed).plan(), nullptr) << advice;
  }
}

/// The bytes that stand behind these words.
int64_t bytes_after(const std::string& text, const std::string& words) {
  const size_t place = text.find(words);
  EXPECT_NE(place, std::string::npos) << words << " in " << text;
  size_t end = 0;
  const std::string from = place == std::string::npos ? "0 MiB" : text.substr(place + words.size());
  const double value = std::stod(from, &end);
  return static_cast<int64_t>(value * static_cast<double>(from.substr(end, 4) == " GiB" ? 1 << 30 : 1 << 20));
}

/// Rows share microbatches of the budget; and a pipeline need not have as many under way as it has stages.
TEST(MakePlan, NeedsWithATokenBudgetTheMemoryThatItSaysAndNoLess) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  for (const auto& [nodes, devices] : {std::pair(1, 1), std::pair(1, 3)}) {
    SCOPED_TRACE(devices);
    const std::vector<JobShape> jobs = {job_of(model, 0, 8, {2048}, 8), job_of(model, 1, 1, {128}, 8)};
    PlanOptions options;
    options.recompute = Recompute::never;
    options.token_budget = 8192;
    const auto planned = [&](int64_t bytes) {
      ClusterSpec cluster = cluster_of(nodes, devices, "A40");
      cluster.nodes[0].device.memory_bytes = bytes;
      cluster.nodes[0].device.usable_memory = 1;
      return make_plan(model, cluster, jobs, options);
    };
    const std::string advice = planned(100 << 20).advice;
    const int64_t needed = bytes_after(advice, "with run.token_budget 8192 a step needs at least ");
    EXPECT_NE(planned(needed + 1).plan(), nullptr) << advice;
    EXPECT_EQ(planned(needed - shown_step(needed) - 1).plan(), nullptr) << advice;
    // The other budget, too, in the first answer.
    const std::string place = "n: run.token_budget ";
    ASSERT_THAT(advice, HasSubstr(" in its place would do with "));
    options.token_budget = std::stoll(advice.substr(advice.find(place) + place.size()));
    const int64_t less = bytes_after(advice, " in its place would do with ");
    EXPECT_LT(less, needed);
    EXPECT_NE(planned(less + 1).plan(), nullptr) << advice;
  }
}

TEST(MakePlan, SaysWithWhichTokenBudgetTheNumberOfDevicesWouldDo) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 32, {64}, 8), job_of(model, 1, 1, {2048}, 8)};
  PlanOptions options;
  options.recompute = Recompute::never;
  options.token_budget = 16384;
  const auto planned = [&](int64_t nodes) {
    ClusterSpec cluster = cluster_of(nodes, 4, "A40");
    cluster.nodes[0].device.memory_bytes = int64_t{635} << 20;
    return make_plan(model, cluster, jobs, options);
  };
  const PlanningResult result = planned(1);
  ASSERT_EQ(result.plan(), nullptr);
  EXPECT_THAT(result.advice, testing::ContainsRegex("n: with run.token_budget [0-9]+, [0-9]+ devices would hold it as "));
  const size_t place = result.advice.find(" devices would hold it as ");
  ASSERT_NE(place, std::string::npos) << result.advice;
  const size_t line = result.advice.rfind('\n', place) + 1;
  const std::string budget = "run.token_budget ", nodes = " (";
  options.token_budget = std::stoll(result.advice.substr(result.advice.find(budget, line) + budget.size()));
  EXPECT_NE(planned(std::stoll(result.advice.substr(result.advice.find(nodes, place) + nodes.size()))).plan(), nullptr) << result.advice;
}

TEST(MakePlan, SaysOfShortRowsThatTheSmallestMicrobatchDoesNotFit) {
  const ModelConfig model = model_preset("llama-2-7b");
  const std::string advice = make_plan(model, cluster_of(1, 1, "A40", 0.05), {job_of(model, 0, 4, {64}, 8)}).advice;
  EXPECT_THAT(advice, HasSubstr("n: microbatches of 256 tokens, the smallest token budget, need at least "));
  EXPECT_THAT(advice, Not(HasSubstr("rows of 256")));
}

TEST(MakePlan, SaysOfNumbersOfNodesThatAreNoPowersOfTwoTooThatTheyWouldDo) {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 8, {512}, 16)};
  EXPECT_THAT(make_plan(model, cluster_of(1, 1, "RTX4090"), jobs).advice, HasSubstr("7 devices would hold it as <1,7> with recomputation (7 nodes"));
  EXPECT_TRUE(make_plan(model, cluster_of(7, 1, "RTX4090"), jobs).chosen.has_value());
  EXPECT_FALSE(make_plan(model, cluster_of(6, 1, "RTX4090"), jobs).chosen.has_value());
}

TEST(MakePlan, SaysWhichRowsFitWhereTheLongestDoNot) {
  const ModelConfig model = model_preset("llama-2-7b");
  const ClusterSpec cluster = cluster_of(1, 1, "RTX4090");
  PlanOptions options;
  options.recompute = Recompute::never;
  const PlanningResult result = make_plan(model, cluster, {job_of(model, 0, 4, {100, 4096}, 16)}, options);
  ASSERT_FALSE(result.chosen.has_value());
  const int64_t reach = result.configurations[0].longest_row;
  ASSERT_GT(reach, 256);
  EXPECT_THAT(result.advice,
              HasSubstr(fmt::format("as it is, rows of up to {} tokens fit (data.max_length)", reach)));
  EXPECT_TRUE(make_plan(model, cluster, {job_of(model, 0, 4, {100, reach}, 16)}, options).chosen.has_value());
}

TEST(MakePlan, SaysWhichMicrobatchesFitWhereRowsDo) {
  const ModelConfig model = model_preset("llama-2-7b");
  const ClusterSpec cluster = cluster_of(1, 1, "A40");
  const std::vector<JobShape> jobs = {job_of(model, 0, 64, {100, 2048}, 16), job_of(model, 1, 64, {300, 1024}, 16)};
  PlanOptions options;
  options.token_budget = 65536;
  options.recompute = Recompute::never;
  const PlanningResult large = make_plan(model, cluster, jobs, options);
  ASSERT_FALSE(large.chosen.has_value());
  const int64_t reach = large.configurations[0].chunk_tokens;
  EXPECT_THAT(large.advice, StartsWith(fmt::format("  n: rows of 2048 tokens fit; a microbatch may have up to {0} tokens, as <1,1>.\n"
                                                   "  n: run.token_budget is 65536; 2048 to {0} would do.\n"
                                                   "  n: with run.token_budget 65536 a step needs at least ", reach)));
  options.token_budget = reach;  // what it says holds
  EXPECT_TRUE(make_plan(model, cluster, jobs, options).chosen.has_value());

  options.sharing = {Sharing::batch_all};  // for which the budget would not matter on one device
  const PlanningResult fused = make_plan(model, cluster, jobs, options);
  ASSERT_FALSE(fused.chosen.has_value());
  EXPECT_THAT(fused.advice, HasSubstr("run.sharing batch-all puts all rows of a step into one microbatch"));
  EXPECT_THAT(fused.advice, Not(HasSubstr("device would hold")));
  EXPECT_THAT(fused.advice, Not(HasSubstr("token_budget")));
  options.token_budget = 0;
  for (const Sharing sharing : {Sharing::hybrid, Sharing::temporal, Sharing::separate}) {
    options.sharing = {sharing};
    EXPECT_TRUE(make_plan(model, cluster, jobs, options).chosen.has_value()) << static_cast<int>(sharing);
  }
}

/// Whole it fits; a chain of it keeps gradients of keys and values besides.
TEST(MakePlan, SaysOfATokenBudgetThatCutsTheLongestRowWhichWouldDo) {
  const ModelConfig model = model_preset("llama-2-7b");
  ClusterSpec cluster = cluster_of(1, 1, "A100-40", 16.45 / 40);
  cluster.nodes[0].device.usable_memory = 1;
  const std::vector<JobShape> jobs = {job_of(model, 0, 8, {4096}, 8), job_of(model, 1, 8, {128}, 8)};
  PlanOptions options;
  options.sharing = {Sharing::hybrid};
  options.orders = {PipelineOrder::automatic};
  options.token_budget = 2048;
  const PlanningResult cut = make_plan(model, cluster, jobs, options);
  ASSERT_EQ(cut.plan(), nullptr);
  EXPECT_THAT(cut.advice, testing::ContainsRegex("n: run.token_budget is 2048; 4096 to [0-9]+ would do"));
  options.token_budget = 4096;
  EXPECT_NE(make_plan(model, cluster, jobs, options).plan(), nullptr) << cut.advice;
}

TEST(MakePlan, SaysUnderBatchAllWhichSharingTheRowsThatFitAreMeantFor) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const ClusterSpec cluster = cluster_of(1, 1, "A40", 2.6 / 48);
  const auto jobs = [&](int64_t longest) { return std::vector{job_of(model, 0, 2, {longest}, 8), job_of(model, 1, 8, {128}, 8)}; };
  PlanOptions options;
  options.sharing = {Sharing::batch_all};
  const std::string advice = make_plan(model, cluster, jobs(8192), options).advice;
  const std::string before = "as it is, rows of up to ";
  ASSERT_THAT(advice, HasSubstr(before));
  EXPECT_THAT(advice, HasSubstr("run.sharing batch-all puts all rows of a step into one microbatch; this holds under hybrid, temporal and separate"));
  const int64_t reach = std::stoll(advice.substr(advice.find(before) + before.size()));
  EXPECT_EQ(make_plan(model, cluster, jobs(reach), options).plan(), nullptr);
  options.sharing = {Sharing::hybrid};
  EXPECT_NE(make_plan(model, cluster, jobs(reach), options).plan(), nullptr) << advice;
}

/// A configuration whose microbatches are smaller than an atom holds nothing, though a row of them may fit.
TEST(MakePlan, SaysOfRowsThatTheyFitOnlyWhereAPlanHoldsThem) {
  const ModelConfig model = model_preset("smollm2-135m");
  for (const int64_t budget : {0, 1024}) {
    for (const int64_t mib : {236, 300, 360, 600}) {
      SCOPED_TRACE(fmt::format("budget {}, {} MiB", budget, mib));
      ClusterSpec cluster = cluster_of(1, 2, "A40");
      cluster.nodes[0].device.memory_bytes = mib << 20;
      PlanOptions options;
      options.recompute = Recompute::always;
      options.token_budget = budget;
      const auto planned = [&](int64_t longest) {
        return make_plan(model, cluster, {job_of(model, 0, 1, {longest}, 8), job_of(model, 1, 4, {std::min<int64_t>(longest, 300)}, 8)}, options);
      };
      const PlanningResult result = planned(8192);
      ASSERT_EQ(result.plan(), nullptr);
      const std::string before = "rows of up to ";
      const size_t place = result.advice.find(before);
      if (place == std::string::npos) {
        EXPECT_EQ(planned(256).plan(), nullptr) << result.advice;
      } else {
        EXPECT_NE(planned(std::stoll(result.advice.substr(place + before.size()))).plan(), nullptr) << result.advice;
      }
    }
  }
}

/// Jobs that meet in a pipeline need more than one row by itself: wherever the memory ends, something that is said leads to a plan.
TEST(MakePlan, SaysWhatWouldDoOfSeveralJobsInAPipelineToo) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 16, {200, 2048}, 64), job_of(model, 1, 2, {64}, 64), job_of(model, 2, 64, {2000}, 16)};
  for (const int64_t budget : {0, 4096}) {
    for (const int64_t mib : {960, 1160}) {
      SCOPED_TRACE(fmt::format("budget {}, {} MiB", budget, mib));
      ClusterSpec cluster = cluster_of(1, 3, "A40");
      cluster.nodes[0].device.memory_bytes = mib << 20;
      PlanOptions options;
      options.sharing = {Sharing::hybrid};
      options.token_budget = budget;
      const PlanningResult result = make_plan(model, cluster, jobs, options);
      if (result.plan() != nullptr) continue;
      const auto with_memory = [&](const std::string& words) {
        ClusterSpec larger = cluster;
        larger.nodes[0].device.memory_bytes = bytes_after(result.advice, words);
        return make_plan(model, larger, jobs, options);
      };
      const std::string would_do = fmt::format("run.token_budget is {}; ", budget);
      if (const size_t place = result.advice.find(would_do); place != std::string::npos) {
        PlanOptions other = options;
        other.token_budget = std::stoll(result.advice.substr(place + would_do.size()));
        EXPECT_NE(other.token_budget, budget);
        EXPECT_NE(make_plan(model, cluster, jobs, other).plan(), nullptr) << result.advice;
        EXPECT_NE(with_memory("(memory ").plan(), nullptr) << result.advice;
      } else {
        EXPECT_NE(with_memory("may be used; memory ").plan(), nullptr) << result.advice;
      }
    }
  }
}

TEST(MakePlan, SaysOfNoTokenBudgetThatItWouldDoInItsOwnPlace) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  ClusterSpec cluster = cluster_of(2, 2, "A40");
  cluster.nodes[0].device.memory_bytes = 256 << 20;
  PlanOptions options;
  options.token_budget = 256;
  const std::string advice = make_plan(model, cluster, {job_of(model, 0, 8, {2048}, 8), job_of(model, 1, 8, {128}, 8)}, options).advice;
  EXPECT_THAT(advice, HasSubstr("with run.token_budget 256 a step needs at least "));
  EXPECT_THAT(advice, Not(HasSubstr("in its place")));
}

/// No replica has more devices than planning looks at.
TEST(MakePlan, SaysOfNoNumberOfDevicesThatItWouldDoWhereItDoesNot) {
  const ModelConfig model = model_preset("llama-2-70b");
  const std::vector<JobShape> jobs = {job_of(model, 0, 8, {512}, 16)};
  const std::string advice = make_plan(model, cluster_of(8, 8, "A40", 2.0 / 48), jobs).advice;
  EXPECT_THAT(advice, HasSubstr("may be used; memory "));
  EXPECT_THAT(advice, Not(HasSubstr("devices would hold it")));
}

}  // namespace
}  // namespace cotune
