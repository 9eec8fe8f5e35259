// Jobs that start from an adapter that is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/adapter_folder.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t adapter_steps = 2;

class InitialAdapter : public ::testing::Test {
 protected:
  InitialAdapter() : run("initial-adapter", compared_dtype()), source(run.folder / "jobs" / "first" / "adapter") {
    run.trainer({small_job("first", AdapterMethod::lora, 1, adapter_steps)}, {})->run();
  }

  /// Trains one job that starts from the source, and one that does not.
  std::unique_ptr<Trainer> train_from_source(const std::string& expected) const {
    JobSpec next = small_job("next", AdapterMethod::lora, 2, adapter_steps);
    next.adapter.init_from = source.string();
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(0, next));
    jobs.back()->expect_initial_adapter(expected);
    jobs.push_back(run.job(1, small_job("other", AdapterMethod::lora, 3, adapter_steps)));
    TrainerOptions options;
    options.device = test_compute_device();
    auto trainer = std::make_unique<Trainer>(run.backbone, std::move(jobs), std::move(options));
    trainer->run();
    return trainer;
  }

  static void expect_it_failed_alone(const Trainer& trainer, const std::string& reason) {
    EXPECT_EQ(trainer.jobs()[0]->state().status, JobStatus::failed);
    EXPECT_EQ(trainer.jobs()[0]->state().step, 0);
    EXPECT_THAT(trainer.jobs()[0]->state().failure, HasSubstr(reason));
    EXPECT_EQ(trainer.jobs()[1]->state().status, JobStatus::finished);
  }

  SmallRun run;
  std::filesystem::path source;
};

TEST_F(InitialAdapter, ThatIsTheExpectedOneIsTaken) {
  const auto trainer = train_from_source(adapter_checksum(source));
  for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().status, JobStatus::finished) << job->state().failure;
}

TEST_F(InitialAdapter, OfWhichAFileHasChangedFailsItsJobAlone) {
  const std::string expected = adapter_checksum(source);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::string good = read_file(source / name);
    std::string changed = good;
    changed.back() = static_cast<char>(changed.back() ^ 1);
    write_file_atomically(source / name, changed);
    EXPECT_NE(adapter_checksum(source), expected);
    expect_it_failed_alone(*train_from_source(expected), source.string() + ": is no longer the adapter that the job was to start from (init_from)");
    write_file_atomically(source / name, good);
  }
  EXPECT_EQ(adapter_checksum(source), expected);
}

TEST_F(InitialAdapter, ThatIsGoneFailsItsJobAlone) {
  const std::string expected = adapter_checksum(source);
  std::filesystem::remove_all(source);
  expect_it_failed_alone(*train_from_source(expected), source.string() + ": does not exist");
}

/// The end of the first starts the others anew, which fail as well: each is told of once.
TEST_F(InitialAdapter, ThatIsGoneFailsEachOfItsJobsOnce) {
  class Ends : public RunObserver {
   public:
    void on_job_ended(const TrainingJob& job) override { names.push_back(job.spec().name); }
    std::vector<std::string> names;
  } ends;
  std::filesystem::remove_all(source);
  std::vector<std::unique_ptr<TrainingJob>> jobs;
  for (const char* name : {"a", "b", "c"}) {
    JobSpec spec = small_job(name, AdapterMethod::lora, 2, adapter_steps);
    spec.adapter.init_from = source.string();
    jobs.push_back(run.job(jobs.size(), spec));
  }
  TrainerOptions options;
  options.device = test_compute_device();
  options.observers = {&ends};
  Trainer(run.backbone, std::move(jobs), std::move(options)).run();
  EXPECT_THAT(ends.names, ::testing::UnorderedElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace cotune::testing
