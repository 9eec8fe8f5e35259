#include "plan/cost/overlapped_stage.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "plan/shapes/job_shape.h"
#include "schedule/stage/launch_order.h"

namespace cotune {
namespace {

/// Jobs with LoRA on some projections, each a hybrid task of its own.
struct Tasks {
  std::vector<std::vector<AdapterShape>> adapters;
  std::vector<MicrobatchCounts> counts;

  Tasks(const ModelConfig& model, uint64_t seed, int32_t count) {
    for (int32_t j = 0; j < count; ++j) {
      JobSpec spec;
      spec.adapter.r = 4 << uniform_below(seed, static_cast<uint64_t>(j), 4);
      if (uniform_below(seed, 10 + static_cast<uint64_t>(j), 2) == 0) spec.adapter.target_modules = {"q_proj", "v_proj"};
      adapters.push_back(adapter_shapes(spec, j, model));
      std::vector<double> shares(static_cast<size_t>(count), 0);
      shares[static_cast<size_t>(j)] = 1;
      counts.push_back(even_microbatch(1 + static_cast<int64_t>(uniform_below(seed, 20 + static_cast<uint64_t>(j), 4)),
                                       64 + static_cast<int64_t>(uniform_below(seed, 30 + static_cast<uint64_t>(j), 900)), shares));
    }
  }
  std::vector<ClockTask> clock() const {
    std::vector<ClockTask> tasks;
    for (size_t t = 0; t < adapters.size(); ++t) tasks.push_back({&adapters[t], &counts[t]});
    return tasks;
  }
};

StageSeconds one_after_the_other(const ModelConfig& model, const StageShape& stage, const Tasks& tasks, const StageMachine& machine) {
  StageSeconds sum;
  for (size_t t = 0; t < tasks.adapters.size(); ++t) {
    const StageSeconds own = stage_seconds(model, stage, tasks.adapters[t], tasks.counts[t], machine);
    sum.forward += own.forward;
    sum.backward += own.backward;
  }
  return sum;
}

TEST(OverlappedStage, IsNeverLongerThanTheSumNorShorterThanItsComputation) {
  const ModelConfig model = model_preset("llama-2-7b");
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int64_t ranks = int64_t{1} << seed % 3;
    const StageShape stage{.first_layer = 0, .last_layer = 8, .has_head = false, .tensor_parallel = ranks};
    const Tasks tasks(model, seed, 1 + static_cast<int32_t>(seed % 5));
    StageMachine machine{.device = device_preset("A40"), .link = link_preset("pcie4")};
    machine.recompute = seed % 7 == 3;
    const StageSeconds clock = overlapped_seconds(model, stage, tasks.clock(), machine);
    const StageSeconds sum = one_after_the_other(model, stage, tasks, machine);
    machine.link = {.bandwidth = 1e30, .latency = 0};
    const StageSeconds computing = one_after_the_other(model, stage, tasks, machine);
    EXPECT_LE(clock.forward, sum.forward * (1 + 1e-9)) << seed;
    EXPECT_LE(clock.backward, sum.backward * (1 + 1e-9)) << seed;
    EXPECT_GE(clock.forward, computing.forward * (1 - 1e-9)) << seed;
    EXPECT_GE(clock.backward, computing.backward * (1 - 1e-9)) << seed;
    if (ranks == 1) {
      EXPECT_DOUBLE_EQ(clock.total(), sum.total());
    } else if (tasks.adapters.size() > 1) {
      EXPECT_LT(clock.forward, 0.97 * sum.forward) << seed << ": an all-reduce over PCIe is worth hiding";
    } else {
      EXPECT_NEAR(clock.forward, sum.forward, 1e-9 * sum.forward) << "forward there is nothing to hide it behind";
    }
  }
}

TEST(OverlappedStage, OfManyLayersIsNearThatOfTheWholeList) {
  const ModelConfig model = model_preset("llama-2-7b");
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const bool is_last = seed % 3 == 0;
    const StageShape stage{.first_layer = is_last ? 16 : 0, .last_layer = is_last ? 32 : 16, .has_embedding = !is_last,
                           .has_head = is_last, .tensor_parallel = 2};
    const StageMachine machine{.device = device_preset("A40"), .link = link_preset("pcie4")};
    Tasks tasks(model, seed, 2 + static_cast<int32_t>(seed % 2));
    const StageSeconds extrapolated = overlapped_seconds(model, stage, tasks.clock(), machine);
    // An adapter less on a layer of another stage: layers are not alike, so nothing is extrapolated.
    for (auto& own : tasks.adapters) {
      const int64_t elsewhere = is_last ? 1 : model.layer_count - 1;
      std::erase_if(own, [&](const AdapterShape& each) { return each.layer == elsewhere; });
    }
    const StageSeconds whole = overlapped_seconds(model, stage, tasks.clock(), machine);
    EXPECT_NEAR(extrapolated.forward, whole.forward, 0.01 * whole.forward) << seed;
    EXPECT_NEAR(extrapolated.backward, whole.backward, 0.035 * whole.backward) << seed;
  }
}

TEST(OverlappedStage, HidesLessWhereCommunicationTakesMoreOfTheDevice) {
  const ModelConfig model = model_preset("llama-2-7b");
  const StageShape stage{.first_layer = 0, .last_layer = 8, .has_head = false, .tensor_parallel = 4};
  const Tasks tasks(model, 5, 2);
  StageMachine machine{.device = device_preset("A40"), .link = link_preset("pcie4")};
  double before = 0;
  for (const double share : {0.0, 0.15, 0.5, 0.9}) {
    machine.device.communication_share = share;
    const double seconds = overlapped_seconds(model, stage, tasks.clock(), machine).total();
    EXPECT_GE(seconds, before);
    before = seconds;
  }
  EXPECT_LE(before, one_after_the_other(model, stage, tasks, machine).total());
}

}  // namespace
}  // namespace cotune
