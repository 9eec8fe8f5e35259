#include "schedule/memory/peak_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/adapter_shape.h"
#include "schedule/evaluation_policy.h"
#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/weight_memory.h"
#include "schedule/memory/worst_case.h"
#include "schedule/operator_cost.h"
#include "schedule/random_batches.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

JobFootprint lora_job(const ModelConfig& config, int32_t job, int64_t rank, int64_t rows, int64_t longest) {
  return {.job = job, .adapters = lora_everywhere(config, job, rank), .row_count = rows, .longest_row = longest};
}

int64_t round_64(int64_t tokens) { return (tokens + 63) / 64 * 64; }

/// What a plan really has alive, at most.
WorstCase worst_of(const StepPlan& plan) {
  WorstCase worst;
  int64_t alive = 0;
  std::map<std::pair<int32_t, int32_t>, int64_t> chains;
  for (const Action& action : plan.actions) {
    if (action.microbatch < 0) continue;
    const Microbatch& microbatch = plan.microbatches[static_cast<size_t>(action.microbatch)];
    const int64_t tokens = round_64(microbatch.token_count());
    if (action.kind == ActionKind::forward) {
      worst.microbatch_tokens = std::max(worst.microbatch_tokens, tokens);
      worst.alive_tokens = std::max(worst.alive_tokens, alive += tokens);
      for (const RowPart& part : row_parts(microbatch)) {
        if (part.length < part.row_length) chains[{part.job, part.row}] += part.length;
      }
    }
    if (action.kind == ActionKind::free) {
      alive -= tokens;
      if (alive == 0) {
        int64_t sum = 0;
        for (const auto& [row, length] : chains) sum += length;
        worst.chain_tokens = std::max(worst.chain_tokens, sum);
        chains.clear();
      }
    }
  }
  return worst;
}

TEST(WorstCase, BoundsEveryPlanOfRandomRounds) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Dice dice(mix_key(30, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    const std::vector<JobFootprint> jobs = footprints_of(round);
    WorstCase bound;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const WorstCase lead = worst_case(jobs, i, policy);
      bound.microbatch_tokens = std::max(bound.microbatch_tokens, lead.microbatch_tokens);
      bound.alive_tokens = std::max(bound.alive_tokens, lead.alive_tokens);
      bound.chain_tokens = std::max(bound.chain_tokens, lead.chain_tokens);
    }
    const WorstCase actual = worst_of(plan_step(round, policy));
    ASSERT_LE(actual.microbatch_tokens, bound.microbatch_tokens) << "seed " << seed;
    ASSERT_LE(actual.alive_tokens, bound.alive_tokens) << "seed " << seed;
    ASSERT_LE(actual.chain_tokens, bound.chain_tokens) << "seed " << seed;
  }
}

TEST(WorstCase, BoundsWhereThePartsOfRowsEndOverRandomRounds) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(mix_key(34, seed));
    const std::vector<BatchShape> round = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    std::vector<JobFootprint> jobs;
    for (const BatchShape& batch : round) {
      jobs.push_back({.job = batch.job, .longest_row = *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end())});
    }
    const int64_t bound = longest_part_end(jobs, policy);
    for (const Microbatch& microbatch : plan_step(round, policy).microbatches) {
      for (const RowPart& part : row_parts(microbatch)) ASSERT_LE(part.position + part.length + part.pad, bound) << "seed " << seed;
    }
  }
}

TEST(WorstCase, IsReachedByLongRows) {
  const std::vector<JobFootprint> jobs = {{.row_count = 1, .longest_row = 8192}};
  EXPECT_EQ(worst_case(jobs, 0, {.token_budget = 1024}),
            (WorstCase{.microbatch_tokens = 1024, .alive_tokens = 8192, .chain_tokens = 8192}));
  EXPECT_EQ(worst_case(jobs, 0, {.token_budget = 8192}).chain_tokens, 0);
}

TEST(PredictMemory, ActivationsBoundTheOperatorListOverRandomPlans) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  const MemoryFacts facts{.fragmentation = 1};
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(mix_key(31, seed));
    const std::vector<BatchShape> round = random_round(dice);
    PackingPolicy policy = random_policy(dice);
    policy.recompute = false;
    std::vector<JobFootprint> jobs;
    std::vector<AdapterShape> adapters;
    for (const BatchShape& batch : round) {
      jobs.push_back(lora_job(config, batch.job, dice.between(1, 64), static_cast<int64_t>(batch.row_lengths.size()),
                              *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end())));
      const int64_t lowest = dice.between(0, config.layer_count - 1);
      std::erase_if(jobs.back().adapters, [&](const AdapterShape& adapter) { return adapter.layer < lowest; });
      adapters.insert(adapters.end(), jobs.back().adapters.begin(), jobs.back().adapters.end());
    }
    const MemoryEstimate estimate = predict_memory(config, jobs, policy, facts);
    const StepPlan plan = plan_step(round, policy);
    int64_t alive = 0;
    for (const Action& action : plan.actions) {
      if (action.microbatch < 0) continue;
      const MicrobatchCounts counts = count_microbatch(plan.microbatches[static_cast<size_t>(action.microbatch)], 0);
      std::vector<AdapterShape> present;
      for (const AdapterShape& adapter : adapters) {
        const auto job = static_cast<size_t>(adapter.job);
        if (job < counts.job_tokens.size() && counts.job_tokens[job] > 0) present.push_back(adapter);
      }
      const std::vector<Operator> forward = stage_operators(config, stage, present, Direction::forward);
      const int64_t bytes = total_cost(config, stage, forward, counts, facts.element_size).bytes_saved;
      if (action.kind == ActionKind::forward) alive += bytes;
      if (action.kind == ActionKind::free) alive -= bytes;
      ASSERT_LE(alive, estimate.activations) << "seed " << seed;
    }
  }
}

TEST(PredictRounds, OfEvaluationsBoundALayerAndTheChainsOverRandomPlans) {
  const ModelConfig config = small_model();
  const StageShape stage = whole_model(config);
  const MemoryFacts facts{.fragmentation = 1};
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(mix_key(33, seed));
    const std::vector<BatchShape> held_out = random_round(dice);
    const PackingPolicy policy = random_policy(dice);
    std::vector<JobFootprint> jobs;
    std::vector<AdapterShape> adapters;
    for (const BatchShape& batch : held_out) {
      jobs.push_back(lora_job(config, batch.job, dice.between(1, 64), 1, 1));
      jobs.back().eval_row_count = static_cast<int64_t>(batch.row_lengths.size());
      jobs.back().longest_eval_row = *std::max_element(batch.row_lengths.begin(), batch.row_lengths.end());
      adapters.insert(adapters.end(), jobs.back().adapters.begin(), jobs.back().adapters.end());
    }
    const MemoryEstimate estimate = predict_rounds(config, jobs, policy, facts, RoundKind::evaluation);
    const StepPlan plan = plan_step(held_out, evaluation_policy(policy));
    for (const Microbatch& microbatch : plan.microbatches) {
      const MicrobatchCounts counts = count_microbatch(microbatch, 0);
      std::vector<AdapterShape> present;
      for (const AdapterShape& adapter : adapters) {
        const auto job = static_cast<size_t>(adapter.job);
        if (job < counts.job_tokens.size() && counts.job_tokens[job] > 0) present.push_back(adapter);
      }
      std::map<int64_t, int64_t> of_layers;
      for (const Operator& op : stage_operators(config, stage, present, Direction::forward)) {
        if (op.layer >= 0) of_layers[op.layer] += saved_bytes(config, stage, op, counts, facts.element_size);
      }
      for (const auto& [layer, bytes] : of_layers) ASSERT_LE(bytes, estimate.activations) << "seed " << seed << ", layer " << layer;
    }
    const int64_t of_token = 2 * config.key_value_size() * config.layer_count * facts.element_size;
    ASSERT_LE(worst_of(plan).chain_tokens * of_token, estimate.chain_kv) << "seed " << seed;
  }
}

TEST(PredictMemory, CountsAnEvaluationWhereHeldOutRowsTakeMoreThanTheBatch) {
  const ModelConfig config = smollm2_135m();
  const PackingPolicy policy{.token_budget = 1024};
  JobFootprint job = lora_job(config, 0, 16, 4, 64);
  const MemoryEstimate rounds = predict_memory(config, {&job, 1}, policy, {});
  job.eval_row_count = 4;
  job.longest_eval_row = 64;
  EXPECT_EQ(predict_memory(config, {&job, 1}, policy, {}), rounds) << "it keeps nothing for a backward";
  job.longest_eval_row = 8192;
  const MemoryEstimate long_rows = predict_memory(config, {&job, 1}, policy, {.fragmentation = 1});
  EXPECT_GT(long_rows.total(), rounds.total());
  EXPECT_EQ(long_rows.chain_kv, 8192LL * 30 * 2 * 192 * 2);
  EXPECT_LT(long_rows.activations, rounds.activations);
}

TEST(PredictMemory, CountsOneTensorOfACheckpointsFilesWhereItTakesMoreThanARound) {
  const ModelConfig config = smollm2_135m();
  const JobFootprint job = lora_job(config, 0, 512, 1, 8);
  MemoryEstimate estimate = predict_memory(config, {&job, 1}, {}, {});
  EXPECT_EQ(estimate.files, 512 * (576 + 1536) * 4) << "of gate_proj, up_proj or down_proj";
  const int64_t resident = estimate.weights + estimate.adapters + estimate.gradients + estimate.optimizer;
  const int64_t round = estimate.activations + estimate.chain_kv + estimate.workspace + estimate.logits;
  EXPECT_EQ(estimate.total(), resident + round);
  estimate.files = round + 1;
  EXPECT_EQ(estimate.total(), resident + estimate.files);
  EXPECT_EQ(estimate.overflowing_term(estimate.total() - 1), "files");
}

TEST(PredictMemory, RecomputationKeepsLayerInputsAndOneLayer) {
  const ModelConfig config = smollm2_135m();
  const std::vector<JobFootprint> jobs = {lora_job(config, 0, 16, 1, 8192)};
  const MemoryFacts facts{.fragmentation = 1};
  const MemoryEstimate kept = predict_memory(config, jobs, {.token_budget = 1024}, facts);
  const MemoryEstimate recomputed =
      predict_memory(config, jobs, {.token_budget = 1024, .recompute = true, .layer_count = 30}, facts);
  EXPECT_GE(recomputed.activations, 8192 * 31 * 576 * 4);  // the residual stream, f32
  EXPECT_LE(recomputed.activations, 8192 * 31 * 576 * 4 + 1024 * 16000);
  EXPECT_GT(kept.activations, 4.5 * static_cast<double>(recomputed.activations));
  EXPECT_EQ(recomputed.chain_kv, 8192LL * 30 * 2 * 192 * 6);
  // An 8,192-token row of SmolLM2 trains within 1.5 GiB above the weights.
  EXPECT_LT(recomputed.total() - recomputed.weights, 3LL << 29);
}

TEST(PredictMemory, FurtherJobsAddTheirResidentBytesAndThePackedFormsOfOneOperator) {
  const ModelConfig config = smollm2_135m();
  const MemoryFacts facts;
  const PackingPolicy policy{.token_budget = 1024};
  std::vector<JobFootprint> jobs = {lora_job(config, 0, 16, 8, 256)};
  const MemoryEstimate one = predict_memory(config, jobs, policy, facts);
  jobs.push_back(lora_job(config, 1, 16, 8, 256));
  const MemoryEstimate two = predict_memory(config, jobs, policy, facts);
  EXPECT_EQ(two.total() - two.workspace - (one.total() - one.workspace), resident_bytes(config, jobs[1], facts).total());
  // gate and up: two factors [16, 576] in panels of 32 columns, and two [16, 1536] with the rank padded to 32.
  const int64_t gate_up_forms = 2 * 32 * 1536 * 2;
  EXPECT_NEAR(static_cast<double>(two.workspace - one.workspace), gate_up_forms * facts.fragmentation, 1);
  int64_t parameters = 0;
  for (const AdapterShape& adapter : jobs[1].adapters) parameters += parameter_count(config, adapter);
  EXPECT_EQ(parameters, 4'884'480);  // as PEFT counts them
  const MemoryEstimate resident = resident_bytes(config, jobs[1], facts);
  EXPECT_EQ(resident.gradients, parameters * 4);
  EXPECT_EQ(resident.optimizer, parameters * 8);
  EXPECT_EQ(resident.adapters, parameters * 4);
}

TEST(PredictMemory, WeightsAreBothPackedFormsAndAnEmbeddingOfItsOwn) {
  const int64_t linear = 30LL * (576 * 960 + 576 * 576 + 3 * 576 * 1536), embedding = 576LL * 49152;
  const int64_t norms = 61LL * 576 * 4;
  EXPECT_EQ(predict_weight_bytes(smollm2_135m(), {}), 2 * (2 * linear + 2 * embedding) + norms);
  EXPECT_EQ(predict_weight_bytes(smollm2_135m(), {.element_size = 4, .packed = false}),
            4 * (linear + embedding) + norms);
  ModelConfig untied = smollm2_135m();
  untied.tied_embeddings = false;
  EXPECT_EQ(predict_weight_bytes(untied, {}), 2 * (2 * linear + 3 * embedding) + norms);
}

TEST(PredictMemory, WeightsHaveRotaryTablesForTheLongestRow) {
  ModelConfig config = smollm2_135m();
  config.context_length = 131072;
  const int64_t without = predict_weight_bytes(config, {});
  EXPECT_EQ(predict_weight_bytes(config, {}, 131072), without + 131072 * 64 * 4);
  EXPECT_EQ(predict_weight_bytes(config, {}, 200000), without + 131072 * 64 * 4) << "no more than the context";
  EXPECT_EQ(predict_weight_bytes(config, {.element_size = 8, .packed = false}, 100) - predict_weight_bytes(config, {.element_size = 8, .packed = false}),
            100 * 64 * 8);
  MemoryFacts parts;
  parts.ranks = parts.tensor_parallel = 3;
  EXPECT_EQ(predict_weight_bytes(config, parts, 1000) - predict_weight_bytes(config, parts), 3 * 1000 * 64 * 4) << "each part has its own";
  parts.process_stages = {whole_model(config)};
  EXPECT_EQ(predict_weight_bytes(config, parts, 1000) - predict_weight_bytes(config, parts), 1000 * 64 * 4);

  JobFootprint job = lora_job(config, 0, 8, 1, 1000);
  EXPECT_EQ(predict_memory(config, {&job, 1}, {}, {}).weights, without + 1000 * 64 * 4);
  job.eval_row_count = 1;
  job.longest_eval_row = 3000;
  EXPECT_EQ(predict_memory(config, {&job, 1}, {}, {}).weights, without + 3000 * 64 * 4);
  EXPECT_EQ(predict_memory(config, {&job, 1}, {}, {.weight_bytes = 5}).weights, 5) << "what is known has them";
}

/// In the place of the kernels'.
int64_t some_scratch(const ModelConfig& config, int64_t row_tokens, Direction direction) {
  return (direction == Direction::backward ? 14 : 6) * config.head_dim * row_tokens;
}

TEST(PredictMemory, ScratchOfAttentionGrowsWithThreadsAndTheLongestRowAlone) {
  const ModelConfig config = smollm2_135m();
  const auto workspace = [&](int64_t longest, int64_t threads) {
    const JobFootprint job = lora_job(config, 0, 8, 1, longest);
    const MemoryFacts facts{.attention_threads = threads, .attention_scratch = some_scratch, .fragmentation = 1};
    return predict_memory(config, {&job, 1}, {.token_budget = 256, .recompute = true, .layer_count = 30}, facts).workspace;
  };
  // A chain's last part works in all of its row, of which a microbatch has 256 tokens.
  const int64_t of_token = 14 * 64;
  EXPECT_EQ(workspace(32768, 2) - workspace(16384, 2), 2 * 16384 * of_token);
  EXPECT_EQ(workspace(32768, 4) - workspace(16384, 4), 4 * 16384 * of_token);
  EXPECT_EQ(workspace(32768, 0), workspace(256, 0));
  EXPECT_EQ(workspace(64, 1), workspace(64, 0)) << "the products of a layer take more anyhow";

  const MemoryFacts aten{.packed = false, .attention_threads = 4, .attention_scratch = some_scratch};
  EXPECT_EQ(attention_scratch_bytes(config, 1000, Direction::backward, aten), 0);
  ModelConfig wide = config;
  wide.head_dim = 256;
  EXPECT_EQ(attention_scratch_bytes(wide, 1000, Direction::backward, {.attention_scratch = some_scratch}), 0) << "ATen's attention";
}

TEST(PredictMemory, ScratchOfAttentionIsOfAllRanksOfAProcessTogether) {
  const ModelConfig config = smollm2_135m();
  const JobFootprint job = lora_job(config, 0, 8, 1, 16384);
  const PackingPolicy policy{.token_budget = 256, .recompute = true, .layer_count = 30};
  const auto scratch = [&](MemoryFacts facts) {
    facts.fragmentation = 1;
    facts.attention_threads = 6;
    facts.attention_scratch = some_scratch;
    MemoryFacts none = facts;
    none.attention_threads = 0;
    return predict_memory(config, {&job, 1}, policy, facts).workspace - predict_memory(config, {&job, 1}, policy, none).workspace;
  };
  // Beside what attention has: the difference to the products of a layer, which is each rank's.
  const int64_t of_thread = some_scratch(config, 16384, Direction::backward);
  MemoryFacts stages;
  stages.ranks = 3;
  EXPECT_LE(scratch(stages), 6 * of_thread);
  EXPECT_GE(scratch(stages), 5 * of_thread);
  MemoryFacts replicas;
  replicas.ranks = 3;
  replicas.replicas = {{.ranks = 1}, {.ranks = 2}};
  EXPECT_LE(scratch(replicas), 6 * of_thread);
  EXPECT_GE(scratch(replicas), 5 * of_thread);
}

TEST(PredictMemory, KernelsOfAGpuSpareCopiesOfLogitsAndTheScoresOfAttention) {
  const ModelConfig config = smollm2_135m();
  const std::vector<JobFootprint> jobs{lora_job(config, 0, 8, 8, 1024)};
  const PackingPolicy policy{.token_budget = 1024};
  for (const int64_t element_size : {2, 4}) {
    const auto predicted = [&](bool gpu_kernels) {
      const MemoryFacts facts{.element_size = element_size, .packed = false, .gpu_kernels = gpu_kernels,
                              .widest_flash_head = gpu_kernels && element_size == 2 ? 64 : 0, .head_workspace_bytes = int64_t{1} << 30, .fragmentation = 1};
      return predict_memory(config, jobs, policy, facts);
    };
    const MemoryEstimate with = predicted(true), without = predicted(false);
    EXPECT_EQ(with.logits, 1024 * 49152 * element_size);
    EXPECT_EQ(without.logits, 1024 * 49152 * (element_size + 16));
    const int64_t chunks_of_gradients = 2 * 3 * 16 * config.intermediate_size * 4;
    const int64_t scores = element_size == 2 ? 6 * 4 * (config.head_count * 128 + config.key_value_size()) * 1024 : 0;
    EXPECT_EQ(without.workspace - with.workspace, scores - chunks_of_gradients);
  }
}

TEST(PredictMemory, ProductsThatFitNoPanelsAreWidenedBesideOurKernels) {
  constexpr int64_t block = 4 << 20;
  const PackingPolicy policy{.token_budget = 1024};
  const auto widened = [&](const ModelConfig& config) {
    const std::vector<JobFootprint> jobs{lora_job(config, 0, 8, 8, 1024)};
    const auto predicted = [&](int64_t block_bytes) {
      return predict_memory(config, jobs, policy, {.head_workspace_bytes = int64_t{1} << 30, .product_block_bytes = block_bytes, .fragmentation = 1});
    };
    const MemoryEstimate with = predicted(block), without = predicted(0);
    return std::pair(with.workspace - without.workspace, with.logits - without.logits);
  };
  ModelConfig config = smollm2_135m();
  EXPECT_EQ(widened(config), std::pair(int64_t{0}, int64_t{0}));
  config.intermediate_size = 1530;
  EXPECT_EQ(widened(config), std::pair(4 * 1024 * (576 + 2 * 1530) + block, int64_t{0}));
  config = smollm2_135m();
  config.vocabulary_size = 49153;
  EXPECT_EQ(widened(config), std::pair(block, int64_t{1024 * 49153 * 16}));
}

TEST(PredictMemory, DiffPruningCountsItsEntriesAndItsSelection) {
  const ModelConfig config = small_model();
  const MemoryFacts facts{.selection_bytes = 1000};
  const JobFootprint job{.adapters = {{.method = AdapterMethod::diff_pruning, .projection = Projection::o, .entries = 20}}};
  const MemoryEstimate resident = resident_bytes(config, job, facts);
  EXPECT_EQ(resident.adapters, 20 * 4 + 20 * 4 + 65 * 8);
  EXPECT_EQ(resident.gradients, 20 * 4 + 64 * 64 * 4);  // at least one layer's dense gradients
  EXPECT_EQ(resident.optimizer, 20 * 8);
}

TEST(PredictMemory, OfReplicasIsWhatEachTakesBesideTheWholeAdapters) {
  const ModelConfig config = smollm2_135m();
  const PackingPolicy policy{.token_budget = 1024};
  const std::vector<JobFootprint> jobs = {lora_job(config, 0, 16, 8, 256), lora_job(config, 1, 8, 4, 900)};
  MemoryFacts one, pair, replicas;
  pair.ranks = pair.tensor_parallel = 3;
  replicas.replicas = {{.ranks = 1}, {.ranks = 3, .tensor_parallel = 3}};
  const MemoryEstimate alone = predict_memory(config, jobs, policy, one), divided = predict_memory(config, jobs, policy, pair);
  const MemoryEstimate both = predict_memory(config, jobs, policy, replicas);
  // The divided replica counts whole adapters beside its shards: they are there once, beside the other's copies.
  EXPECT_EQ(both.adapters, alone.adapters + divided.adapters);
  EXPECT_EQ(both.optimizer, alone.optimizer + divided.optimizer);
  EXPECT_EQ(both.activations, alone.activations + divided.activations);
  EXPECT_EQ(both.logits, alone.logits + divided.logits);
  EXPECT_GT(both.workspace, alone.workspace + divided.workspace) << "gradients in exchange";
  EXPECT_EQ(both.weights, alone.weights);
}

TEST(PredictMemory, OfMicrobatchesSideBySideIsThatOfAllOfThem) {
  const ModelConfig config = small_model();
  const std::vector<JobFootprint> jobs = {lora_job(config, 0, 16, 8, 256)};
  PackingPolicy policy{.token_budget = 256};
  MemoryFacts alone;
  alone.ranks = alone.tensor_parallel = 2;
  MemoryFacts pairs = alone;
  pairs.clock_microbatches = 2;
  const MemoryEstimate one = predict_memory(config, jobs, policy, alone), two = predict_memory(config, jobs, policy, pairs);
  EXPECT_NEAR(static_cast<double>(two.activations), 2 * static_cast<double>(one.activations), 2);
  EXPECT_GT(two.workspace, one.workspace);
  EXPECT_EQ(two.adapters, one.adapters);
  policy.token_budget = 4096;  // a round is one microbatch
  EXPECT_EQ(predict_memory(config, jobs, policy, pairs), predict_memory(config, jobs, policy, alone));
  policy = {.token_budget = 256, .recompute = true, .layer_count = config.layer_count};
  EXPECT_EQ(predict_memory(config, jobs, policy, pairs), predict_memory(config, jobs, policy, alone)) << "such rounds wait";
}

TEST(PredictMemory, OfRanksThatDivideTheTokensLeavesOutTheStreamOfTheOthers) {
  const ModelConfig config = small_model();
  const std::vector<JobFootprint> jobs = {lora_job(config, 0, 16, 8, 256)};
  MemoryFacts whole;
  whole.ranks = whole.tensor_parallel = 2;
  MemoryFacts slices = whole;
  slices.is_sequence_parallel = true;
  const int64_t stream = 4 * config.hidden_size, norms = 2 * (2 * config.hidden_size + 4);  // bytes of a token: it, and a layer's inputs and 1/rms
  for (const bool recompute : {false, true}) {
    const PackingPolicy policy{.token_budget = 4096, .recompute = recompute, .layer_count = config.layer_count};
    const MemoryEstimate all = predict_memory(config, jobs, policy, whole), own = predict_memory(config, jobs, policy, slices);
    const auto [microbatch, alive, chain] = worst_case(jobs, 0, policy);
    const int64_t kept = recompute ? alive * (config.layer_count + 1) * stream + microbatch * (norms + stream)
                                   : alive * (config.layer_count * norms + stream);
    EXPECT_NEAR(static_cast<double>(all.activations - own.activations), whole.fragmentation * static_cast<double>(kept), 2) << recompute;
    EXPECT_GT(own.workspace, all.workspace) << "rows that are gathered";
    EXPECT_EQ(own.weights, all.weights);
    EXPECT_EQ(own.chain_kv, all.chain_kv);
  }
}

TEST(PredictMemory, OfAProcessThatDividesTheTokensHasRoomForASliceOfOneJobsRows) {
  const ModelConfig config = small_model();
  const int64_t width = 64, rows = 4, longest = 64, tokens = rows * longest, ranks = 4;
  JobFootprint bottleneck{.job = 1, .adapters = {}, .row_count = rows, .longest_row = longest};
  for (int64_t layer = 0; layer < config.layer_count; ++layer) {
    bottleneck.adapters.push_back({.job = 1, .method = AdapterMethod::bottleneck, .layer = layer, .projection = Projection::o, .width = width});
  }
  MemoryFacts facts;
  facts.ranks = facts.tensor_parallel = ranks;
  facts.is_sequence_parallel = true;
  facts.process_stages = {whole_model(config)};
  facts.process_stages.front().tensor_parallel = ranks;
  facts.process_stages.front().is_sequence_parallel = true;
  const JobFootprint lora = lora_job(config, 0, 16, 12, longest);  // three slices of the four
  const PackingPolicy policy{.token_budget = 4096, .layer_count = config.layer_count};
  const auto kept = [&](const std::vector<JobFootprint>& jobs) { return predict_memory(config, jobs, policy, facts).activations; };
  // The bottleneck's rows are a slice, and lie on one rank.
  const MicrobatchCounts counts{.tokens = ranks * tokens, .labelled = 0, .job_tokens = {0, ranks * tokens}};
  int64_t bottlenecks = 0, streams = 0;
  for (const Operator& op : stage_operators(config, facts.process_stages.front(), bottleneck.adapters, Direction::forward)) {
    bottlenecks += saved_bytes(config, facts.process_stages.front(), op, counts, facts.element_size);
    streams += saved_bytes(config, facts.process_stages.front(), op, {.tokens = ranks * tokens, .labelled = 0, .job_tokens = {0, 0}}, facts.element_size);
  }
  EXPECT_GE(kept({lora, bottleneck}), kept({lora}) + bottlenecks - streams);
}

TEST(PredictMemory, GrowsWithEveryJobAndBudget) {
  const ModelConfig config = small_model();
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(mix_key(32, seed));
    PackingPolicy policy = random_policy(dice);
    std::vector<JobFootprint> jobs;
    int64_t before = 0;
    for (int32_t job = 0; job < 6; ++job) {
      jobs.push_back(lora_job(config, job, dice.between(1, 64), dice.between(1, 8), dice.between(1, 3000)));
      jobs.back().eval_row_count = dice.between(0, 8);
      jobs.back().longest_eval_row = dice.between(1, 3000);
      const int64_t total = predict_memory(config, jobs, policy, {}).total();
      ASSERT_GT(total, before) << "seed " << seed;
      before = total;
    }
  }
}

TEST(MemoryEstimate, NamesTheTermThatOverflows) {
  const MemoryEstimate estimate{.weights = 10, .adapters = 5, .activations = 20, .logits = 1};
  EXPECT_EQ(estimate.total(), 36);
  EXPECT_EQ(estimate.overflowing_term(9), "weights");
  EXPECT_EQ(estimate.overflowing_term(12), "adapters");
  EXPECT_EQ(estimate.overflowing_term(34), "activations");
  EXPECT_EQ(estimate.overflowing_term(35), "logits");
  EXPECT_EQ(estimate.overflowing_term(36), "");
}

}  // namespace
}  // namespace cotune
