#include "cli/inputs/adapted_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/generation.h"
#include "formats/temporary_folder.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

TEST(AdaptedModel, OfAHugeContextIsReadyForShortRowsAndAnswersBehindLongOnes) {
  const std::filesystem::path source = source_folder() / "tests/model_weights/data/smollm2";
  auto config = nlohmann::json::parse(read_file(source / "config.json"));
  config["max_position_embeddings"] = 1'000'000'000;  // tables of them would be 16 GB
  const TemporaryFolder folder;
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", read_file(source / "model.safetensors"));
  AdaptedModel model(folder.path().string(), {}, "float32", "cpu");
  model.load();
  const int64_t first = model.backbone()->positions();
  EXPECT_LE(first, 8192);

  GenerationRequest request;
  for (int64_t i = 0; i + 4 < first; ++i) request.prompt.push_back(static_cast<int32_t>(i * i % 127));
  request.max_new_tokens = 10;
  const auto ready = Backbone::load(model.files(), model.compute(), at::kCPU, {.training = false, .positions = first + 64});
  const GeneratedAnswer found = Generator(model.backbone()).generate({&request, 1}).front();
  EXPECT_EQ(found.tokens, Generator(ready).generate({&request, 1}).front().tokens);
  EXPECT_EQ(found.stop, StopReason::max_new_tokens);
  EXPECT_GT(model.backbone()->positions(), first);
}

}  // namespace
}  // namespace cotune
