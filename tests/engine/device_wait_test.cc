// On a GPU: the host waits for the device once a round, when the results are read. Anything else that waits (an upload that
// is not asynchronous, a value read on the host, a synchronised stream) throws while a round is under way.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/random_job.h"
#include "support/test_device.h"

namespace cotune::testing {
namespace {

class ForbidWaiting {
 public:
  ForbidWaiting() { test_compute_device().plugin->forbid_waiting(true); }
  ~ForbidWaiting() { test_compute_device().plugin->forbid_waiting(false); }
};

class DeviceWait : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(DeviceWait, IsOncePerRound) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "waits of a GPU: COTUNE_TEST_DEVICE does not name one";
  const auto backbone = random_backbone(kernel_friendly_config(), GetParam(), test_device());
  Interpreter interpreter(backbone);
  int64_t reads = 0;
  interpreter.read_tensor = [&](const at::Tensor& tensor) {
    ++reads;
    test_compute_device().plugin->forbid_waiting(false);
    const at::Tensor values = tensor.cpu();
    test_compute_device().plugin->forbid_waiting(true);
    return values;
  };
  std::vector<RandomJob> jobs{lora_job("lora", 1, 4, 0.2, {"all-linear"}, {617, 9}),
                              lora_job("clipped", 2, 3, 0.0, {"q_proj", "down_proj"}, {70, 33}),
                              lora_job("sgd", 3, 2, 0.1, {"o_proj"}, {40})};
  jobs[1].optimizer.max_grad_norm = 0.5;
  jobs[2].optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1e-2, .momentum = 0.9, .max_grad_norm = 1};
  std::vector<std::unique_ptr<JobLife>> lives;
  for (const RandomJob& job : jobs) {
    lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, *backbone));
  }
  for (int round = 0; round < 2; ++round) {
    std::vector<JobRound> open;
    for (const auto& life : lives) open.push_back(life->next_round());
    reads = 0;
    std::vector<JobRound> results;
    {
      const ForbidWaiting forbidden;
      results = run_round(interpreter, open, {.token_budget = 256});
    }
    EXPECT_EQ(reads, 1);
    for (const JobRound& result : results) {
      EXPECT_TRUE(result.stepped) << result.failure;
      lives[static_cast<size_t>(result.job)]->finish_round(result);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceWait, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) { return c10::toString(info.param); });

}  // namespace
}  // namespace cotune::testing
