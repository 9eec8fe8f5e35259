// Gains by orchestration in closed form, MuxTune's (reference MX-39) and mLoRA's (ML-8), on ranks of a device that is not there whose clock stands still
// unless it is busy: threads, messages and sums of the engine, exact times.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "schedule/pipeline/lorapp.h"

namespace cotune {
namespace {

using namespace testing;

constexpr int64_t row_tokens = 200;  // a microbatch of its own under a budget of 256
constexpr double within = 0.10;

/// A second for each of the operators between two sums of a layer, each way, and nothing for others.
double seconds_of(const Operator& op) {
  switch (op.kind) {
    case OperatorKind::attention:
    case OperatorKind::swiglu:
    case OperatorKind::attention_backward:
    case OperatorKind::swiglu_backward: return 1;
    default: return 0;
  }
}

std::shared_ptr<EmulatedDevice> standing_device(std::function<double(int64_t bytes, int64_t ranks)> all_reduce_seconds) {
  auto device = std::make_shared<EmulatedDevice>();
  device->operator_seconds = [](const StageShape&, const Operator& op, const MicrobatchCounts&) { return seconds_of(op); };
  device->optimizer_seconds = [](int64_t, int64_t) { return 0.0; };
  device->all_reduce_seconds = std::move(all_reduce_seconds);
  device->now_s = [] { return 0.0; };
  device->sleep_until_s = [](double) {};
  return device;
}

/// Each of so many microbatches a step.
std::vector<RandomJob> equal_jobs(int64_t count, int64_t microbatches) {
  std::vector<RandomJob> jobs;
  for (int64_t i = 0; i < count; ++i) {
    jobs.push_back(lora_job(fmt::format("job{}", i), static_cast<uint64_t>(i), 4, 0, {"all-linear"},
                            std::vector<int64_t>(static_cast<size_t>(microbatches), row_tokens)));
  }
  return jobs;
}

/// So many steps of the jobs together, without a flush, on a pipeline of stages that take as long forward as backward.
double pipeline_seconds(RankThreads& ranks, const ModelConfig& config, const std::vector<RandomJob>& jobs, RankOrder order, int64_t steps = 1) {
  Rounds rounds = rounds_of(jobs, config, small_microbatches(), steps);
  const auto stage_s = static_cast<double>(2 * config.layer_count / ranks.layout().rank_count());
  const auto equal = [&](const StepPlan&, size_t, size_t) { return StageCost{.forward_s = stage_s, .backward_s = stage_s, .kept_bytes = 1}; };
  ranks.run(plan_ranks(rounds.plans, ranks.layout(), equal, {.order = order, .cluster = {}, .bytes_per_token = {1, 1}}), rounds.rounds);
  return ranks.times().seconds;
}

TEST(ClosedForms, OfTheTemplateOverTaskByTask1F1BHoldOnRanks) {
  const ModelConfig config = kernel_friendly_config(8);
  constexpr int32_t stages = 4;
  RankThreads ranks(Backbone::emulated(config, at::kFloat, {}, standing_device([](int64_t, int64_t) { return 0.0; })), even_layout(config, stages), 1);
  const std::map<int64_t, double> published{{4, 1.47}, {8, 1.26}, {16, 1.13}};  // by microbatches a step, of four tasks
  for (const auto& [microbatches, of_four] : published) {
    for (const int64_t tasks : {1, 2, 4, 8}) {
      const auto p = static_cast<double>(tasks), c = static_cast<double>(microbatches), s = static_cast<double>(stages);
      double by_task_s = 0;
      for (const RandomJob& job : equal_jobs(tasks, microbatches)) by_task_s += pipeline_seconds(ranks, config, {job}, RankOrder::one_f_one_b);
      const double gain = by_task_s / pipeline_seconds(ranks, config, equal_jobs(tasks, microbatches), RankOrder::muxtune);
      const double expected = p * (c + s - 1) / (s - 1 + p * c);
      EXPECT_NEAR(gain, expected, within * expected) << tasks << " tasks of " << microbatches << " microbatches";
      if (tasks == 4) {
        EXPECT_NEAR(gain, of_four, within * of_four);
      }
      EXPECT_LE(gain, (c + s - 1) / c * (1 + 1e-9)) << "the limit of many tasks";
    }
  }
}

TEST(ClosedForms, OfLorappOverOneAdapterHoldOnRanks) {
  const ModelConfig config = kernel_friendly_config(4);
  constexpr int64_t steps = 12;
  RankThreads ranks(Backbone::emulated(config, at::kFloat, {}, standing_device([](int64_t, int64_t) { return 0.0; })), even_layout(config, 2), 1);
  const auto seconds = [&](int64_t adapters) { return pipeline_seconds(ranks, config, equal_jobs(adapters, 1), RankOrder::lorapp, steps); };
  const double gain = 2 * seconds(1) / seconds(2), expected = lorapp_speedup(2, 2, 1);
  EXPECT_NEAR(gain, expected, within * expected) << "but for filling and emptying the pipeline";
  EXPECT_LE(gain, expected);
  EXPECT_GE(gain, 1.6) << "ML-8";
}

/// Tasks of a microbatch each on two ranks that divide all layers.
class DividedTasks {
 public:
  DividedTasks(int32_t count, double sum_s)
      : sum_s_(sum_s), device_(standing_device([sum_s, this](int64_t bytes, int64_t) { return bytes == stream_bytes() ? sum_s : 0; })) {
    std::vector<std::shared_ptr<const Backbone>> parts;
    for (int64_t index = 0; index < 2; ++index) parts.push_back(Backbone::emulated(config_, at::kFloat, {index, 2}, device_));
    ranks_ = std::make_unique<RankThreads>(parts, even_layout(config_, 1, 1, 2), 1);
    rounds_ = rounds_of(equal_jobs(count, 1), config_, small_microbatches(), 1);
    for (int32_t job = 0; job < count; ++job) ranks_->share(job, *rounds_.adapters[static_cast<size_t>(job)]);
  }

  double seconds(Interleave interleave) {
    // The embedding's sum is waited for in any case.
    const OperatorTimes times = [this](const StageShape&, const Operator& op, const MicrobatchCounts&) {
      const double own_s = seconds_of(op) + (op.kind == OperatorKind::embedding ? sum_s_ : 0);
      return OperatorTime{.compute_s = own_s, .communication_s = op.communicates ? sum_s_ : 0};
    };
    const StageGraphsOf graphs = graphs_of(config_, ranks_->layout(), rounds_.rounds, times);
    const RankPlan plan = plan_ranks({rounds_.plans.front()}, ranks_->layout(), one_unit,
                                     {.order = RankOrder::automatic, .cluster = {}, .bytes_per_token = {1, 1}, .interleave = interleave, .graphs = graphs,
                                      .rates = device_->rates});
    ranks_->run(plan, rounds_.rounds);
    return ranks_->times().seconds;
  }

 private:
  int64_t stream_bytes() const { return row_tokens * config_.hidden_size * 4; }

  const ModelConfig config_ = eight_heads(8);
  double sum_s_;
  std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<RankThreads> ranks_;
  Rounds rounds_;
};

TEST(ClosedForms, OfCommunicationHiddenUnderAnotherTasksWorkHoldOnRanks) {
  for (const int32_t count : {2, 4}) {
    for (const double sum_s : {0.25, 0.5, 1.0, 2.0}) {
      DividedTasks tasks(count, sum_s);
      const double gain = tasks.seconds(Interleave::never) / tasks.seconds(Interleave::always);
      const double bound = (1 + sum_s) / std::max(1.0, sum_s);  // (computation + communication) / the longer of them
      EXPECT_NEAR(gain, bound, within * bound) << count << " tasks, " << sum_s;
      EXPECT_LE(gain, bound) << count << " tasks, " << sum_s;
      // MX-20: where sums take from a quarter of the computation's time to twice as long, tasks side by side take at most 0.85 of it.
      EXPECT_LE(1 / gain, 0.85) << count << " tasks, " << sum_s;
    }
  }
}

}  // namespace
}  // namespace cotune
