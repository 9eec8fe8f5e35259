#include "cluster/step_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace cotune {
namespace {

InstanceSpec four_stages(const std::string& device = "A40") {
  const ClusterSpec cluster{{{"n", 1, 8, device_preset(device), link_preset("pcie4")}}, {}};
  return instances_of(cluster, model_preset("llama-2-7b"), 1, 4).spec;
}

std::vector<JobShape> three_jobs(const InstanceSpec& instance) {
  std::vector<JobShape> jobs;
  for (const int64_t tokens : {64, 128, 256}) {
    JobShape& job = jobs.emplace_back();
    job.name = "j" + std::to_string(tokens);
    job.batch_size = 16;
    job.lengths.weights = {{tokens, 1.0}};
    job.adapters = adapter_shapes(JobKind{16, tokens, AdapterMethod::lora, 16}, static_cast<int32_t>(jobs.size()) - 1, instance.model);
  }
  return jobs;
}

TEST(StudyStep, RunsWhatWasChosenInThePredictedTime) {
  const InstanceSpec instance = four_stages();
  const StepStudy study = study_step(instance, three_jobs(instance), {});
  EXPECT_NEAR(study.planned.makespan_s, study.chosen.chosen.seconds, 0.03 * study.chosen.chosen.seconds);
  EXPECT_EQ(study.simulated.makespan_s, study.planned.makespan_s);
  EXPECT_EQ(study.tokens, 16 * (64 + 128 + 256));
  EXPECT_THAT(to_text(study), testing::HasSubstr("tokens/s"));
  const nlohmann::json json = to_json(study);
  for (const auto& stage : json.at("stages")) EXPECT_LE(stage.at("memory_bytes"), stage.at("memory_limit_bytes"));
}

TEST(StudyStep, AStragglerCostsTimeAndTheMoreTheSlowerItIs) {
  const InstanceSpec instance = four_stages();
  const std::vector<JobShape> jobs = three_jobs(instance);
  double before = study_step(instance, jobs, {}).simulated.makespan_s;
  const double planned = before;
  for (const double factor : {1.5, 2.0, 4.0}) {
    const StepStudy study = study_step(instance, jobs, {{.rank = 2, .factor = factor}});
    EXPECT_GT(study.simulated.makespan_s, before);
    EXPECT_LE(study.simulated.makespan_s, planned * factor * (1 + 1e-9));
    EXPECT_EQ(study.planned.makespan_s, planned);
    before = study.simulated.makespan_s;
    EXPECT_THAT(to_text(study), testing::HasSubstr("they cost"));
  }
}

TEST(StudyStep, RefusesARankThatIsNotThereAndJobsThatDoNotFit) {
  const InstanceSpec instance = four_stages();
  EXPECT_THROW(study_step(instance, three_jobs(instance), {{.rank = 4, .factor = 2}}), UserError);
  InstanceSpec small = instance;
  small.memory_bytes = int64_t{2} << 30;
  try {
    study_step(small, three_jobs(small), {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("do not fit on 4 devices of 2.0 GiB"));
  }
}

}  // namespace
}  // namespace cotune
