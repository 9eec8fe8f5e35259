// Ranks of a device that is not there. Its clock stands still unless the device is busy, so times are exact and no test waits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "engine/rank_rounds.h"
#include "engine/rank_threads.h"
#include "schedule/adapter_shape.h"
#include "schedule/pipeline/dealt_round.h"

namespace cotune {
namespace {

using namespace testing;

/// Sleeps that were asked for, until when.
struct Sleeps {
  std::mutex mutex;
  std::vector<double> until_s;
};

double seconds_of(const Operator& op, const MicrobatchCounts& counts) {
  return 1e-3 * static_cast<double>(counts.tokens * (1 + static_cast<int>(op.kind) % 5) + counts.labelled);
}

constexpr double optimizer_s = 2.5, all_reduce_s = 0.25;

std::shared_ptr<EmulatedDevice> standing_device(const std::shared_ptr<Sleeps>& sleeps, Link link = {}, Link exchange_link = {}) {
  auto device = std::make_shared<EmulatedDevice>();
  device->operator_seconds = [](const StageShape&, const Operator& op, const MicrobatchCounts& counts) { return seconds_of(op, counts); };
  device->optimizer_seconds = [](int64_t, int64_t) { return optimizer_s; };
  device->all_reduce_seconds = [](int64_t, int64_t) { return all_reduce_s; };
  device->link = link;
  device->exchange_link = exchange_link;
  device->now_s = [] { return 0.0; };
  device->sleep_until_s = [sleeps](double until_s) {
    const std::lock_guard lock(sleeps->mutex);
    sleeps->until_s.push_back(until_s);
  };
  return device;
}

std::vector<RandomJob> four_jobs() {
  std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0, {"all-linear"}, {30, 20}), lora_job("chain", 2, 4, 0.1, {"all-linear"}, {600, 31}),
                              bottleneck_job("b", 3, 8, Activation::relu, {90}), lora_job("upper", 4, 4, 0, {"v_proj", "o_proj"}, {51})};
  jobs[3].adapter.layers_to_transform = {5, 6, 7};
  for (RandomJob& job : jobs) job.optimizer.max_grad_norm = 0.5;
  return jobs;
}

class EmulatedRanks : public ::testing::Test {
 protected:
  std::shared_ptr<const Backbone> emulated(Link link = {}, TensorShard shard = {}, Link exchange_link = {}) const {
    return Backbone::emulated(config, at::kFloat, shard, standing_device(sleeps, link, exchange_link));
  }

  /// The row of a job step's batch that stands in a plan's place.
  using RowOf = std::function<int32_t(const JobStep& step, int32_t row)>;
  static int32_t same_row(const JobStep&, int32_t row) { return row; }

  RankPlan plan(const Rounds& rounds, const PipelineLayout& layout, RankOrder order, Link link = {}) const {
    return plan(rounds, rounds.plans, layout, order, link, same_row);
  }

  RankPlan plan(const Rounds& rounds, std::vector<StepPlan> plans, const PipelineLayout& layout, RankOrder order, Link link,
                const RowOf& row_of, int64_t spare_bytes = 0) const {
    const auto cost = [&](const StepPlan& round, size_t m, size_t stage) {
      const Microbatch& microbatch = round.microbatches[m];
      int64_t labelled = 0;  // of these rows every token but the first has a label
      for (const Atom& atom : microbatch.atoms) {
        for (const Segment& segment : atom.segments) labelled += labels_in(rounds, round, atom.job, segment, row_of);
      }
      const MicrobatchCounts counts = count_microbatch(microbatch, labelled);
      std::vector<AdapterShape> adapters;
      for (const Atom& atom : microbatch.atoms) {
        const AdapterSetup& setup = rounds.adapters[static_cast<size_t>(atom.job)]->setup();
        for (const AdapterShape& each : adapter_shapes(atom.job, setup.spec, setup.modules, config)) adapters.push_back(each);
      }
      StageCost result{.forward_s = 0, .backward_s = 0, .kept_bytes = counts.tokens};
      const auto sums_s = [&](const Operator& op) {
        if (layout.tensor_parallel() == 1) return 0.0;
        if (op.kind == OperatorKind::head) return labelled > 0 ? 2 * all_reduce_s : 0;
        const double own_s = layout.is_sequence_parallel() ? all_reduce_s / 2 : all_reduce_s;
        return op.communicates || op.kind == OperatorKind::embedding ? own_s : 0;
      };
      for (const Operator& op : stage_operators(config, layout.stages[stage], adapters, Direction::forward)) {
        result.forward_s += seconds_of(op, counts) + sums_s(op);
      }
      for (const Operator& op : stage_operators(config, layout.stages[stage], adapters, Direction::backward)) {
        result.backward_s += seconds_of(op, counts) + sums_s(op);
      }
      return result;
    };
    return plan_ranks(std::move(plans), layout, cost,
                      {.order = order, .cluster = {.link = link}, .bytes_per_token = token_bytes(config.hidden_size, 4),
                       .optimizer_s = std::vector<double>(rounds.adapters.size(), optimizer_s), .most_in_flight = layout.rank_count(),
                       .spare_bytes = spare_bytes});
  }

  static int64_t labels_in(const Rounds& rounds, const StepPlan& plan, int32_t job, const Segment& segment, const RowOf& row_of) {
    for (const JobRound& round : rounds.rounds) {
      if (round.job != job) continue;
      const bool is_of_plan = std::any_of(plan.batches.begin(), plan.batches.end(), [&](const BatchShape& batch) {
        return batch.job == job && batch.step == round.batch->step;
      });
      if (!is_of_plan) continue;
      const BatchRow& row = round.batch->rows[static_cast<size_t>(row_of({job, round.batch->step}, segment.row))];
      int64_t count = 0;
      for (int64_t next = segment.position + 1; next <= segment.position + segment.length; ++next) {
        if (next < static_cast<int64_t>(row.tokens.size()) && row.learned[static_cast<size_t>(next)] != 0) ++count;
      }
      return count;
    }
    return 0;
  }

  const ModelConfig config = [] {
    ModelConfig eight = kernel_friendly_config(8);
    eight.head_count = 3;
    eight.kv_head_count = 3;
    eight.intermediate_size = 192;
    return eight;
  }();
  const std::shared_ptr<Sleeps> sleeps = std::make_shared<Sleeps>();
};

TEST_F(EmulatedRanks, TakeTheTimeThatTheSimulatorPredicts) {
  for (const int32_t count : {2, 4, 8}) {
    for (const Link& link : {Link{}, Link{.latency_s = 0.4, .bytes_per_s = 1e5}}) {
      RankThreads ranks(emulated(link), even_layout(config, count), 1);
      for (const RankOrder order : {RankOrder::automatic, RankOrder::gpipe, RankOrder::one_f_one_b, RankOrder::lorapp, RankOrder::muxtune}) {
        Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 3);
        const RankPlan planned = plan(rounds, ranks.layout(), order, link);
        ranks.run(planned, rounds.rounds);
        // In the simulator a message leaves when its receive has been posted; on a link that takes no time that says nothing.
        const double near_s = (link == Link{} ? 1e-9 : 2e-3) * planned.predicted.makespan_s;
        EXPECT_NEAR(ranks.times().seconds, planned.predicted.makespan_s, near_s)
            << count << " ranks, order " << static_cast<int>(order) << ", latency " << link.latency_s;
        for (size_t rank = 0; rank < planned.ranks.size(); ++rank) {
          // What a rank does it does in the order of its list.
          const std::vector<SimulatedSpan>& done = ranks.times().ranks[rank].spans;
          const std::vector<SimulatedSpan>& predicted = planned.predicted.ranks[rank].spans;
          ASSERT_EQ(done.size(), predicted.size());
          for (size_t i = 0; i < done.size(); ++i) {
            EXPECT_EQ(done[i].action, predicted[i].action);
            EXPECT_NEAR(done[i].end_s, predicted[i].end_s, near_s);
          }
          EXPECT_NEAR(ranks.times().ranks[rank].waited_s + planned.predicted.ranks[rank].busy_s, done.back().end_s, 1e-9 * done.back().end_s);
        }
      }
    }
  }
}

/// mLoRA's acceptance of overlap (ML-11) on ranks: hops of up to 0.3 forwards that take half as long as a backward, two adapters more than stages.
TEST_F(EmulatedRanks, HideHopsBehindTheWorkOfAdaptersToSpare) {
  constexpr int round_count = 20;
  for (const int32_t count : {2, 4}) {
    std::vector<RandomJob> jobs;
    for (int32_t j = 0; j < count + 2; ++j) jobs.push_back(lora_job("job" + std::to_string(j), 1 + j, 4, 0, {"all-linear"}, {250}));
    const auto seconds = [&](const RankOrder order, double hop_s) {
      const Link link{.latency_s = hop_s, .bytes_per_s = 1e15};
      RankThreads ranks(emulated(hop_s > 0 ? link : Link{}), even_layout(config, count), 1);
      Rounds rounds = rounds_of(jobs, config, small_microbatches(), round_count);
      const RankPlan planned = plan(rounds, rounds.plans, ranks.layout(), order, hop_s > 0 ? link : Link{}, same_row, int64_t{1} << 40);
      ranks.run(planned, rounds.rounds);
      const PipelineMicrobatch& first = planned.work.microbatches.front();
      return std::pair(ranks.times().seconds, (first.cost.front().forward_s + first.cost.front().backward_s) / 3);
    };
    for (const RankOrder order : {RankOrder::lorapp, RankOrder::automatic}) {
      const auto [undelayed_s, third_s] = seconds(order, 0);
      for (const double share : {0.1, 0.3}) {
        EXPECT_GE(undelayed_s / seconds(order, share * third_s).first, 0.95) << count << " ranks, hops of " << share << " forwards";
      }
    }
  }
}

/// Replicas of the model on devices that are not there, their jobs' rows dealt in turn.
class EmulatedReplicas : public EmulatedRanks {
 protected:
  struct Shape {
    int32_t stages = 1;
    int64_t tensor = 1;
    bool is_sequence_parallel = false;
  };

  std::unique_ptr<RankThreads> ranks_of(const std::vector<Shape>& shapes, Link link, Link exchange_link) const {
    std::vector<ReplicaRanks> replicas;
    for (const Shape& shape : shapes) {
      ReplicaRanks& replica = replicas.emplace_back();
      replica.layout = even_layout(config, shape.stages, 1, shape.tensor);
      for (StageShape& stage : replica.layout.stages) stage.is_sequence_parallel = shape.is_sequence_parallel;
      for (int64_t index = 0; index < shape.tensor; ++index) replica.parts.push_back(emulated(link, {index, shape.tensor}, exchange_link));
    }
    return std::make_unique<RankThreads>(std::move(replicas), 1);
  }

  std::optional<ReplicaPlans> plan_dealt(const Rounds& rounds, RankThreads& ranks, RankOrder order, Link link, Link exchange_link) const {
    const std::span<const PipelineLayout> layouts = ranks.layouts();
    std::vector<DealtRound> dealt;
    for (const StepPlan& plan : rounds.plans) {
      DealtRound& own = dealt.emplace_back(DealtRound{.batches = plan.batches, .replica_of = {}});
      for (const BatchShape& batch : plan.batches) {
        std::vector<int32_t>& of_rows = own.replica_of.emplace_back();
        for (size_t row = 0; row < batch.row_lengths.size(); ++row) {
          of_rows.push_back(static_cast<int32_t>((row + static_cast<size_t>(batch.job + batch.step)) % layouts.size()));
        }
      }
    }
    const auto policy = [&](size_t, size_t round) { return rounds.plans[round].policy; };
    std::optional<ReplicaPlans> plans = plan_replicas(dealt, policy, layouts, [&](size_t replica, std::vector<StepPlan> own) {
      return plan(rounds, std::move(own), layouts[replica], order, link, [&](const JobStep& step, int32_t row) {
        for (const DealtRound& each : dealt) {
          const std::vector<int32_t> rows = each.rows_of(step, static_cast<int32_t>(replica));
          if (!rows.empty()) return rows[static_cast<size_t>(row)];
        }
        return row;
      });
    });
    if (!plans) return plans;
    std::vector<ReplicaSeconds> seconds;
    for (const PipelineLayout& layout : layouts) {
      ReplicaSeconds& own = seconds.emplace_back();
      own.optimizer_s.assign(rounds.adapters.size(), optimizer_s);
      for (const auto& adapter : rounds.adapters) {  // whose factors ranks have whole, or which adapt slices
        const bool has_sum = layout.is_sequence_parallel() || (layout.tensor_parallel() > 1 && adapter->setup().spec.method == AdapterMethod::lora);
        own.reduce_s.push_back(has_sum ? all_reduce_s : 0);
      }
    }
    ExchangeCosts costs{.messages = {}, .value_bytes = 8, .link = exchange_link};  // adapters are f64
    for (size_t i = 0; i < rounds.adapters.size(); ++i) {
      const auto job = static_cast<int32_t>(i);
      costs.messages[job] = ranks.exchange_messages_of(job, *rounds.adapters[i]);
    }
    predict_exchanges(*plans, layouts, seconds, {.link = link}, costs);
    return plans;
  }

  /// Runs three rounds without a flush; how far all spans end from where the simulator has them, and the end, in shares of the whole.
  void expect_predicted_times(const std::vector<Shape>& shapes, RankOrder order, Link link, Link exchange_link) const {
    const auto ranks = ranks_of(shapes, link, exchange_link);
    Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 3);
    for (int32_t job = 0; job < 4; ++job) ranks->share(job, *rounds.adapters[static_cast<size_t>(job)]);
    const std::optional<ReplicaPlans> plans = plan_dealt(rounds, *ranks, order, link, exchange_link);
    if (!plans) return;  // rounds that overlap would wait for each other
    ranks->run(*plans, rounds.rounds);
    const double near_s = (link == Link{} ? 1e-9 : 2e-3) * plans->predicted_s();
    EXPECT_NEAR(ranks->times().seconds, plans->predicted_s(), near_s);
    for (size_t replica = 0; replica < shapes.size(); ++replica) {
      const size_t first = ranks->times().first_rank[replica], parts = static_cast<size_t>(shapes[replica].tensor);
      for (size_t place = 0; place < plans->replicas[replica].ranks.size(); ++place) {
        const std::vector<SimulatedSpan>& predicted = plans->replicas[replica].predicted.ranks[place].spans;
        if (parts == 1) {
          // A wait begins and ends with spans, or gradients that are posted between them.
          const double waits_s = plans->replicas[replica].predicted.ranks[place].exchange_wait_s;
          const RankTime& time = ranks->times().ranks[first + place];
          EXPECT_NEAR(time.exchanging_s, waits_s, 2 * near_s * static_cast<double>(predicted.size()));
          EXPECT_LE(time.exchanging_s, time.waited_s);
          const std::vector<SimulatedSpan>& expected = plans->replicas[replica].predicted.ranks[place].exchanges;
          const std::vector<SimulatedSpan>& exchanged = time.exchange_spans;
          ASSERT_EQ(exchanged.size(), expected.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(exchanged[i].action, expected[i].action);
            EXPECT_NEAR(exchanged[i].start_s, expected[i].start_s, near_s) << "replica " << replica << ", place " << place << ", exchange " << i;
            EXPECT_NEAR(exchanged[i].end_s, expected[i].end_s, near_s) << "replica " << replica << ", place " << place << ", exchange " << i;
          }
        }
        for (size_t i = 0; i < predicted.size(); ++i) {
          double end_s = 0;
          for (size_t part = 0; part < parts; ++part) {
            const std::vector<SimulatedSpan>& done = ranks->times().ranks[first + place * parts + part].spans;
            ASSERT_EQ(done.size(), predicted.size());
            EXPECT_EQ(done[i].action, predicted[i].action);
            end_s = std::max(end_s, done[i].end_s);
          }
          EXPECT_NEAR(end_s, predicted[i].end_s, near_s) << "replica " << replica << ", place " << place << ", span " << i;
        }
      }
    }
    ++compared;
  }

  mutable int compared = 0;
};

TEST_F(EmulatedReplicas, TakeTheTimeThatTheSimulatorPredicts) {
  const Link slow{.latency_s = 0.4, .bytes_per_s = 1e5};
  const std::vector<std::vector<Shape>> deployments{{{}, {}}, {{.stages = 2}, {.stages = 2}}, {{}, {.stages = 4}, {.stages = 2}}};
  for (const std::vector<Shape>& shapes : deployments) {
    for (const RankOrder order : {RankOrder::automatic, RankOrder::gpipe, RankOrder::lorapp}) {
      for (const Link& link : {Link{}, slow}) {
        for (const Link& exchange_link : {slow, Link{.latency_s = 30, .bytes_per_s = 1e3}}) {
          SCOPED_TRACE(::testing::Message() << shapes.size() << " replicas, order " << static_cast<int>(order) << ", latencies "
                                            << link.latency_s << " and " << exchange_link.latency_s);
          expect_predicted_times(shapes, order, link, exchange_link);
        }
      }
    }
  }
  EXPECT_GE(compared, 20);
}

TEST_F(EmulatedReplicas, ThatDivideLayersTakeItToo) {
  for (const RankOrder order : {RankOrder::automatic, RankOrder::gpipe}) {
    for (const Link& exchange_link : {Link{}, Link{.latency_s = 0.4, .bytes_per_s = 1e5}}) {
      SCOPED_TRACE(::testing::Message() << "order " << static_cast<int>(order) << ", latency " << exchange_link.latency_s);
      expect_predicted_times({{}, {.tensor = 3}, {.stages = 2, .tensor = 3}}, order, {}, exchange_link);
      expect_predicted_times({{.tensor = 3, .is_sequence_parallel = true}, {.stages = 2, .tensor = 3, .is_sequence_parallel = true}}, order, {}, exchange_link);
    }
  }
  EXPECT_GT(compared, 1);
}

TEST_F(EmulatedReplicas, ExchangeBesideTheirComputation) {
  // Two jobs: while the gradients of one are under way the other is computed. Of one alone every step waits for them.
  const Link exchange_link{.latency_s = 20, .bytes_per_s = 1e12};
  const auto seconds = [&](size_t jobs, Link link) {
    const auto ranks = ranks_of({{}, {}}, {}, link);
    std::vector<RandomJob> some{lora_job("a", 1, 4, 0, {"all-linear"}, {200, 200}), lora_job("b", 2, 4, 0, {"all-linear"}, {200, 200})};
    some.resize(jobs);
    Rounds rounds = rounds_of(some, config, small_microbatches(), 4);
    for (size_t job = 0; job < jobs; ++job) ranks->share(static_cast<int32_t>(job), *rounds.adapters[job]);
    const auto plans = plan_dealt(rounds, *ranks, RankOrder::gpipe, {}, link);
    ranks->run(*plans, rounds.rounds);
    const RankTimes& times = ranks->times();
    for (size_t rank = 0; rank < 2; ++rank) {
      double busy_s = 0;
      for (const SimulatedSpan& span : times.ranks[rank].spans) busy_s += span.end_s - span.start_s;
      EXPECT_NEAR(busy_s + times.ranks[rank].exchanging_s + times.idle_s[rank], times.seconds, 1e-9 * times.seconds);
    }
    return times.seconds;
  };
  const double exposed_alone = seconds(1, exchange_link) - seconds(1, {}), exposed = seconds(2, exchange_link) - seconds(2, {});
  // In each of four steps a summand, a sum, a record and its answer, but for how much sooner the other rank was done.
  EXPECT_LE(exposed_alone, 4 * 4 * 20 + 1e-3);
  EXPECT_GT(exposed_alone, 4 * 3 * 20);
  EXPECT_LT(exposed, exposed_alone / 2);
}

TEST_F(EmulatedReplicas, OfOneShapeTakeAtMostFivePercentMoreThanAPlainDataParallelLoop) {  // LB-32
  // Each replica computes its half of every batch; then gradients are summed in a ring and every job steps: one after the other.
  const Link exchange_link{.latency_s = 0.4, .bytes_per_s = 1e5};
  constexpr int64_t steps = 4;
  const auto jobs_of = [](size_t rows) {
    const std::vector<int64_t> lengths(rows, 200);
    return std::vector<RandomJob>{lora_job("a", 1, 4, 0, {"all-linear"}, lengths), lora_job("b", 2, 8, 0, {"all-linear"}, lengths),
                                  bottleneck_job("c", 3, 8, Activation::relu, lengths)};
  };
  for (const int32_t stages : {1, 2}) {
    const auto seconds_on = [&](const std::vector<Shape>& shapes, size_t rows) {
      const auto ranks = ranks_of(shapes, {}, exchange_link);
      Rounds rounds = rounds_of(jobs_of(rows), config, small_microbatches(), steps);
      for (size_t job = 0; job < rounds.adapters.size(); ++job) ranks->share(static_cast<int32_t>(job), *rounds.adapters[job]);
      if (shapes.size() == 1) {
        ranks->run(plan(rounds, ranks->layout(), RankOrder::automatic), rounds.rounds);
      } else {
        ranks->run(plan_dealt(rounds, *ranks, RankOrder::automatic, {}, exchange_link).value(), rounds.rounds);
      }
      return ranks->times().seconds;
    };
    double plain_s = seconds_on({{.stages = stages}}, 2);
    for (const RandomJob& job : jobs_of(2)) {
      const auto bytes = static_cast<double>(job.make_adapter(config, at::kFloat, at::kCPU)->parameter_count() * 8);  // adapters are f64
      plain_s += steps * 2 * (exchange_link.latency_s + bytes / 2 / exchange_link.bytes_per_s);
    }
    const double replicas_s = seconds_on({{.stages = stages}, {.stages = stages}}, 4);
    EXPECT_LE(replicas_s, 1.05 * plain_s) << stages << " stages";
    // No less than their halves take, but for another order of a pipeline.
    EXPECT_GE(replicas_s, 0.99 * seconds_on({{.stages = stages}}, 2)) << stages << " stages";
  }
}

TEST_F(EmulatedRanks, ComputeNothing) {
  RankThreads ranks(emulated(), even_layout(config, 2), 1);
  Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 2);
  std::vector<at::Tensor> before;
  for (const auto& adapter : rounds.adapters) {
    for (const at::Tensor& value : values_of(*adapter)) before.push_back(value);
  }
  const RankPlan planned = plan(rounds, ranks.layout(), RankOrder::automatic);
  ranks.run(planned, rounds.rounds);
  for (const JobRound& round : rounds.rounds) {
    EXPECT_TRUE(round.emulated && round.stepped);
    EXPECT_EQ(round.failure, "");
    EXPECT_TRUE(std::isnan(round.loss()) && std::isnan(round.gradient_norm));
  }
  std::vector<at::Tensor> after;
  for (const auto& adapter : rounds.adapters) {
    for (const at::Tensor& value : values_of(*adapter)) after.push_back(value);
  }
  EXPECT_EQ(difference_in_bits(after, before), "");
}

/// A chunk of the head holds 576 rows by the smaller share of this vocabulary, and 512 by the larger.
TEST_F(EmulatedRanks, OfUnequalSharesOfTheVocabularyExchangeAsManyChunks) {
  ModelConfig model = config;
  model.vocabulary_size = 32768;
  std::vector<std::shared_ptr<const Backbone>> parts;
  for (int64_t index = 0; index < 3; ++index) parts.push_back(Backbone::emulated(model, at::kFloat, {index, 3}, standing_device(sleeps)));
  RankThreads ranks(parts, even_layout(model, 1, 1, 3), 1);
  const auto collectives = [&](const std::vector<int64_t>& row_lengths, int64_t least_labelled, int64_t most_labelled) {
    Rounds rounds = rounds_of({lora_job("rows", 1, 4, 0, {"all-linear"}, row_lengths)}, model, {.sharing = Sharing::temporal, .token_budget = 1024}, 1);
    EXPECT_EQ(rounds.plans.front().microbatches.size(), 1u);
    const int64_t labelled = rounds.batches.front().labelled_count();
    EXPECT_GE(labelled, least_labelled);
    EXPECT_LE(labelled, most_labelled);
    ranks.share(0, *rounds.adapters.front());
    ranks.run(plan_round(rounds.plans.front(), ranks.layout()), rounds.rounds);
    return collectives_by_rank(ranks.times());
  };
  const int64_t of_one_chunk = collectives({100}, 1, 512).front();
  EXPECT_EQ(collectives({260, 260, 260}, 513, 576), std::vector<int64_t>(3, of_one_chunk + 1));
}

TEST_F(EmulatedRanks, SleepOnceForEveryActionAndUntilItsEnd) {
  RankThreads ranks(emulated(), even_layout(config, 4), 1);
  Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 1);
  const RankPlan planned = plan(rounds, ranks.layout(), RankOrder::one_f_one_b);
  ranks.run(planned, rounds.rounds);
  std::vector<double> ends;
  for (const RankTime& time : ranks.times().ranks) {
    for (const SimulatedSpan& span : time.spans) ends.push_back(span.end_s);
  }
  std::vector<double> slept = sleeps->until_s;
  std::ranges::sort(ends);
  std::ranges::sort(slept);
  EXPECT_EQ(slept, ends);
}

TEST_F(EmulatedRanks, AreBusyForOptimizerStepsOfTheirOwnLayers) {
  const auto device = standing_device(sleeps);
  device->operator_seconds = [](const StageShape&, const Operator&, const MicrobatchCounts&) { return 0.0; };
  device->optimizer_seconds = [](int64_t values, int64_t moments) { return static_cast<double>(values * (1 + moments)); };
  RankThreads ranks(Backbone::emulated(config, at::kFloat, {}, device), even_layout(config, 4), 1);
  const std::vector<RandomJob> jobs{four_jobs().front()};
  Rounds rounds = rounds_of(jobs, config, small_microbatches(), 1);
  ranks.run(plan(rounds, ranks.layout(), RankOrder::gpipe), rounds.rounds);
  const Adapter& adapter = *rounds.adapters.front();
  int64_t values = 0;
  for (const Parameter& parameter : adapter.parameters()) values += parameter.value.numel();
  for (const RankTime& time : ranks.times().ranks) {
    EXPECT_EQ(time.spans.back().end_s - time.spans.back().start_s, static_cast<double>(values / 4 * 3));
  }
}

TEST_F(EmulatedRanks, EvaluateWithoutAnAnswer) {
  RankThreads ranks(emulated(), even_layout(config, 2), 1);
  Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 1);
  for (JobRound& round : rounds.rounds) round.purpose = RoundPurpose::evaluate;
  const RankPlan planned = plan(rounds, ranks.layout(), RankOrder::automatic);
  ranks.run(planned, rounds.rounds);
  for (const JobRound& round : rounds.rounds) {
    EXPECT_TRUE(round.emulated && std::isnan(round.loss()));
    EXPECT_FALSE(round.stepped);
  }
  EXPECT_LT(ranks.times().seconds, planned.predicted.makespan_s);
  EXPECT_GT(ranks.times().seconds, 0);
}

TEST_F(EmulatedRanks, OnOneRankTakeTheSumOfTheirOperators) {
  Interpreter interpreter(emulated());
  Rounds rounds = rounds_of(four_jobs(), config, small_microbatches(), 1);
  double sum = 0;
  interpreter.observe([&](const Operator& op, const MicrobatchState& state, double seconds) {
    EXPECT_EQ(seconds, seconds_of(op, state.counts));
    sum += seconds;
  });
  for (const StepPlan& plan : rounds.plans) {
    sum = 0;
    interpreter.run(plan, rounds.rounds);
    EXPECT_NEAR(interpreter.ended_s(), sum + 4 * optimizer_s, 1e-9 * sum);  // and four optimizer steps
  }
  for (const JobRound& round : rounds.rounds) EXPECT_TRUE(round.stepped);
}

class EmulatedRanksThatDivideLayers : public EmulatedRanks, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(AndTokens, EmulatedRanksThatDivideLayers, ::testing::Bool());

TEST_P(EmulatedRanksThatDivideLayers, MakeTheCollectivesOfRealOnes) {
  PipelineLayout layout = even_layout(config, 2, 1, 3);
  for (StageShape& stage : layout.stages) stage.is_sequence_parallel = GetParam();
  std::vector<std::shared_ptr<const Backbone>> real, unreal;
  for (int64_t index = 0; index < 3; ++index) {
    real.push_back(Backbone::load(random_model(config, 1), at::kFloat, at::kCPU, {.shard = {index, 3}}));
    unreal.push_back(emulated({}, {index, 3}));
  }
  std::vector<RankTimes> times;
  for (const auto& parts : {real, unreal}) {
    RankThreads ranks(parts, layout, 1);
    std::vector<RandomJob> jobs = four_jobs();
    Rounds rounds = rounds_of(jobs, config, small_microbatches(), 2);
    std::vector<std::unique_ptr<Adapter>> adapters;
    for (size_t i = 0; i < jobs.size(); ++i) {
      adapters.push_back(jobs[i].make_adapter(config, at::kFloat, at::kCPU));
      ranks.share(static_cast<int32_t>(i), *adapters.back());
      for (JobRound& round : rounds.rounds) {
        if (round.job == static_cast<int32_t>(i)) round.adapter = adapters.back().get();
      }
    }
    ranks.run(plan(rounds, layout, RankOrder::one_f_one_b), rounds.rounds);
    times.push_back(ranks.times());
  }
  EXPECT_GT(times[0].ranks.front().collectives, 0);
  EXPECT_EQ(collectives_by_rank(times[1]), collectives_by_rank(times[0]));
  // Ranks of a group are busy at the same time, and every collective takes the device's.
  for (size_t stage = 0; stage < 2; ++stage) {
    const RankTime& first = times[1].ranks[3 * stage];
    for (size_t part = 1; part < 3; ++part) {
      const RankTime& other = times[1].ranks[3 * stage + part];
      ASSERT_EQ(first.spans.size(), other.spans.size());
      EXPECT_EQ(first.spans.back().end_s, other.spans.back().end_s);
    }
    const double least_s = GetParam() ? all_reduce_s / 2 : all_reduce_s;
    EXPECT_GE(first.waited_s, least_s * static_cast<double>(first.collectives));
  }
}

}  // namespace
}  // namespace cotune
