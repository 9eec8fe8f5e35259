// Evaluations whose held-out rows go through the model in several blocks find what those in one find, and keep no rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>

#include "jobs/parallel.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::HasSubstr;

constexpr HeldOutBlock few_rows{.tokens = 40, .rows = 2};

/// Each with five held-out rows of up to 30 tokens, evaluated three times.
std::vector<JobSpec> evaluated_jobs() {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, 4), small_job("bottleneck", AdapterMethod::bottleneck, 2, 4)};
  for (JobSpec& spec : specs) {
    spec.train.eval_steps = 2;
    spec.train.load_best = true;
  }
  return specs;
}

TrainerOptions in_blocks(const HeldOutBlock& block, RunObserver* observer = nullptr) {
  TrainerOptions options;
  options.held_out_block = block;
  if (observer != nullptr) options.observers = {observer};
  return options;
}

class Evaluations : public RunObserver {
 public:
  void on_computed(const StepPlan& plan, std::span<const SimulatedSpan>, bool is_evaluation) override {
    if (is_evaluation) plans.push_back(plan);
  }
  void on_evaluation(const EvaluationEvent& event) override {
    EXPECT_FALSE(event.job->holds_rows()) << event.job->spec().name;
    losses[event.job->spec().name].push_back(event.loss);
  }
  int64_t row_count() const {
    int64_t rows = 0;
    for (const StepPlan& plan : plans) rows += rows_of(plan);
    return rows;
  }
  static int64_t rows_of(const StepPlan& plan) {
    int64_t rows = 0;
    for (const BatchShape& batch : plan.batches) rows += std::ssize(batch.row_lengths);
    return rows;
  }
  std::vector<StepPlan> plans;  ///< of one rank
  std::map<std::string, std::vector<double>> losses;
};

void expect_near(double ours, double other, const std::string& what) { EXPECT_NEAR(ours, other, 1e-10 * std::abs(other)) << what; }

void expect_same_results(const Trainer& ours, const Trainer& others, const std::string& what) {
  ASSERT_EQ(ours.jobs().size(), others.jobs().size());
  for (size_t i = 0; i < ours.jobs().size(); ++i) {
    const JobState &own = ours.jobs()[i]->state(), &other = others.jobs()[i]->state();
    EXPECT_EQ(own.status, other.status) << what;
    expect_near(own.start_eval_loss, other.start_eval_loss, what);
    expect_near(own.last_eval_loss, other.last_eval_loss, what);
    expect_near(own.best_eval_loss, other.best_eval_loss, what);
    EXPECT_EQ(own.start_eval_accuracy, other.start_eval_accuracy) << what;
    EXPECT_EQ(own.last_eval_accuracy, other.last_eval_accuracy) << what;
    EXPECT_EQ(own.last_eval_step, other.last_eval_step) << what;
    EXPECT_EQ(own.best_step, other.best_step) << what;
  }
}

TEST(HeldOutBlocks, InSeveralPlansFindWhatOneFinds) {
  const std::vector<JobSpec> specs = evaluated_jobs();
  SmallRun one("one-block", at::kDouble), several("several-blocks", at::kDouble);
  Evaluations whole, cut;
  const auto expected = one.trainer(specs, in_blocks(most_held_out_at_once, &whole));
  EXPECT_EQ(expected->run().evaluation_rounds, 3);
  EXPECT_EQ(whole.plans.size(), 3u) << "all rows of both jobs in one plan";
  const auto ours = several.trainer(specs, in_blocks(few_rows, &cut));
  EXPECT_EQ(ours->run().evaluation_rounds, 3);
  EXPECT_GE(cut.plans.size(), 15u);
  for (const StepPlan& plan : cut.plans) {
    int64_t tokens = 0;
    for (const BatchShape& batch : plan.batches) {
      for (const int64_t length : batch.row_lengths) tokens += length;
    }
    EXPECT_LE(Evaluations::rows_of(plan), few_rows.rows);
    EXPECT_TRUE(tokens <= few_rows.tokens || Evaluations::rows_of(plan) == 1) << tokens;
  }
  EXPECT_EQ(cut.row_count(), whole.row_count());
  EXPECT_EQ(whole.row_count(), 3 * 2 * 5);
  expect_same_results(*ours, *expected, "several blocks");
  expect_same_adapters(finished_adapters(several, specs), finished_adapters(one, specs));
}

TEST(HeldOutBlocks, GiveAJobTheLossThatItHasAlone) {
  SKIP_ON_A_DEVICE() << "promises agreement within rounding only";
  const std::vector<JobSpec> specs = evaluated_jobs();
  for (const HeldOutBlock& block : {few_rows, HeldOutBlock{.tokens = 1000, .rows = 3}}) {
    SmallRun together("blocks-together");
    Evaluations all;
    together.trainer(specs, in_blocks(block, &all))->run();
    for (const JobSpec& spec : specs) {
      SmallRun run("blocks-alone");
      Evaluations alone;
      run.trainer({spec}, in_blocks(block, &alone))->run();
      ASSERT_EQ(alone.losses.at(spec.name).size(), 3u);
      EXPECT_EQ(all.losses.at(spec.name), alone.losses.at(spec.name)) << spec.name;
    }
  }
}

TEST(HeldOutBlocks, OnSeveralRanksFindWhatOneFinds) {
  SKIP_ON_A_DEVICE() << "several ranks";
  const std::vector<JobSpec> specs = evaluated_jobs();
  SmallRun one("blocks-on-one", at::kDouble);
  const auto expected = one.trainer(specs, {});
  expected->run();
  for (const char* degrees : {"pp=2", "dp=2"}) {
    SmallRun several("blocks-on-ranks", at::kDouble);
    Evaluations told;
    TrainerOptions options = in_blocks(few_rows, &told);
    options.parallel = *parse_parallel(degrees);
    options.ranks = options.parallel.ranks();
    options.policy.token_budget = 256;
    const auto ours = several.trainer(specs, options);
    EXPECT_EQ(ours->run().evaluation_rounds, 3) << degrees;
    EXPECT_EQ(told.losses.size(), specs.size()) << degrees;
    expect_same_results(*ours, *expected, degrees);
  }
}

/// Asks for the end when the first block of an evaluation after a step is through.
class StopsBetweenBlocks : public RunObserver {
 public:
  void on_evaluation(const EvaluationEvent&) override { is_told_ = true; }
  void on_computed(const StepPlan&, std::span<const SimulatedSpan>, bool is_evaluation) override {
    if (is_evaluation && is_told_) stop = true;
  }
  std::atomic<bool> stop{false};

 private:
  bool is_told_ = false;
};

TEST(HeldOutBlocks, BrokenOffBetweenThemAreMadeUpForByAResumedRun) {
  const std::vector<JobSpec> specs = evaluated_jobs();
  SmallRun whole("blocks-whole", at::kDouble), run("blocks-stopped", at::kDouble);
  const auto expected = whole.trainer(specs, in_blocks(few_rows));
  expected->run();
  StopsBetweenBlocks stops;
  TrainerOptions options = in_blocks(few_rows, &stops);
  options.stop = &stops.stop;
  const auto stopped = run.trainer(specs, options);
  EXPECT_TRUE(stopped->run().interrupted);
  for (const auto& job : stopped->jobs()) {
    EXPECT_EQ(job->state().step, 2);
    EXPECT_EQ(job->state().last_eval_step, 0);
    EXPECT_FALSE(job->holds_rows());
  }
  const auto resumed = run.trainer(specs, in_blocks(few_rows), true);
  resumed->run();
  expect_same_results(*resumed, *expected, "resumed");
  expect_same_adapters(finished_adapters(run, specs), finished_adapters(whole, specs));
}

TEST(HeldOutBlocks, WithAForeignTokenInALaterOneFailTheirJobAlone) {
  std::vector<JobSpec> specs = evaluated_jobs();
  std::swap(specs[0], specs[1]);  // the sound job's blocks come after those of the other
  SmallRun alone("blocks-sound", at::kDouble), run("blocks-foreign", at::kDouble);
  run.change_data = [](const JobSpec& spec, JobData& data) {
    if (spec.name != "bottleneck") return;
    Example foreign = data.eval.example(0);
    foreign.tokens.front() = 5000;
    foreign.line = 99;
    data.eval.add(foreign);
  };
  const auto expected = alone.trainer({specs[1]}, in_blocks(few_rows));
  expected->run();
  const auto trainer = run.trainer(specs, in_blocks(few_rows));
  trainer->run();
  const JobState &failed = trainer->jobs()[0]->state(), &sound = trainer->jobs()[1]->state();
  EXPECT_EQ(failed.status, JobStatus::failed);
  EXPECT_THAT(failed.failure, HasSubstr("random:99: holds token 5000"));
  EXPECT_EQ(sound.status, JobStatus::finished);
  expect_near(sound.start_eval_loss, expected->jobs()[0]->state().start_eval_loss, "before training");
  expect_near(sound.last_eval_loss, expected->jobs()[0]->state().last_eval_loss, "at the end");
}

TEST(HeldOutBlocks, HoldALongRowAndNothingBehindTheLast) {
  SmallRun run("blocks-of-a-job");
  const auto job = run.job(0, evaluated_jobs().front());
  const HeldOutBlock first = job->held_out_block(0, {.tokens = 1, .rows = 100}), rest = job->held_out_block(1, {.tokens = 1000, .rows = 100});
  EXPECT_EQ(first.rows, 1);
  EXPECT_EQ(first.tokens, job->data().eval.length(0));
  EXPECT_EQ(rest.rows, 4);
  EXPECT_EQ(first.tokens + rest.tokens, job->data().eval.token_count());
  EXPECT_EQ(job->held_out_block(2, {.tokens = 1000, .rows = 2}).rows, 2);
  EXPECT_EQ(job->held_out_block(5, {.tokens = 1000, .rows = 2}).rows, 0);
}

TEST(HeldOutResult, IsTheMeanOverAllBlocksAndNoNumberWhereNothingWasComputed) {
  JobRound block;
  block.row_loss_sums = {4, 2};
  block.labelled_tokens = 2;
  block.row_predicted = {1, 0};
  HeldOutResult result;
  EXPECT_EQ(result.loss(), 0);
  EXPECT_EQ(result.accuracy(), 0);
  result.add(block);
  block.row_loss_sums = {1, 1};
  block.row_predicted = {1, 1};
  result.add(block);
  EXPECT_EQ(result.loss(), 2);
  EXPECT_EQ(result.accuracy(), 0.75);
  block.emulated = true;
  block.row_loss_sums.clear();
  block.loss_sum = std::numeric_limits<double>::quiet_NaN();
  result.add(block);
  EXPECT_TRUE(std::isnan(result.loss()) && std::isnan(result.accuracy()));
}

}  // namespace
}  // namespace cotune::testing
