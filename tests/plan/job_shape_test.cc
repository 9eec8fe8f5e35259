#include "plan/shapes/job_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "jobs/jobs_file.h"

namespace cotune {
namespace {

std::vector<JobSpec> jobs_of(const std::string& jobs) {
  return parse_jobs_file("cotune: 1\nmodel: {config: x, weights: none}\njobs:\n" + jobs, "j.yaml", "/f", {}, Purpose::plan).jobs;
}

TEST(JobShapes, HoldBatchLengthsAndAdapters) {
  const ModelConfig model = model_preset("llama-2-7b");
  const std::vector<JobShape> shapes = job_shapes(
      jobs_of("  - {name: a, data: {lengths: {64: 3, 9000: 1}}, train: {batch_size: 32}, adapter: {r: 16, target_modules: all-linear}}\n"
              "  - {name: b, data: {lengths: xsum-gamma, max_length: 2048}, adapter: {method: diff_pruning, density: 0.01}, "
              "train: {optimizer: sgd}}\n"),
      model);
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].batch_size, 32);
  EXPECT_EQ(shapes[0].lengths.longest(), 4096) << "the model's context";
  EXPECT_EQ(shapes[0].adapters.size(), 7u * 32);
  EXPECT_EQ(shapes[0].adapters[0].width, 16);
  EXPECT_EQ(shapes[1].lengths.longest(), 2048);
  EXPECT_EQ(shapes[1].adapters[0].job, 1);
  EXPECT_EQ(shapes[1].adapters[0].entries, 167773) << "1% of 4096², rounded up";
  EXPECT_EQ(shapes[1].moment_count, 0);
}

TEST(JobShapes, OfAModelWithoutAGateHaveNoneToAdapt) {
  const auto jobs = jobs_of("  - {name: a, data: {lengths: [9]}, adapter: {target_modules: all-linear}}\n");
  EXPECT_EQ(job_shapes(jobs, model_preset("opt-30b"))[0].adapters.size(), 6u * 48);
}

TEST(JobShapes, NameEveryMistakeWithItsPlace) {
  const auto jobs = jobs_of("  - {name: a, data: {lengths: xsum-gama}}\n  - {name: b, data: {train: t}}\n");
  try {
    job_shapes(jobs, model_preset("llama-2-7b"));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("j.yaml:4: jobs[0].data.lengths: length histogram 'xsum-gama' is not known (did you mean 'xsum-gamma'?)"));
    EXPECT_THAT(error.what(), testing::HasSubstr("j.yaml:5: jobs.b.data.lengths: is missing"));
  }
  const auto read = [](const JobSpec&) { return LengthHistogram{{{5, 1}}}; };
  EXPECT_EQ(job_shapes(jobs_of("  - {name: b, data: {train: t}}\n"), model_preset("llama-2-7b"), read)[0].lengths.longest(), 5);
}

}  // namespace
}  // namespace cotune
