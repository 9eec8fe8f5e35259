// Peaks that follow measured ones while a run goes on, on one rank and on several: what they foretell, whom they let in, and that the limit
// holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "engine/memory_facts.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/peak_memory.h"
#include "train/divided_memory.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

constexpr std::array divisions{"dp=1", "pp=2", "tp=2", "dp=2", "dp=1+pp=2"};

/// The bound that admission begins with.
int64_t bound_of(const SmallRun& run, const std::vector<JobSpec>& specs, const TrainerOptions& options, at::ScalarType compute) {
  release_unused_memory();
  MemoryFacts facts = memory_facts(compute, at::kCPU);
  set_division(facts, options.parallel, options.pipeline_order, options.interleave, {});
  facts.weight_bytes = memory_usage().held_bytes;
  std::vector<JobFootprint> jobs;
  for (size_t i = 0; i < specs.size(); ++i) jobs.push_back(run.job(i, specs[i])->footprint());
  PackingPolicy policy = options.policy;
  policy.layer_count = small_config().layer_count;
  return predict_memory(small_config(), jobs, policy, facts).total();
}

class LearnedPeaks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SKIP_ON_A_DEVICE() << "counts the host's tensors"; }
  /// ATen's attention scores grow with the squares of rows, which tokens alive say nothing of.
  static bool has_own_kernels() { return kernel_isa(at::kFloat, at::kCPU) != kernels::Isa::none; }
  static at::ScalarType compute() { return has_own_kernels() ? at::kFloat : at::kDouble; }

  /// Threads that do not wait for each other hold what one holds, or both at once, as they happen to meet: a factor of two, of which a
  /// fit may be off by half. Those that divide layers go in step.
  static double most_error() {
    const std::string division = GetParam();
    if (division != "dp=1" && division != "tp=2") return 0.5;
    return has_own_kernels() ? 0.1 : 0.25;
  }

  static TrainerOptions options() {
    TrainerOptions options;
    options.parallel = *parse_parallel(GetParam());
    options.ranks = options.parallel.ranks();
    options.rounds_at_once = 1;
    return options;
  }

  /// With the parts of the model that the division takes.
  static std::unique_ptr<SmallRun> run_of(const std::string& name, TrainerOptions& options) {
    auto run = std::make_unique<SmallRun>(name, compute());
    if (options.parallel.divides_layers()) {
      for (int64_t index = 0; index < 2; ++index) {
        options.parts[2].push_back(Backbone::load(random_model(small_config(), 5), compute(), at::kCPU, {.shard = {index, 2}}));
      }
      if (options.parallel.replicas.size() == 1) run->backbone = options.parts[2].front();
    }
    return run;
  }

  static int64_t bound_of(const SmallRun& run, const std::vector<JobSpec>& specs, const TrainerOptions& options) {
    return cotune::testing::bound_of(run, specs, options, compute());
  }
};

/// What happened, in order.
class Story : public RunObserver {
 public:
  void on_job_started(const TrainingJob& job) override { events.push_back("start " + job.spec().name); }
  void on_job_ended(const TrainingJob& job) override { events.push_back("end " + job.spec().name); }
  void on_notice(const std::string& text) override { notices.push_back(text); }
  void on_relief(const MemoryRelief& relief) override { budgets.push_back(relief.token_budget); }
  void on_peak(const PeakEvent& event) override { peaks.push_back(event); }
  std::vector<std::string> events, notices;
  std::vector<int64_t> budgets;
  std::vector<PeakEvent> peaks;
};

std::vector<JobSpec> two_jobs(int64_t steps) {
  std::vector<JobSpec> specs{small_job("first", AdapterMethod::lora, 1, steps), small_job("second", AdapterMethod::bottleneck, 2, 4)};
  for (JobSpec& spec : specs) spec.train.batch_size = 6;
  return specs;
}

TEST_P(LearnedPeaks, AreNearerToWhatRoundsTakeThanTheirBound) {
  TrainerOptions options = this->options();
  const auto run = run_of("nearer", options);
  Story story;
  options.observers = {&story};
  const RunSummary summary = run->trainer(two_jobs(24), options)->run();
  const PredictionErrors& errors = summary.peak_prediction_errors;
  EXPECT_GE(errors.rounds, 16);
  EXPECT_LE(errors.rounds, 20) << "the first four of a job are predicted by nothing";
  EXPECT_LT(errors.after(), errors.before() / 2);
  EXPECT_LT(errors.after(), most_error());
  ASSERT_FALSE(story.peaks.empty());
  EXPECT_LT(story.peaks.back().correction_bytes, 0);
  options.learns_peaks = false;
  options.observers.clear();
  EXPECT_EQ(run->trainer(two_jobs(5), options)->run().peak_prediction_errors, PredictionErrors{});
}

TEST_P(LearnedPeaks, LetAJobInAsSoonAsTheyLeaveRoomAndTheLimitHolds) {
  const std::vector<JobSpec> specs = two_jobs(24);
  for (const bool learns : {true, false}) {
    TrainerOptions options = this->options();
    const auto run = run_of("let-in", options);
    options.learns_peaks = learns;
    options.tensor_limit_bytes = bound_of(*run, specs, options) - 1;
    Story story;
    options.observers = {&story};
    const auto trainer = run->trainer(specs, options);
    reset_memory_peaks();
    trainer->run();
    const std::vector<std::string> together{"start first", "start second", "end second", "end first"},
        apart{"start first", "end first", "start second", "end second"};
    EXPECT_EQ(story.events, learns ? together : apart);
    EXPECT_TRUE(story.notices.empty()) << story.notices.front();
    EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes);
  }
}

TEST_P(LearnedPeaks, LetRoundsGrowThatTheirBoundHasMadeSmaller) {
  JobSpec spec = small_job("wide", AdapterMethod::lora, 4, 16);
  spec.train.batch_size = 8;
  std::vector<std::string> adapters;
  for (const bool is_limited : {false, true}) {
    TrainerOptions options = this->options();
    const auto run = run_of("grow", options);
    run->change_data = [](const JobSpec&, JobData& data) { data.train = small_data(9, 40, 250); };
    if (is_limited) options.tensor_limit_bytes = bound_of(*run, {spec}, options) - 1;
    Story story;
    options.observers = {&story};
    const auto trainer = run->trainer({spec}, options);
    reset_memory_peaks();
    trainer->run();
    EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished);
    adapters.push_back(adapter_bytes(*run, "wide"));
    if (!is_limited) continue;
    ASSERT_GE(story.budgets.size(), 2u);
    EXPECT_LT(story.budgets.front(), options.policy.token_budget);
    EXPECT_EQ(story.budgets.back(), options.policy.token_budget);
    EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes);
  }
  if (std::string(GetParam()) == "dp=1" && has_own_kernels()) {  // ATen promises agreement within rounding only
    EXPECT_EQ(adapters[0], adapters[1]);
  }
}

TEST_P(LearnedPeaks, OfRandomMixesNeverBreakTheLimit) {
  int64_t finished = 0, waited = 0;
  for (uint64_t mix = 0; mix < 8; ++mix) {
    const auto draw = [&](uint64_t index, uint64_t below) { return static_cast<int64_t>(uniform_below(mix_key(71, mix), index, below)); };
    TrainerOptions options = this->options();
    options.policy.token_budget = 256 << draw(0, 3);
    options.policy.sharing = draw(1, 2) == 0 ? Sharing::hybrid : Sharing::temporal;
    const auto run = run_of("mix", options);
    std::vector<JobSpec> specs;
    constexpr std::array methods{AdapterMethod::lora, AdapterMethod::bottleneck, AdapterMethod::diff_pruning};
    for (int64_t job = 0; job < 4; ++job) {
      const auto index = static_cast<uint64_t>(10 * job);
      const AdapterMethod method = methods[static_cast<size_t>(draw(index + 2, 3))];
      JobSpec& spec = specs.emplace_back(small_job("job" + std::to_string(job), method, 1, 4 + draw(index + 3, 8)));
      spec.train.batch_size = 1 + draw(index + 4, 6);
      spec.adapter.r = int64_t{4} << draw(index + 5, 5);
    }
    const int64_t bound = bound_of(*run, specs, options), held = memory_usage().held_bytes;
    options.tensor_limit_bytes = held + (bound - held) * (50 + draw(1000, 50)) / 100;
    Story story;
    options.observers = {&story};
    const auto trainer = run->trainer(specs, options);
    reset_memory_peaks();
    trainer->run();
    EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes) << "mix " << mix;
    for (const auto& job : trainer->jobs()) {
      const bool has_finished = job->state().status == JobStatus::finished;
      EXPECT_TRUE(has_finished || job->state().status == JobStatus::refused) << "mix " << mix << ": " << job->state().failure;
      finished += has_finished ? 1 : 0;
    }
    const auto is_end = [](const std::string& event) { return event.starts_with("end"); };
    const auto first_end = std::ranges::find_if(story.events, is_end);
    waited += std::count_if(first_end, story.events.end(), [](const std::string& event) { return event.starts_with("start"); });
  }
  EXPECT_GE(finished, 20);  // the others are refused: held-out rows and files count too
  EXPECT_GT(waited, 0);
}

/// Of training rounds on a pipeline, the most that a rank was to keep, in units of the dearest microbatch.
class MostInFlight : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    for (const RankPlan& plan : plans.replicas) {
      int64_t dearest = 1;
      for (const PipelineMicrobatch& microbatch : plan.work.microbatches) dearest = std::max(dearest, microbatch.cost.front().kept_bytes);
      int64_t alive = 0;
      for (const Action& action : plan.schedule.ranks.front()) {
        const bool is_forward = action.kind == ActionKind::forward;
        if (!is_forward && action.kind != ActionKind::backward) continue;
        const int64_t bytes = plan.work.microbatches[static_cast<size_t>(action.microbatch)].cost.front().kept_bytes;
        alive += is_forward ? bytes : -bytes;
        most = std::max(most, static_cast<double>(alive) / static_cast<double>(dearest));
      }
    }
  }
  void on_job_ended(const TrainingJob&) override {
    if (!most_until_an_end) most_until_an_end = most;
    most = 0;
  }
  double most = 0;
  std::optional<double> most_until_an_end;
};

TEST(SpareBytesOfRuns, AreKeptByRanksWhereTheLimitLeavesThemAndNoJobWaits) {
  SKIP_ON_A_DEVICE() << "counts the host's tensors";
  std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 8), small_job("b", AdapterMethod::lora, 2, 8), small_job("c", AdapterMethod::lora, 3, 8)};
  for (size_t i = 0; i < specs.size(); ++i) specs[i].train.batch_size = 4 * static_cast<int64_t>(i + 1);
  TrainerOptions options;
  options.ranks = 2;
  options.parallel = *parse_parallel("pp=2");
  options.rounds_at_once = 4;
  options.policy.sharing = Sharing::temporal;
  options.policy.token_budget = 256;
  std::vector<std::string> adapters;
  const auto change_data = [](const JobSpec& spec, JobData& data) { data.train = small_data(7, 40, spec.name == "a" ? 60 : 250); };
  const auto most_of = [&](int64_t limit, const std::vector<JobSpec>& jobs) {
    SmallRun run("spare", at::kDouble);
    run.change_data = change_data;
    TrainerOptions own = options;
    own.tensor_limit_bytes = limit;
    MostInFlight most;
    own.observers = {&most};
    reset_memory_peaks();
    run.trainer(jobs, own)->run();
    if (limit > 0) {
      EXPECT_LE(memory_usage().peak_held_bytes, limit);
    }
    if (jobs.size() == specs.size()) adapters.push_back(adapter_bytes(run, "c"));
    return most.most_until_an_end.value();
  };
  const int64_t bound = [&] {
    SmallRun run("spare-bound", at::kDouble);
    run.change_data = change_data;
    return bound_of(run, specs, options, at::kDouble);
  }();
  EXPECT_GT(most_of(0, specs), 2.0) << "no limit";
  EXPECT_GT(most_of(2 * bound, specs), 2.0);
  EXPECT_LE(most_of(bound, specs), 2.0) << "nothing is left";
  std::vector<JobSpec> four = specs;  // the fourth can never come in beside the others
  four.push_back(small_job("d", AdapterMethod::lora, 4, 8));
  four.back().adapter.r = 4096;
  EXPECT_LE(most_of(2 * bound, four), 2.0) << "a job waits";
  for (const std::string& each : adapters) expect_close_adapter(each, adapters.front(), "c");
}

INSTANTIATE_TEST_SUITE_P(OnOneRankAndSeveral, LearnedPeaks, ::testing::ValuesIn(divisions), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '=', '_');
  std::ranges::replace(name, '+', '_');
  return name;
});

}  // namespace
}  // namespace cotune::testing
