#include "cluster/kind_costs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "cluster/planned_rates.h"
#include "plan/cost/stage_memory.h"

namespace cotune {
namespace {

const std::vector<JobKind> every_kind = {{8, 64, AdapterMethod::lora, 8},         {16, 128, AdapterMethod::lora, 64},
                                         {32, 256, AdapterMethod::lora, 16},      {8, 128, AdapterMethod::bottleneck, 64},
                                         {4, 512, AdapterMethod::diff_pruning, 0}};

InstanceSpec instance_of(int64_t tensor_parallel, int64_t stages, const std::string& model = "llama-2-7b") {
  const ClusterSpec cluster{{{"a40", 4, 8, device_preset("A40"), link_preset("pcie4")}}, link_preset("infiniband-100")};
  return instances_of(cluster, model_preset(model), tensor_parallel, stages).spec;
}

JobMix random_mix(uint64_t seed, const std::vector<JobKind>& kinds, uint64_t most) {
  JobMix mix;
  const uint64_t count = 1 + uniform_below(seed, 1000, most);
  for (uint64_t i = 0; i < count; ++i) mix.add(static_cast<int32_t>(uniform_below(seed, i, kinds.size())));
  return mix;
}

void expect_near(double found, double wanted, const std::string& what) { EXPECT_NEAR(found, wanted, 1e-9 * wanted) << what; }

TEST(KindCosts, AreThoseOfStageSecondsAndStageMemory) {
  struct Case {
    int64_t tensor_parallel, stages;
    Layout layout;
  };
  for (const Case& each : {Case{1, 1, Layout::ragged}, Case{1, 4, Layout::ragged}, Case{2, 2, Layout::ragged}, Case{1, 4, Layout::padded}}) {
    InstanceSpec instance = instance_of(each.tensor_parallel, each.stages);
    instance.layout = each.layout;
    const KindCosts costs(instance, every_kind);
    const std::vector<StageShape> shapes = even_stages(instance.model, each.stages, each.tensor_parallel);
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const std::vector<int32_t> kinds = random_mix(seed, every_kind, 6).kinds();
      int64_t longest = 0;
      for (const int32_t kind : kinds) longest = std::max(longest, every_kind[static_cast<size_t>(kind)].tokens);
      MicrobatchCounts counts;
      std::vector<AdapterShape> adapters;
      double pairs = 0;
      for (size_t j = 0; j < kinds.size(); ++j) {
        const JobKind& kind = every_kind[static_cast<size_t>(kinds[j])];
        const int64_t row = each.layout == Layout::padded ? longest : kind.tokens;
        counts.job_tokens.push_back((kind.rows * row + instance.microbatches - 1) / instance.microbatches);
        counts.tokens += counts.job_tokens.back();
        pairs += static_cast<double>(kind.rows * row * (row + 1)) / 2 / static_cast<double>(instance.microbatches);
        for (const AdapterShape& adapter : adapter_shapes(kind, static_cast<int32_t>(j), instance.model)) adapters.push_back(adapter);
      }
      counts.labelled = counts.tokens;  // pads enter the head too
      counts.attention_pairs = static_cast<int64_t>(pairs);
      const FusedCost cost = costs.fused(kinds);
      EXPECT_EQ(cost.message_bytes, counts.tokens * token_bytes(instance.model.hidden_size, 2));
      for (size_t s = 0; s < shapes.size(); ++s) {
        const StageSeconds seconds = stage_seconds(instance.model, shapes[s], adapters, counts, instance.machine);
        const StageMemory memory = stage_memory(instance.model, shapes[s], adapters, 0, counts, 1, 2);
        expect_near(cost.stages[s].forward_s, seconds.forward, "forward");
        expect_near(cost.stages[s].backward_s, seconds.backward, "backward");
        expect_near(static_cast<double>(cost.stages[s].kept_bytes), static_cast<double>(memory.activations), "kept");
        expect_near(static_cast<double>(cost.workspace_bytes[s]), static_cast<double>(memory.workspace), "workspace");
      }
    }
  }
}

TEST(KindCosts, MemoryCountsEveryMicrobatchThatMayBeInFlight) {
  const InstanceSpec instance = instance_of(1, 4);
  const KindCosts costs(instance, every_kind);
  const std::vector<StageShape> shapes = even_stages(instance.model, 4, 1);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const JobMix mix = random_mix(seed, every_kind, 6);
    const std::vector<int64_t> bytes = costs.memory().bytes(mix);
    for (size_t s = 0; s < shapes.size(); ++s) {
      int64_t wanted = stage_memory(instance.model, shapes[s], {}, 0, {}, 0, 2).weights;
      for (const int32_t kind : mix.kinds()) {
        MicrobatchCounts counts{.tokens = costs.microbatch_tokens(kind), .job_tokens = {costs.microbatch_tokens(kind)}};
        const auto adapters = adapter_shapes(every_kind[static_cast<size_t>(kind)], 0, instance.model);
        const StageMemory job = stage_memory(instance.model, shapes[s], adapters, 2, counts, static_cast<int64_t>(4 - s), 2);
        wanted += job.adapters + job.activations + job.workspace;
      }
      const bool has_head = s == 3;
      const int64_t logits = has_head ? 1024 * instance.model.vocabulary_size * 6 : 0;
      EXPECT_NEAR(static_cast<double>(bytes[s]), static_cast<double>(wanted + logits), 1e-6 * static_cast<double>(wanted));
    }
  }
}

TEST(KindCosts, MemoryIsOfWholeRows) {
  const KindCosts costs(
      instance_of(1, 4),
      {{1, 512, AdapterMethod::lora, 8}, {4, 512, AdapterMethod::lora, 8}, {6, 512, AdapterMethod::lora, 8}, {8, 512, AdapterMethod::lora, 8}});
  const auto kept = [&](int32_t kind) { return costs.fused(std::vector<int32_t>{kind}).stages[3].kept_bytes; };
  EXPECT_EQ(kept(0), kept(1)) << "a row in four microbatches is one row in one of them";
  EXPECT_EQ(kept(2), kept(3)) << "six rows in four microbatches are two rows in two of them";
  const auto seconds = [&](int32_t kind) { return costs.fused(std::vector<int32_t>{kind}).stages[0].forward_s; };
  EXPECT_LT(seconds(2), seconds(3)) << "time is that of the average microbatch";
}

TEST(KindCosts, PaddedRowsAreAsLongAsTheLongestOfTheTask) {
  InstanceSpec instance = instance_of(1, 4);
  const KindCosts ragged(instance, every_kind);
  instance.layout = Layout::padded;
  const KindCosts padded(instance, every_kind);
  const std::vector<int32_t> like = {0, 0}, unlike = {0, 2};
  EXPECT_EQ(padded.fused(like), ragged.fused(like));
  EXPECT_GT(padded.fused(unlike).stages[0].forward_s, ragged.fused(unlike).stages[0].forward_s);
  EXPECT_EQ(padded.fused(unlike).message_bytes, (8 + 32) / 4 * 256 * token_bytes(4096, 2));
  EXPECT_GT(padded.memory().bytes(JobMix(unlike))[0], ragged.memory().bytes(JobMix(unlike))[0]);
}

TEST(PlannedRates, HybridIsNeverSlowerThanAllFusedOrAllApart) {
  for (const Layout layout : {Layout::ragged, Layout::padded}) {
    InstanceSpec instance = instance_of(1, 4);
    instance.layout = layout;
    const auto rates = [&](Sharing sharing) {
      instance.sharing = sharing;
      return PlannedRates(instance, every_kind);
    };
    PlannedRates hybrid = rates(Sharing::hybrid), fused = rates(Sharing::batch_all), apart = rates(Sharing::temporal);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const JobMix mix = random_mix(seed, every_kind, 8);
      if (!hybrid.memory().fits(mix)) continue;
      const double seconds = hybrid.round_seconds(mix);
      EXPECT_LE(seconds, fused.round_seconds(mix) * (1 + 1e-9));
      EXPECT_LE(seconds, apart.round_seconds(mix) * (1 + 1e-9));
    }
  }
}

TEST(PlannedRates, WhateverIsAdmittedHasARound) {
  const std::vector<JobKind> kinds = {{1, 700, AdapterMethod::lora, 8},
                                      {2, 128, AdapterMethod::lora, 64},
                                      {7, 256, AdapterMethod::bottleneck, 64},
                                      {8, 512, AdapterMethod::lora, 16}};
  for (const auto& [tensor_parallel, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}, {1, 4}}) {
    for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
      for (const Layout layout : {Layout::ragged, Layout::padded}) {
        InstanceSpec instance = instance_of(tensor_parallel, stages);
        instance.sharing = sharing;
        instance.layout = layout;
        instance.memory_bytes = (int64_t{15} << 30) / (tensor_parallel * stages) + (int64_t{1} << 30);
        PlannedRates rates(instance, kinds);
        for (uint64_t seed = 0; seed < 6; ++seed) {
          JobMix mix;
          MemoryInUse in_use(rates.memory());
          for (uint64_t i = 0; i < 40; ++i) {  // until hardly anything more fits
            const auto kind = static_cast<int32_t>(uniform_below(seed, i, kinds.size()));
            if (!in_use.fits(kind)) continue;
            mix.add(kind);
            in_use.set(mix);
          }
          ASSERT_GT(mix.job_count(), 0);
          const double seconds = rates.round_seconds(mix);  // throws where admission and planning count differently
          EXPECT_GT(seconds, 0);
          EXPECT_LT(seconds, 1e6);
        }
      }
    }
  }
}

TEST(PlannedRates, RemembersMixes) {
  PlannedRates rates(instance_of(1, 4), every_kind);
  const double seconds = rates.round_seconds(JobMix({0, 1, 1}));
  EXPECT_EQ(rates.round_seconds(JobMix({1, 0, 1})), seconds);
  EXPECT_EQ(rates.asked(), 2);
  EXPECT_EQ(rates.planned(), 1);
}

TEST(InstancesOf, CountsThemAndRefusesWhatDoesNotFit) {
  const ClusterSpec cluster{{{"a40", 16, 8, device_preset("A40"), link_preset("pcie4")}}, link_preset("infiniband-100")};
  const ModelConfig model = model_preset("llama-2-7b");
  EXPECT_EQ(instances_of(cluster, model, 1, 4).count, 32);
  EXPECT_EQ(instances_of(cluster, model, 4, 4).count, 8);
  EXPECT_EQ(instances_of(cluster, model, 1, 4).spec.between_stages, link_preset("pcie4"));
  EXPECT_EQ(instances_of(cluster, model, 4, 4).spec.between_stages, link_preset("infiniband-100"));
  EXPECT_THROW(instances_of(cluster, model, 3, 1), UserError);
  EXPECT_EQ(instances_of(cluster, model, 1, 3).count, 32);  // two devices of each node are left
  EXPECT_EQ(instances_of(cluster, model, 1, 24).count, 5);
  EXPECT_THROW(instances_of(cluster, model, 1, 12), UserError);
  EXPECT_THROW(instances_of(cluster, model, 32, 32), UserError);
  ClusterSpec two = cluster;
  two.nodes.push_back(two.nodes.front());
  EXPECT_THROW(instances_of(two, model, 1, 4), UserError);
}

}  // namespace
}  // namespace cotune
