#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "formats/temporary_folder.h"
#include "jobs/target_modules.h"
#include "merge/merged_gguf.h"
#include "merge/merged_model.h"
#include "model/config/families.h"
#include "model/config/rope.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

const fs::path models = source_folder() / "tests/model_weights/data";

struct Stopped {};

void stop_in_the_middle(int64_t done, int64_t all) {
  if (2 * done > all) throw Stopped();
}

std::unique_ptr<Adapter> lora_for(const ModelConfig& config) {
  JobSpec job;
  job.adapter.target_modules = {"all-linear"};
  AdapterSetup setup;
  setup.spec = job.adapter;
  setup.modules = resolve_target_modules(job, config.layer_count);
  setup.compute = at::kDouble;
  return make_adapter(config, std::move(setup));
}

struct Merging {
  explicit Merging(const fs::path& path) : model(open_model(path)), adapter(lora_for(model.config)), changes(*adapter) {}
  ModelFiles model;
  std::unique_ptr<Adapter> adapter;
  WeightChanges changes;
};

TEST(MergedModel, ThatIsStoppedLeavesItsFolderEmpty) {
  const TemporaryFolder folder;
  const Merging merging(models / "smollm2");
  const fs::path output = folder.path() / "merged";
  EXPECT_THROW(write_merged_model(merging.model, merging.changes, output, {.max_file_bytes = 1}, stop_in_the_middle), Stopped);
  EXPECT_TRUE(fs::is_empty(output));
  EXPECT_GT(write_merged_model(merging.model, merging.changes, output, {.max_file_bytes = 1}, [](int64_t, int64_t) {}).files, 5) << "the folder can be written to again";
}

TEST(MergedModel, OfAGgufFileHasItsConfigurationAndItsWeightsToTheBit) {
  for (const char* name : {"gguf_llama", "gguf_qwen2"}) {
    const TemporaryFolder folder;
    const ModelFiles gguf = open_model(models / name / "model.gguf");
    const fs::path output = folder.path() / "merged";
    EXPECT_THROW(write_merged_model(gguf, {}, output, {.max_file_bytes = 1}, stop_in_the_middle), Stopped);
    EXPECT_TRUE(fs::is_empty(output));
    EXPECT_EQ(write_merged_model(gguf, {}, output, {}, [](int64_t, int64_t) {}).changed, 0);
    const ModelFiles written = open_model(output);
    ModelConfig config = gguf.config;
    config.dtype = "float32";
    config.rope_scaling = named_rope_scaling(config).value();  // what the file has as a table
    EXPECT_EQ(written.config, config);
    for (const ModelTensor& tensor : model_tensors(config)) {
      EXPECT_EQ(written.weights->stored_dtype(tensor.name), gguf.weights->stored_dtype(tensor.name)) << tensor.name;
      EXPECT_TRUE(at::equal(written.load(tensor.name, at::kFloat), gguf.load(tensor.name, at::kFloat))) << tensor.name;
    }
  }
}

TEST(MergedGguf, ThatIsStoppedLeavesNoFile) {
  const TemporaryFolder folder;
  const Merging merging(models / "gguf_llama/model.gguf");
  EXPECT_THROW(write_merged_gguf(merging.model, merging.changes, folder.path() / "merged.gguf", std::nullopt, stop_in_the_middle), Stopped);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace cotune
