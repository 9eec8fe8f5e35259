// Which adapters one call serves (MuxTune §3.4.3, MX-19): those of one hybrid task, never those of two.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/random_job.h"
#include "engine/reference_job.h"

namespace cotune::testing {
namespace {

/// The sets of jobs that operators with adapters were executed for, and how often operators of each kind and layer were.
struct Calls {
  std::set<std::vector<int32_t>> companies;
  std::map<std::string, int64_t> per_operator;
};

Calls calls_of(const std::vector<RandomJob>& jobs, const PackingPolicy& policy) {
  Interpreter interpreter(tiny_backbone("llama3", at::kDouble));
  std::vector<const RandomJob*> job_pointers;
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Adapter*> pointers;
  for (const RandomJob& job : jobs) {
    job_pointers.push_back(&job);
    adapters.push_back(job.make_adapter(interpreter.stage().backbone().config(), at::kDouble));
    pointers.push_back(adapters.back().get());
  }
  Calls calls;
  interpreter.stage().on_operator = [&](const Operator& op, const MicrobatchState& state, double) {
    if (op.adapters.empty()) return;
    std::vector<int32_t> company;
    for (const JobRound* round : state.jobs) company.push_back(round->job);
    std::sort(company.begin(), company.end());
    calls.companies.insert(company);
    ++calls.per_operator[op.name()];
  };
  gradients_of(interpreter, job_pointers, pointers, policy);
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

}  // namespace
}  // namespace cotune::testing
