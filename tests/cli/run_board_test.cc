#include "cli/run/run_board.h"

#include <gtest/gtest.h>

#include "model/config/model_config.h"
#include "train/training_job.h"

namespace cotune {
namespace {

TrainingJob small_lora_job() {
  ModelConfig model = model_preset("tinyllama-1.1b");
  model.layer_count = 1;
  JobSpec spec;
  spec.name = "job";
  spec.adapter.target_modules = {"q_proj"};
  spec.train.steps = 4;
  spec.train.batch_size = 1;
  JobData data;
  data.train = Dataset("made up");
  data.train.add({.tokens = {1, 2, 3}, .learned = {0, 1, 1}, .source = "", .line = 1});
  return TrainingJob(0, spec, std::move(data), model, at::kFloat, at::kCPU, "base", "no-such-folder/jobs/job");
}

/// Passes of a selection and rounds that broke off end rounds too, and no job has stepped in them.
TEST(RunBoard, CountsTheRoundsInWhichAJobStepped) {
  const TrainingJob job = small_lora_job();
  RunBoard board("no-such-folder", false, ComputeDevice{}, 0);
  board.on_round_ended(1);
  EXPECT_EQ(board.run().rounds, 0);
  EXPECT_EQ(board.run().seconds, 1);
  board.on_step({.job = &job});
  board.on_round_ended(2);
  EXPECT_EQ(board.run().rounds, 1) << "of a job that it does not show, too";
  board.show(job, false);
  board.on_step({.job = &job, .loss = 2});
  board.on_step({.job = &job, .loss = 1});
  board.on_round_ended(3);
  board.on_round_ended(4);
  EXPECT_EQ(board.run().rounds, 2);
  EXPECT_EQ(board.run().seconds, 4);
}

}  // namespace
}  // namespace cotune
