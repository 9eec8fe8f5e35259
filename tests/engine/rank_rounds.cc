#include "engine/rank_rounds.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <exception>

#include "engine/labelled_rows.h"
#include "schedule/adapter_shape.h"

namespace cotune::testing {

ModelConfig eight_heads(int64_t layers, int64_t kv_heads) {
  ModelConfig config = kernel_friendly_config(layers);
  config.head_count = 8;
  config.kv_head_count = kv_heads;
  config.head_dim = 16;
  config.vocabulary_size = 251;
  return config;
}

ModelConfig nine_heads(int64_t layers) {
  ModelConfig config = kernel_friendly_config(layers);
  config.head_count = 9;
  config.kv_head_count = 3;
  config.head_dim = 16;
  config.intermediate_size = 192;
  return config;
}

PipelineLayout even_layout(const ModelConfig& config, int32_t ranks, int32_t chunks, int64_t degree) {
  PipelineLayout layout{.stages = {}, .stage_rank = interleaved_stages(ranks, chunks)};
  const int64_t stages = static_cast<int64_t>(ranks) * chunks;
  for (int64_t s = 0; s < stages; ++s) {
    layout.stages.push_back({s * config.layer_count / stages, (s + 1) * config.layer_count / stages, s == 0, s + 1 == stages, degree});
  }
  return layout;
}

std::vector<std::shared_ptr<const Backbone>> divided_parts(const ModelConfig& config, int64_t degree, at::ScalarType compute) {
  std::vector<std::shared_ptr<const Backbone>> parts;
  for (int64_t index = 0; index < degree; ++index) {
    parts.push_back(Backbone::load(random_model(config, 5), compute, at::kCPU, {.shard = {index, degree}}));
  }
  return parts;
}

StageCost one_unit(const StepPlan& plan, size_t microbatch, size_t) {
  const auto tokens = static_cast<double>(plan.microbatches[microbatch].token_count());
  return {.forward_s = tokens, .backward_s = 2 * tokens, .kept_bytes = static_cast<int64_t>(tokens)};
}

std::vector<RandomJob> random_jobs(Dice& dice, const RandomJobs& range) {
  static const std::vector<std::vector<std::string>> modules{
      {"all-linear"}, {"q_proj", "v_proj"}, {"down_proj"}, {"o_proj", "gate_proj"}, {"k_proj", "up_proj", "down_proj"}};
  std::vector<RandomJob> jobs;
  for (int64_t count = dice.between(range.jobs.first, range.jobs.second), job = 0; job < count; ++job) {
    std::vector<int64_t> rows;
    for (int64_t row = dice.between(range.rows.first, range.rows.second); row-- > 0;) {
      rows.push_back(dice.between(2, dice.between(0, 4) == 0 ? 400 : range.longest));
    }
    if (range.has_tiny_jobs && dice.between(0, 3) == 0) rows = {dice.between(2, 3)};
    const auto seed = static_cast<uint64_t>(job + 1);
    const std::string name = fmt::format("job{}", job);
    switch (dice.between(0, 3)) {
      case 0: jobs.push_back(bottleneck_job(name, seed, 8, dice.between(0, 1) == 0 ? Activation::relu : Activation::gelu, rows)); break;
      case 1: jobs.push_back(diff_pruning_job(name, seed, 0.05, rows)); break;
      default:
        jobs.push_back(lora_job(name, seed, dice.between(1, 9), dice.between(0, 1) == 0 ? 0 : 0.2,
                                modules[static_cast<size_t>(dice.between(0, 4))], rows));
    }
    if (dice.between(0, 2) == 0) jobs.back().adapter.layers_to_transform = {dice.between(0, 1)};
    jobs.back().optimizer.max_grad_norm = 0.05;
  }
  return jobs;
}

LifeEvents shared_with(RankGroup& ranks) {
  return {.begins =
              [&](JobLife& life, int32_t job) {
                ranks.forget(job);
                ranks.share(job, life.adapter());
              },
          .selected = [&](JobLife& life, int32_t job, int64_t) { ranks.share(job, life.adapter()); },
          .ends = [&](JobLife& life, int32_t job) { ranks.gather(job, life.adapter()); }};
}

std::vector<RandomJob> every_method() {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 8, 0.3, {"all-linear"}, {12, 40, 31}),
                              bottleneck_job("bottleneck", 2, 16, Activation::gelu, {25, 7, 90}),
                              diff_pruning_job("sparse", 3, 0.05, {33, 18}),
                              lora_job("long", 4, 4, 0, {"q_proj", "down_proj"}, {600, 20}),
                              lora_job("upper", 5, 4, 0, {"v_proj", "o_proj"}, {550, 51}),
                              lora_job("lower", 6, 4, 0, {"gate_proj"}, {44, 13})};
  jobs[4].adapter.layers_to_transform = {3};
  jobs[5].adapter.layers_to_transform = {0};
  for (RandomJob& job : jobs) {
    job.steps = 3;
    job.optimizer.max_grad_norm = 0.05;
    job.optimizer.weight_decay = 0.1;
  }
  return jobs;
}

Round next_round(std::vector<std::unique_ptr<JobLife>>& lives, PackingPolicy policy, const ModelConfig& config) {
  Round round;
  std::vector<BatchShape> shapes;
  for (const auto& life : lives) {
    if (life->done()) continue;
    round.present.push_back(life.get());
    round.rounds.push_back(life->next_round());
    shapes.push_back(round.rounds.back().batch->shape(round.rounds.back().job, life->adapter().lowest_layer()));
  }
  policy.layer_count = config.layer_count;
  round.plan = plan_step(shapes, policy);
  return round;
}

std::vector<at::Tensor> train(const std::vector<RandomJob>& jobs, const Backbone& backbone, const PackingPolicy& policy,
                              const RunRound& run, const LifeEvents& events) {
  std::vector<std::unique_ptr<JobLife>> lives;
  for (const RandomJob& job : jobs) {
    const auto index = static_cast<int32_t>(lives.size());
    lives.push_back(std::make_unique<JobLife>(index, job, backbone));
    if (events.begins) events.begins(*lives.back(), index);
  }
  while (true) {
    Round round = next_round(lives, policy, backbone.config());
    if (round.present.empty()) break;
    run(round);
    for (size_t i = 0; i < round.present.size(); ++i) {
      EXPECT_EQ(round.rounds[i].failure, "");
      JobLife& life = *round.present[i];
      const int64_t pass = life.adapter().finished_selection_passes();
      life.finish_round(round.rounds[i]);
      if (events.selected && life.adapter().finished_selection_passes() > pass) events.selected(life, round.rounds[i].job, pass);
    }
  }
  std::vector<at::Tensor> values;
  for (const auto& life : lives) {
    if (events.ends) events.ends(*life, static_cast<int32_t>(&life - lives.data()));
    for (const double loss : life->losses()) values.push_back(at::scalar_tensor(loss, at::kDouble));
    for (const at::Tensor& value : values_of(life->adapter())) values.push_back(value);
  }
  return values;
}

std::vector<at::Tensor> train_on_one(const std::vector<RandomJob>& jobs, const std::shared_ptr<const Backbone>& backbone,
                                     const PackingPolicy& policy) {
  Interpreter interpreter(backbone);
  return train(jobs, *backbone, policy, [&](Round& round) { interpreter.run(round.plan, round.rounds); });
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  return largest_relative_difference(a, b);
}

Rounds rounds_of(const std::vector<RandomJob>& jobs, const ModelConfig& config, PackingPolicy policy, int64_t steps, at::Device device) {
  Rounds result;
  policy.layer_count = config.layer_count;
  for (const RandomJob& job : jobs) result.adapters.push_back(job.make_adapter(config, at::kDouble, device));
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<BatchShape> shapes;
    for (size_t i = 0; i < jobs.size(); ++i) {
      result.batches.push_back(jobs[i].batch(step, config.vocabulary_size));
      JobRound round{.job = static_cast<int32_t>(i), .adapter = result.adapters[i].get(), .batch = &result.batches.back()};
      round.dropout_key = jobs[i].dropout_key(step);
      round.optimizer = jobs[i].optimizer;
      round.optimizer.step = step + 1;
      shapes.push_back(round.batch->shape(round.job, round.adapter->lowest_layer()));
      result.rounds.push_back(round);
    }
    result.plans.push_back(plan_step(shapes, policy));
  }
  return result;
}

PackingPolicy small_microbatches() { return {.sharing = Sharing::temporal, .token_budget = 256}; }

PackingPolicy small_chunks() {
  PackingPolicy policy = small_microbatches();
  policy.layout = Layout::chunked;
  policy.chunk_size = 64;
  return policy;
}

RankPlan plan_round(const StepPlan& round, const PipelineLayout& layout, RankOrder order) {
  return plan_ranks({round}, layout, one_unit,
                    {.order = order, .cluster = {}, .bytes_per_token = {768, 768}, .most_in_flight = layout.rank_count()});
}

OperatorTime uneven_times(const StageShape&, const Operator& op, const MicrobatchCounts& counts) {
  const auto spread = [&](int64_t salt) { return 1 + static_cast<double>((counts.tokens * 31 + op.layer * 17 + static_cast<int64_t>(op.kind) * 7 + salt) % 13); };
  return {.compute_s = spread(0), .communication_s = op.communicates ? 3 * spread(5) : 0};
}

StageGraphsOf graphs_of(const ModelConfig& config, const PipelineLayout& layout, std::span<const JobRound> rounds, OperatorTimes times) {
  return [&config, &layout, rounds, times = std::move(times)](const StepPlan& plan, size_t m, size_t stage) {
    const Microbatch& microbatch = plan.microbatches[m];
    const MicrobatchCounts counts = count_microbatch(microbatch, labelled_rows(plan, rounds)[m]);
    std::vector<AdapterShape> adapters;
    int32_t previous = -1;
    for (const Atom& atom : microbatch.atoms) {
      if (atom.job == previous) continue;
      previous = atom.job;
      const auto round = std::ranges::find(rounds, atom.job, &JobRound::job);
      if (round->adapter == nullptr) continue;
      const AdapterSetup& setup = round->adapter->setup();
      for (const AdapterShape& each : adapter_shapes(atom.job, setup.spec, setup.modules, config)) adapters.push_back(each);
    }
    const auto graph = [&](Direction direction) {
      const std::vector<Operator> operators = stage_operators(config, layout.stages[stage], adapters, direction);
      std::vector<OperatorTime> own;
      for (const Operator& op : operators) own.push_back(times(layout.stages[stage], op, counts));
      return subgraphs_of(operators, own);
    };
    return StageGraphs{graph(Direction::forward), graph(Direction::backward)};
  };
}

RankPlan plan_interleaved_round(const StepPlan& round, std::span<const JobRound> rounds, const ModelConfig& config, const PipelineLayout& layout,
                                RankOrder order) {
  return plan_ranks({round}, layout, one_unit,
                    {.order = order,
                     .cluster = {},
                     .bytes_per_token = {768, 768},
                     .most_in_flight = layout.rank_count(),
                     .interleave = Interleave::always,
                     .graphs = graphs_of(config, layout, rounds, uneven_times)});
}

std::vector<int64_t> collectives_by_rank(const RankTimes& times) {
  std::vector<int64_t> counts;
  for (const RankTime& time : times.ranks) counts.push_back(time.collectives);
  return counts;
}

void expect_equal_evaluation(const JobRound& round, const JobRound& expected) {
  EXPECT_NEAR(round.loss(), expected.loss(), 1e-12);
  EXPECT_EQ(round.row_predicted, expected.row_predicted);
  ASSERT_EQ(round.row_loss_sums.size(), round.batch->rows.size());
  double sum = 0;
  for (size_t row = 0; row < round.row_loss_sums.size(); ++row) {
    EXPECT_NEAR(round.row_loss_sums[row], expected.row_loss_sums[row], 1e-10);
    sum += round.row_loss_sums[row];
  }
  EXPECT_NEAR(sum, round.loss_sum, 1e-10);
}

void expect_evaluation_of_one_rank(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, PlanRound plan) {
  const std::vector<RandomJob> jobs = every_method();
  const ModelConfig& config = backbone->config();
  Interpreter alone(backbone);
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Batch> batches;
  for (const RandomJob& job : jobs) {
    adapters.push_back(job.make_adapter(config, at::kDouble, backbone->device()));
    randomise(*adapters.back(), job.seed, 0.05);
    ranks.share(static_cast<int32_t>(batches.size()), *adapters.back());
    batches.push_back(job.batch(0, config.vocabulary_size));
  }
  batches.push_back(jobs.front().batch(1, config.vocabulary_size));  // of the base model
  std::vector<JobRound> rounds;
  Round round;
  std::vector<BatchShape> shapes;
  for (size_t i = 0; i < batches.size(); ++i) {
    Adapter* adapter = i < jobs.size() ? adapters[i].get() : nullptr;
    rounds.push_back({.job = static_cast<int32_t>(i), .adapter = adapter, .batch = &batches[i], .purpose = RoundPurpose::evaluate});
    shapes.push_back(batches[i].shape(static_cast<int32_t>(i), 0));
  }
  std::vector<JobRound> expected = rounds;
  PackingPolicy policy = small_microbatches();
  policy.layer_count = config.layer_count;
  round.plan = plan_step(shapes, policy);
  alone.run(round.plan, expected);
  if (plan) {
    ranks.run(plan(round.plan), rounds);
  } else {
    ranks.run(plan_round(round.plan, ranks.layout()), rounds);
  }
  for (size_t i = 0; i < rounds.size(); ++i) {
    expect_equal_evaluation(rounds[i], expected[i]);
    EXPECT_EQ(rounds[i].adapter, expected[i].adapter);
  }
}

namespace {

/// Thrown on a rank in the middle of a round.
class Trouble : public std::exception {};

}  // namespace

void expect_steps_everywhere_or_nowhere(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, int32_t troubled,
                                        int64_t most_operators) {
  std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), lora_job("b", 2, 4, 0, {"all-linear"}, {31}),
                              bottleneck_job("c", 3, 8, Activation::relu, {90})};
  for (RandomJob& job : jobs) {
    job.steps = 1;
    job.optimizer.epsilon = 1e-5;  // a step magnifies no difference of sums
  }
  const std::vector<at::Tensor> expected = train_on_one(jobs, backbone, small_microbatches());
  const ModelConfig& config = backbone->config();
  size_t broken_off = 0, partly = 0;
  for (int64_t limit = 5; limit < most_operators; limit += 23) {
    std::vector<std::unique_ptr<JobLife>> lives;
    for (const RandomJob& job : jobs) lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, *backbone));
    for (size_t i = 0; i < jobs.size(); ++i) ranks.share(static_cast<int32_t>(i), lives[i]->adapter());
    Round round = next_round(lives, small_microbatches(), config);
    std::vector<std::vector<at::Tensor>> before;
    for (const auto& life : lives) before.push_back(values_of(life->adapter()));
    int64_t count = 0;
    ranks.observe([&](int32_t rank, const Operator&) {
      if (rank == troubled && ++count == limit) throw Trouble();
    });
    try {
      ranks.run(plan_round(round.plan, ranks.layout(), RankOrder::lorapp), round.rounds);
    } catch (const Trouble&) {
      ++broken_off;
    }
    ranks.observe({});
    // What was not stepped is as before, and goes through on its own.
    Round rest;
    std::vector<BatchShape> shapes;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (round.rounds[i].stepped) continue;
      ranks.gather(static_cast<int32_t>(i), lives[i]->adapter());
      EXPECT_EQ(difference_in_bits(values_of(lives[i]->adapter()), before[i]), "");
      rest.rounds.push_back(round.rounds[i]);
      shapes.push_back(round.rounds[i].batch->shape(round.rounds[i].job, 0));
    }
    if (!rest.rounds.empty()) {
      partly += rest.rounds.size() < jobs.size();
      PackingPolicy policy = small_microbatches();
      policy.layer_count = config.layer_count;
      rest.plan = plan_step(shapes, policy);
      ranks.run(plan_round(rest.plan, ranks.layout(), RankOrder::lorapp), rest.rounds);
    }
    std::vector<at::Tensor> trained;
    for (size_t i = 0; i < jobs.size(); ++i) {
      const auto again = std::ranges::find(rest.rounds, round.rounds[i].job, &JobRound::job);
      ranks.gather(static_cast<int32_t>(i), lives[i]->adapter());
      trained.push_back(at::scalar_tensor((again != rest.rounds.end() ? *again : round.rounds[i]).loss(), at::kDouble));
      for (const at::Tensor& value : values_of(lives[i]->adapter())) trained.push_back(value);
    }
    EXPECT_LE(largest_difference(trained, expected), 1e-10) << "broken off after " << limit << " operators";
  }
  EXPECT_GT(broken_off, 3u);
  EXPECT_GT(partly, 0u);
}

}  // namespace cotune::testing
