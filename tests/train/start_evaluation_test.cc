// The evaluation of what a job starts from: the base model after the first step, an adapter of init_from before it.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "train/small_run.h"

namespace cotune::testing {
namespace {

/// What observers are told, in order: `step 1`, `evaluation of 0`; asks for the end at the first step where it is to.
class Course : public RunObserver {
 public:
  void on_step(const StepEvent& event) override {
    told[event.job->spec().name].push_back(fmt::format("step {}", event.job->state().step));
    if (stops_at_first_step) stop = true;
  }
  void on_evaluation(const EvaluationEvent& event) override {
    told[event.job->spec().name].push_back(fmt::format("evaluation of {}", event.step));
    losses[event.job->spec().name].push_back(event.loss);
  }
  std::map<std::string, std::vector<std::string>> told;
  std::map<std::string, std::vector<double>> losses;
  bool stops_at_first_step = false;
  std::atomic<bool> stop{false};
};

std::vector<JobSpec> one_of_each(int64_t steps) {
  return {small_job("lora", AdapterMethod::lora, 1, steps), small_job("bottleneck", AdapterMethod::bottleneck, 2, steps),
          small_job("diff", AdapterMethod::diff_pruning, 3, steps)};
}

TrainerOptions watched_by(Course& course) {
  TrainerOptions options;
  options.observers = {&course};
  options.stop = &course.stop;
  return options;
}

TEST(StartEvaluation, ComesAfterTheFirstStepAndIsOfTheModelAsItWasBeforeIt) {
  std::vector<JobSpec> specs = one_of_each(1);
  for (JobSpec& spec : specs) spec.train.learning_rate = 0;  // what was trained is what it started from
  SmallRun run("start-evaluation", compared_dtype());
  Course course;
  run.trainer(specs, watched_by(course))->run();
  for (const JobSpec& spec : specs) {
    EXPECT_EQ(course.told.at(spec.name), (std::vector<std::string>{"step 1", "evaluation of 0", "evaluation of 1"})) << spec.name;
    EXPECT_EQ(course.losses.at(spec.name).front(), course.losses.at(spec.name).back()) << spec.name;
  }
}

TEST(StartEvaluation, ComesBeforeTheFirstStepWhereAJobStartsFromAnAdapter) {
  SmallRun first("start-from-nothing", compared_dtype()), second("start-from-adapter", compared_dtype());
  JobSpec spec = small_job("lora", AdapterMethod::lora, 1, 3);
  const auto trained = first.trainer({spec}, {});
  trained->run();
  spec.adapter.init_from = (first.folder / "jobs/lora/adapter").string();
  Course course;
  second.trainer({spec}, watched_by(course))->run();
  const std::vector<std::string>& told = course.told.at("lora");
  EXPECT_EQ(told.front(), "evaluation of 0");
  EXPECT_EQ(std::ranges::count(told, "evaluation of 0"), 1);
  EXPECT_EQ(course.losses.at("lora").front(), trained->jobs()[0]->state().last_eval_loss);
}

TEST(StartEvaluation, ThatWasBrokenOffIsMadeByAResumedRun) {
  const std::vector<JobSpec> specs = one_of_each(4);
  SmallRun whole("start-whole", compared_dtype()), run("start-broken-off", compared_dtype());
  const auto expected = whole.trainer(specs, {});
  expected->run();
  Course course;
  course.stops_at_first_step = true;
  const auto stopped = run.trainer(specs, watched_by(course));
  EXPECT_TRUE(stopped->run().interrupted);
  EXPECT_TRUE(course.losses.empty());
  Course rest;
  const auto resumed = run.trainer(specs, watched_by(rest), true);
  resumed->run();
  for (size_t i = 0; i < specs.size(); ++i) {
    const JobState &own = resumed->jobs()[i]->state(), &other = expected->jobs()[i]->state();
    EXPECT_FALSE(std::isnan(own.start_eval_loss)) << specs[i].name;
    EXPECT_EQ(own.start_eval_loss, other.start_eval_loss) << specs[i].name;
    EXPECT_EQ(own.last_eval_loss, other.last_eval_loss) << specs[i].name;
    EXPECT_EQ(std::ranges::count(rest.told.at(specs[i].name), "evaluation of 0"), 1) << specs[i].name;
  }
  expect_same_adapters(finished_adapters(run, specs), finished_adapters(whole, specs));
}

}  // namespace
}  // namespace cotune::testing
