// Which adapters one call serves (MuxTune §3.4.3, MX-19): those of one hybrid task, never those of two.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/job_adapters.h"
#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "engine/reference_job.h"
#include "ops/call_counts.h"
#include "schedule/adapter_shape.h"
#include "schedule/stage/subgraphs.h"

namespace cotune::testing {
namespace {

/// The sets of jobs that operators with adapters were executed for, and how often operators of each kind and layer were.
struct Calls {
  std::set<std::vector<int32_t>> companies;
  std::map<std::string, int64_t> per_operator;
};

Calls calls_of(const std::vector<RandomJob>& jobs, const PackingPolicy& policy) {
  Interpreter interpreter(tiny_backbone("llama3", at::kDouble));
  const JobAdapters adapters(jobs, interpreter.stage().backbone());
  Calls calls;
  interpreter.stage().on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
    if (op.adapters.empty()) return;
    std::vector<int32_t> company;
    for (const JobRound* round : state.jobs) company.push_back(round->job);
    std::sort(company.begin(), company.end());
    calls.companies.insert(company);
    ++calls.per_operator[op.name()];
  };
  gradients_of(interpreter, adapters.jobs, adapters.pointers, policy);
  return calls;
}

const std::vector<RandomJob>& three_jobs() {
  static const std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0.1, {"all-linear"}, {20, 9}),
                                           lora_job("b", 2, 8, 0.0, {"all-linear"}, {31}),
                                           lora_job("c", 3, 2, 0.0, {"all-linear"}, {7, 7, 7})};
  return jobs;
}

TEST(AdapterCalls, ServeAllJobsOfAHybridTask) {  // rule 1
  const Calls calls = calls_of(three_jobs(), {});
  EXPECT_THAT(calls.companies, ::testing::ElementsAre(std::vector<int32_t>{0, 1, 2}));
  for (const auto& [name, count] : calls.per_operator) EXPECT_EQ(count, 1) << name;
}

// Rules 2 and 3. The paper lets hybrid tasks of one job each share an adapter call inside a bucket; here such jobs are made
// one hybrid task instead, which shares the frozen products too.
TEST(AdapterCalls, NeverServeJobsOfTwoHybridTasks) {
  for (const std::vector<std::vector<int32_t>>& tasks :
       {std::vector<std::vector<int32_t>>{{0}, {1, 2}}, {{2, 0}, {1}}, {{0}, {1}, {2}}}) {
    const Calls calls = calls_of(three_jobs(), {.hybrid_tasks = tasks});
    std::set<std::vector<int32_t>> expected;
    for (std::vector<int32_t> task : tasks) {
      std::sort(task.begin(), task.end());
      expected.insert(task);
    }
    EXPECT_EQ(calls.companies, expected);
    for (const auto& [name, count] : calls.per_operator) EXPECT_EQ(count, static_cast<int64_t>(tasks.size())) << name;
  }
}

/// An operator with adapters that a rank executed.
struct Executed {
  std::string name;
  std::set<int32_t> jobs;  ///< whose adapters it served
  bool operator==(const Executed&) const = default;
};

Executed executed(const Operator& op) {
  Executed result{op.name(), {}};
  for (const AdapterShape& adapter : op.adapters) result.jobs.insert(adapter.job);
  return result;
}

std::set<int32_t> jobs_of(const Microbatch& microbatch) {
  std::set<int32_t> jobs;
  for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
  return jobs;
}

/// What the clocks of a round launch on a rank that has all layers, in order.
std::vector<Executed> launched(const RankPlan& plan, const ModelConfig& config, const StageShape& stage, const std::vector<JobRound>& rounds) {
  std::vector<Executed> order;
  for (const Action& action : plan.ranks.front()) {
    if (action.clock < 0) continue;  // neither forward nor backward
    const PipelineClock& clock = plan.clocks[static_cast<size_t>(action.clock)];
    const bool forward = action.kind == ActionKind::forward;
    for (const Launch& launch : forward ? clock.stages.front().forward : clock.stages.front().backward) {
      const auto microbatch = static_cast<size_t>(clock.microbatches[static_cast<size_t>(launch.task)]);
      std::vector<AdapterShape> adapters;
      for (const int32_t job : jobs_of(plan.rounds.front().microbatches[microbatch])) {
        const AdapterSetup& setup = rounds[static_cast<size_t>(job)].adapter->setup();
        std::ranges::copy(adapter_shapes(job, setup.spec, setup.modules, config), std::back_inserter(adapters));
      }
      const std::vector<Operator> list = stage_operators(config, stage, adapters, forward ? Direction::forward : Direction::backward);
      const SubgraphDag graph = subgraphs_of(list, std::vector<OperatorTime>(list.size()));
      for (const int32_t index : graph[static_cast<size_t>(launch.subgraph)].operators) {
        const Operator& op = list[static_cast<size_t>(index)];
        if (!op.adapters.empty()) order.push_back(executed(op));
      }
    }
  }
  return order;
}

// Buckets as they execute: two ranks divide the layers, and run a microbatch of a hybrid task of one job beside one of a task of
// two (MX-19's acceptance check). Each call serves one of the tasks, and no task takes more calls for having more jobs; the order is the
// one planned, and the bits are those of one microbatch after the other.
TEST(AdapterCalls, OfBucketsThatAreExecutedServeOneHybridTaskEach) {
  const ModelConfig config = eight_heads(2);
  const auto parts = divided_parts(config, 2);
  RankThreads ranks(parts, even_layout(config, 1, 1, 2), 1);
  const std::vector<RandomJob> jobs{lora_job("alone", 1, 4, 0, {"all-linear"}, {100, 120, 110, 90}),
                                    lora_job("first of two", 2, 8, 0, {"all-linear"}, {80, 70, 60, 90}),
                                    lora_job("second of two", 3, 2, 0, {"all-linear"}, {50, 60, 30, 80, 40}),
                                    lora_job("another alone", 4, 4, 0, {"all-linear"}, {200, 180})};
  const std::vector<std::set<int32_t>> tasks{{0}, {1, 2}, {3}};
  const PackingPolicy policy{.sharing = Sharing::hybrid, .token_budget = 256, .hybrid_tasks = {{0}, {1, 2}, {3}}};

  std::vector<std::vector<Executed>> order(2);
  std::map<std::string, std::set<int64_t>> calls;  // of an operator, whatever the company
  CallCounts before;
  ranks.observe([&](int32_t rank, const Operator& op) {
    if (!op.adapters.empty()) order[static_cast<size_t>(rank)].push_back(executed(op));
    if (rank > 0) return;
    const CallCounts now = call_counts();  // of this thread, which is the rank's
    if (!op.adapters.empty()) calls[op.name()].insert((now - before).adapter);
    before = now;
  });
  const auto switches = [](const std::vector<Executed>& list) {
    size_t count = 0;
    for (size_t i = 1; i < list.size(); ++i) count += list[i].jobs != list[i - 1].jobs ? 1 : 0;
    return count;
  };
  const auto expect_one_task_a_call = [&] {
    for (const Executed& each : order[0]) {
      EXPECT_TRUE(std::ranges::any_of(tasks, [&](const auto& task) { return std::ranges::includes(task, each.jobs); })) << each.name;
    }
    EXPECT_EQ(order[0], order[1]);
  };
  const auto one_by_one = [&](Round& round) {
    order = {{}, {}};
    ranks.run(plan_round(round.plan, ranks.layout()), round.rounds);
    expect_one_task_a_call();
    EXPECT_LT(switches(order[0]), 2 * round.plan.microbatches.size());
  };
  size_t unlike_pairs = 0;
  const auto in_buckets = [&](Round& round) {
    order = {{}, {}};
    const RankPlan plan = plan_interleaved_round(round.plan, round.rounds, config, ranks.layout());
    for (const PipelineClock& clock : plan.clocks) {
      if (clock.microbatches.size() < 2) continue;
      const auto company = [&](size_t place) { return jobs_of(round.plan.microbatches[static_cast<size_t>(clock.microbatches[place])]); };
      unlike_pairs += company(0).size() != company(1).size() ? 1 : 0;
    }
    ranks.run(plan, round.rounds);
    expect_one_task_a_call();
    EXPECT_EQ(order[0], launched(plan, config, ranks.layout().stages.front(), round.rounds));
    EXPECT_GT(switches(order[0]), 2 * round.plan.microbatches.size()) << "operators of two hybrid tasks by turns";
  };
  const auto train_with = [&](const RunRound& run) { return train(jobs, *parts.front(), policy, run, shared_with(ranks)); };
  const std::vector<at::Tensor> expected = train_with(one_by_one);
  const std::vector<at::Tensor> trained = train_with(in_buckets);
  ranks.observe({});
  EXPECT_EQ(difference_in_bits(trained, expected), "");
  EXPECT_GT(unlike_pairs, 0u);
  EXPECT_EQ(calls.size(), 2u * (4 + 4 + 4) - 1) << "forward, backward and gradients of two layers, but the lowest layer's last input gradient";
  for (const auto& [name, counts] : calls) EXPECT_EQ(counts.size(), 1u) << name << " takes calls by its jobs";
}

}  // namespace
}  // namespace cotune::testing
