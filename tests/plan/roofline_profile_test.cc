#include "plan/cost/roofline_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "plan/cost/measured_times.h"
#include "plan/cost/stage_cost.h"

namespace cotune {
namespace {

TEST(RooflineProfile, ComesBackFromJsonAndIsReadAsMeasuredTimes) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const Profile profile = roofline_profile(model, device_preset("A40"), "bfloat16");
  EXPECT_EQ(profile.fingerprint.device, "A40");
  EXPECT_EQ(profile.fingerprint.kernels, roofline_kernels);
  EXPECT_EQ(parse_profile(to_json(profile), "profile.json"), profile);
  const MeasuredTimes times(profile, model, "profile.json");
  EXPECT_GT(times.fits().size(), 20u);
  EXPECT_EQ(roofline_profile(model, device_preset("A40"), "bfloat16"), profile) << "pure";
  try {
    roofline_profile(model, device_preset("A40"), "float64");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("float64"));
  }
}

/// Sums of terms are no maximum of two: they meet the roofline within some percent where microbatches are as large as plans have them, the slower the
/// device the closer.
TEST(RooflineProfile, PredictsStagesCloseToTheRooflineItself) {
  ModelConfig model = model_preset("llama-2-7b");
  model.layer_count = 4;
  std::vector<AdapterShape> adapters;
  for (int64_t layer = 0; layer < model.layer_count; ++layer) {
    for (const Projection each : {Projection::q, Projection::v}) adapters.push_back({0, AdapterMethod::lora, layer, each, 16});
  }
  for (const char* device : {"A40", "cpu"}) {
    const Profile profile = roofline_profile(model, device_preset(device), "bfloat16");
    const MeasuredTimes times(profile, model, "profile.json");
    const StageShape stage{.last_layer = model.layer_count};
    for (const int64_t tokens : {64, 256, 512, 1024, 2048, 4096, 8192, 16384}) {
      const MicrobatchCounts counts = even_microbatch(2, tokens / 2, {1.0});
      StageMachine roofline;
      roofline.device = device_preset(device);
      StageMachine measured = roofline;
      measured.measured = &times;
      const double truth = stage_seconds(model, stage, adapters, counts, roofline).total();
      const double fitted = stage_seconds(model, stage, adapters, counts, measured).total();
      EXPECT_NEAR(fitted / truth, 1, tokens < 256 ? 0.35 : 0.12) << device << ", " << tokens;
    }
  }
}

}  // namespace
}  // namespace cotune
