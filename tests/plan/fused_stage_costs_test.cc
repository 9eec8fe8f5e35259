#include "plan/cost/fused_stage_costs.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "plan/cost/stage_memory.h"
#include "plan/synthetic_profile.h"

namespace cotune {
namespace {

/// Jobs of unlike methods and widths; some adapt everything, some the upper layers, a few projections, every third layer.
std::vector<std::vector<AdapterShape>> random_jobs(uint64_t seed, const ModelConfig& model, size_t count) {
  std::vector<std::vector<AdapterShape>> jobs(count);
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return uniform_below(seed, next++, bound); };
  const Projection all[] = {Projection::q, Projection::k, Projection::v, Projection::o,
                            Projection::gate, Projection::up, Projection::down};
  for (size_t j = 0; j < count; ++j) {
    const int64_t first = below(2) == 0 ? 0 : static_cast<int64_t>(below(static_cast<uint64_t>(model.layer_count)));
    const int64_t step = below(4) == 0 ? 3 : 1;
    const uint64_t targets = 1 + below(127);
    const auto method = static_cast<AdapterMethod>(below(3));
    const auto width = static_cast<int64_t>(4 << below(5));
    for (int64_t layer = first; layer < model.layer_count; layer += step) {
      for (size_t p = 0; p < 7; ++p) {
        if ((targets >> p & 1) == 0) continue;
        jobs[j].push_back({static_cast<int32_t>(j), method, layer, all[p], width, method == AdapterMethod::diff_pruning ? 5000 : 0});
      }
    }
  }
  return jobs;
}

TEST(FusedStageCosts, AreStageSecondsAndStageMemoryForEverySet) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const MeasuredTimes measured(synthetic_profile(model, 0), model, "profile.json");
  for (uint64_t seed = 0; seed < 60; ++seed) {
    StageMachine machine{device_preset("A40"), link_preset("pcie4"), "bfloat16"};
    machine.recompute = seed % 5 == 1;
    const bool is_measured = seed % 4 == 2;  // of one device
    if (is_measured) machine.measured = &measured;
    const size_t count = 1 + seed % 5;
    const auto jobs = random_jobs(seed, model, count);
    std::vector<int64_t> tokens;
    for (size_t j = 0; j < count; ++j) tokens.push_back(1 + static_cast<int64_t>(uniform_below(seed, 1000 + j, 900)));
    const auto stages = even_stages(model, int64_t{1} << seed % 4, !is_measured && seed % 3 == 0 ? 2 : 1);
    const FusedStageCosts table(model, stages, machine, jobs, tokens);
    for (uint64_t mask = 1; mask < uint64_t{1} << count; ++mask) {
      std::vector<int32_t> set;
      std::vector<AdapterShape> adapters;
      MicrobatchCounts counts;
      counts.job_tokens.assign(count, 0);
      for (size_t j = 0; j < count; ++j) {
        if ((mask >> j & 1) == 0) continue;
        set.push_back(static_cast<int32_t>(j));
        adapters.insert(adapters.end(), jobs[j].begin(), jobs[j].end());
        counts.tokens += counts.job_tokens[j] = tokens[j];
      }
      counts.labelled = counts.tokens;
      counts.attention_pairs = counts.tokens * 100;
      counts.job_atoms.assign(count, 0);
      for (const int32_t j : set) counts.job_atoms[static_cast<size_t>(j)] = (counts.job_tokens[static_cast<size_t>(j)] + atom_tokens - 1) / atom_tokens;
      const FusedStageCosts::Costs all = table.cost(set, counts);
      const std::vector<StageCost>& costs = all.stages;
      ASSERT_EQ(costs.size(), stages.size());
      for (size_t s = 0; s < stages.size(); ++s) {
        const StageSeconds seconds = stage_seconds(model, stages[s], adapters, counts, machine);
        EXPECT_NEAR(costs[s].forward_s, seconds.forward, 1e-9 * seconds.forward) << seed << " " << mask << " " << s;
        EXPECT_NEAR(costs[s].backward_s, seconds.backward, 1e-9 * seconds.backward) << seed << " " << mask << " " << s;
        const StageMemory memory = stage_memory(model, stages[s], adapters, 2, counts, 1, 2, machine.recompute);
        EXPECT_EQ(costs[s].kept_bytes, memory.activations) << seed << " " << mask << " " << s;
        EXPECT_EQ(all.layer_bytes[s], memory.workspace - stage_workspace(model, stages[s], 2).bytes(counts)) << seed << " " << mask;
      }
    }
  }
}

}  // namespace
}  // namespace cotune
