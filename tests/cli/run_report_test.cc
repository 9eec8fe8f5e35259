// What a run's report says of a summary (MX-15: how long backwards took beside forwards).
#include "cli/reporting/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cli/reporting/run_prediction.h"
#include "model/config/model_config.h"
#include "train/sweep_folder.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string report_of(const StageSeconds& microbatches) {
  const auto device = std::make_shared<EmulatedDevice>();
  const auto backbone = Backbone::emulated(model_preset("smollm2-135m"), at::kFloat, {}, device);
  const RunPrediction prediction(*backbone, nullptr, 0, 2);
  RunSummary summary;
  summary.microbatches = microbatches;
  ::testing::internal::CaptureStdout();
  print_run_report(summary, {}, {}, "a-run", prediction);
  return ::testing::internal::GetCapturedStdout();
}

TEST(RunReport, SaysHowLongBackwardsTookAndFlagsWhatIsAboveOnePointThree) {
  EXPECT_THAT(report_of({.forward = 1, .backward = 2}), HasSubstr("backward took 2.00 times as long as forward: far from equal (above 1.3)\n"));
  EXPECT_THAT(report_of({.forward = 10, .backward = 13.1}), HasSubstr("backward took 1.31 times as long as forward: far from equal (above 1.3)\n"));
  const std::string even = report_of({.forward = 1, .backward = 1.2});
  EXPECT_THAT(even, HasSubstr("backward took 1.20 times as long as forward\n"));
  EXPECT_THAT(even, Not(HasSubstr("far from equal")));
  EXPECT_THAT(report_of({}), Not(HasSubstr("backward took"))) << "nothing was measured";
}

}  // namespace
}  // namespace cotune
