// Whole runs on several ranks: what they leave is what one rank leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "engine/rank_threads.h"
#include "schedule/token_counts.h"
#include "train/device_costs.h"
#include "train/first_usage.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune {
namespace {

using namespace testing;

TrainerOptions on_ranks(int64_t ranks) {
  TrainerOptions options;
  options.ranks = ranks;
  options.rounds_at_once = 4;
  options.policy.token_budget = 256;
  return options;
}

/// The most plans that were made before a step was told of.
class PlansBetweenSteps : public RunObserver {
 public:
  void on_plan(const StepPlan&, std::span<const JobRound>) override { most = std::max(most, ++count_); }
  void on_step(const StepEvent&) override { count_ = 0; }
  void on_selection(const TrainingJob&) override { count_ = 0; }
  int most = 0;

 private:
  int count_ = 0;
};

/// Clocks that two microbatches share.
class CountsClocks : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    for (const RankPlan& replica : plans.replicas) {
      of_two += std::ranges::count_if(replica.clocks, [](const PipelineClock& clock) { return clock.microbatches.size() > 1; });
    }
  }
  int64_t of_two = 0;
};

TEST(RunOnRanks, IsWatched) {
  SmallRun run("watched", at::kDouble);
  run.change_data = [](const JobSpec&, JobData& data) { data.train = small_data(1, 60, 1000); };
  TrainerOptions options = on_ranks(2);
  options.policy.token_budget = 1 << 16;
  options.pipeline_order = RankOrder::gpipe;  // rounds are not split
  options.costs = roofline_costs(at::kDouble, test_compute_device());  // of a device that is done at once: what is not done hangs
  DeviceSpec& device = options.costs->machine.device;
  for (auto& [dtype, flops] : device.flops) flops = 1e30;
  device.memory_bandwidth = 1e30;
  device.launch_seconds = 0;
  std::promise<std::string> found;
  options.host = "ant";
  options.hang_timeout_s = 0.1;
  options.at_hang = [&](const std::string& trouble) { found.set_value(trouble); };
  JobSpec spec = small_job("job", AdapterMethod::lora, 1, 3);
  spec.train.batch_size = 60;
  run.trainer({spec}, options)->run();
  std::future<std::string> trouble = found.get_future();
  ASSERT_EQ(trouble.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_NE(trouble.get().find(" on ant hangs: "), std::string::npos);
}

TEST(RunOnRanks, LeavesTheAdaptersOfOneRank) {
  std::vector<JobSpec> specs = mixed_jobs(9);
  specs[0].train.eval_steps = 4;
  specs[1].train.save_steps = 8;
  SmallRun one("one", at::kDouble), two("two", at::kDouble);
  one.trainer(specs, on_ranks(1))->run();
  PlansBetweenSteps plans;
  TrainerOptions options = on_ranks(2);
  options.observers = {&plans};
  const RunSummary summary = two.trainer(specs, options)->run();
  EXPECT_EQ(plans.most, 4) << "rounds without a flush";
  expect_equal_adapters(two, one, specs);
  ASSERT_EQ(summary.ranks.size(), 2u);
  EXPECT_EQ(summary.ranks.front().layers.back().end, summary.ranks.back().layers.front().begin);
  for (const RankSummary& rank : summary.ranks) EXPECT_GT(rank.seconds, rank.waited_seconds);
}

void expect_shares(const RankSummary::Shares& shares, const std::string& what) {
  EXPECT_NEAR(shares.busy + shares.exposed + shares.bubble, 1, 1e-9) << what;
  for (const double share : {shares.busy, shares.exposed, shares.bubble}) EXPECT_GE(share, -1e-9) << what;
  EXPECT_GT(shares.busy, 0) << what;
}

TEST(RunOnRanks, HasWhatEveryRankWasPredictedToDoBesideWhatItDid) {
  for (const char* degrees : {"pp=2", "tp=2", "pp=2,tp=2", "dp=2", "dp=1+tp=2"}) {
    for (const Interleave interleave : {Interleave::never, Interleave::always}) {
      TrainerOptions options = on_ranks(parse_parallel(degrees)->ranks());
      options.parallel = *parse_parallel(degrees);
      options.interleave = interleave;
      options.refits_prices = true;
      SmallRun run("shares", at::kDouble);
      if (options.parallel.divides_layers()) options.parts[2] = small_parts(2);
      if (options.parallel.replicas.front().tensor == 2) run.backbone = options.parts[2].front();
      std::vector<JobSpec> specs = mixed_jobs(12);
      std::erase_if(specs, [](const JobSpec& spec) { return spec.adapter.method == AdapterMethod::diff_pruning; });
      const RunSummary summary = run.trainer(specs, options)->run();
      for (const RankSummary& rank : summary.ranks) {
        const std::string what = fmt::format("{}, interleave {}, part {} of {}", degrees, static_cast<int>(interleave), rank.part, rank.parts);
        expect_shares(rank.measured(), what);
        expect_shares(rank.predicted(), what);
        EXPECT_DOUBLE_EQ(rank.predicted_seconds, summary.ranks_predicted_seconds) << what;
        // Sums are made where ranks divide layers, and over replicas; a single pipeline of one stage waits for nobody.
        for (const RankSummary::Shares& shares : {rank.measured(), rank.predicted()}) {
          EXPECT_EQ(shares.exposed > 1e-9, rank.parts > 1 || rank.replicas > 1) << what;
        }
        EXPECT_EQ(rank.exposed_seconds > 0, rank.parts > 1) << what;
        EXPECT_EQ(rank.exchanging_seconds > 0, rank.replicas > 1) << what;
        if (std::string(degrees) == "tp=2") {
          EXPECT_NEAR(rank.predicted().bubble, 0, 1e-9) << what;
        } else if (std::string(degrees) == "pp=2") {
          EXPECT_GT(rank.predicted().bubble, 0) << what;
        }
        EXPECT_GT(rank.peak_bytes, 0) << what;
        EXPECT_LE(rank.peak_bytes, rank.predicted_peak_bytes) << what;
      }
    }
  }
}

TEST(RunOnRanks, ThatDivideLayersLeavesTheAdaptersOfOneRank) {
  std::vector<JobSpec> specs = mixed_jobs(5);
  specs[0].train.eval_steps = 4;
  specs[1].train.save_steps = 3;
  specs[3].train.load_best = true;
  specs[3].train.eval_steps = 2;
  SmallRun one("one", at::kDouble);
  one.trainer(specs, on_ranks(1))->run();
  for (const char* degrees : {"pp=2,tp=2", "pp=2,tp=2,seq"}) {
    SmallRun four("four", at::kDouble);
    TrainerOptions options = on_ranks(4);
    options.parallel = *parse_parallel(degrees);
    options.parts[2] = small_parts(2);
    four.backbone = options.parts[2].front();
    const RunSummary summary = four.trainer(specs, options)->run();
    expect_equal_adapters(four, one, specs);
    ASSERT_EQ(summary.ranks.size(), 4u) << degrees;
    EXPECT_EQ(summary.ranks[1].part, 1);
    EXPECT_EQ(summary.ranks[2].layers.front().begin, 1);
    EXPECT_GT(summary.ranks[3].collectives, 0);
  }
}

/// A run that is stopped as a job has made two steps, and goes on with other options, leaves what one rank leaves.
void expect_to_go_on(TrainerOptions first, const TrainerOptions& then) {
  const std::vector<JobSpec> specs = mixed_jobs(4);
  SmallRun whole("whole", at::kDouble), parts("parts", at::kDouble);
  whole.trainer(specs, on_ranks(1))->run();
  std::atomic<bool> stop = false;
  AtStep stopper([&](const StepEvent& event) { stop = stop || event.job->state().step == 2; });
  first.stop = &stop;
  first.observers = {&stopper};
  const std::shared_ptr<const Backbone> backbone = parts.backbone;
  if (first.parallel.replicas.size() == 1 && first.parallel.divides_layers()) parts.backbone = first.parts.at(2).front();
  parts.trainer(specs, first)->run();
  parts.backbone = backbone;
  parts.trainer(specs, then, /*resume=*/true)->run();
  expect_equal_adapters(parts, whole, specs);
}

TEST(RunOnRanks, GoesOnHoweverTheModelIsDivided) {
  TrainerOptions replicas = on_ranks(2);
  replicas.parallel = *parse_parallel("dp=2");
  expect_to_go_on(on_ranks(1), on_ranks(2));
  for (const char* degrees : {"tp=2", "tp=2,seq"}) {
    TrainerOptions divided = on_ranks(2);
    divided.parallel = *parse_parallel(degrees);
    divided.parts[2] = small_parts(2);
    expect_to_go_on(divided, on_ranks(1));
  }
  expect_to_go_on(replicas, on_ranks(1));
  expect_to_go_on(on_ranks(2), replicas);
}

TEST(RunOnRanks, OfSeveralReplicasLeavesTheAdaptersOfOneRank) {
  std::vector<JobSpec> specs = mixed_jobs(5);
  specs[0].train.eval_steps = 4;
  specs[1].train.save_steps = 3;
  specs[3].train.load_best = true;
  specs[3].train.eval_steps = 2;
  SmallRun one("one", at::kDouble);
  one.trainer(specs, on_ranks(1))->run();
  for (const auto& [degrees, rule] : {std::pair("dp=2", DispatchRule::balanced), {"dp=2,len=30+pp=2", DispatchRule::greedy},
                                      {"dp=2+tp=2", DispatchRule::even},
                                      {"dp=1+tp=2,seq", DispatchRule::balanced}}) {
    SmallRun several("several", at::kDouble);
    TrainerOptions options = on_ranks(parse_parallel(degrees)->ranks());
    options.parallel = *parse_parallel(degrees);
    options.dispatch = rule;
    if (options.parallel.divides_layers()) options.parts[2] = small_parts(2);
    const RunSummary summary = several.trainer(specs, options)->run();
    expect_equal_adapters(several, one, specs);
    ASSERT_EQ(summary.ranks.size(), static_cast<size_t>(options.ranks)) << degrees;
    EXPECT_EQ(summary.ranks[1].replica, 1);
    for (const RankSummary& rank : summary.ranks) EXPECT_GT(rank.exchanged_bytes, 0) << degrees;
    for (const auto& [job, tokens] : summary.tokens) EXPECT_GT(tokens.real, 0);
  }
}

/// Everything that ranks were given to run: lists, rows and the order of exchanges.
class PlansOfRanks : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    for (const RankPlan& replica : plans.replicas) lists.push_back(replica.ranks);
    rows.insert(rows.end(), plans.rows.begin(), plans.rows.end());
    exchanges.push_back(plans.exchanges);
  }
  std::vector<std::vector<std::vector<Action>>> lists;
  std::vector<RowShares> rows;
  std::vector<std::vector<JobStep>> exchanges;
};

/// Jobs of unlike numbers of steps, some with evaluations and checkpoints; during the run one is cancelled and one is paused and goes on.
RunSummary run_with_changes(SmallRun& run, const std::vector<JobSpec>& specs, TrainerOptions options, PlansOfRanks& plans) {
  options.observers = {&plans};
  int64_t calls = 0;
  options.between_rounds = [&](Trainer& trainer) {
    ++calls;
    if (calls == 3) trainer.cancel_job(*trainer.jobs()[1]);
    if (calls == 4) trainer.pause_job(*trainer.jobs()[2]);
    if (calls == 6) trainer.resume_job(*trainer.jobs()[2]);
  };
  return run.trainer(specs, options)->run();
}

TEST(RunOnRanks, IsThatOfPlanningInLineToTheBit) {
  for (const auto& [degrees, sharing] : {std::pair("dp=2", Sharing::hybrid), {"pp=2", Sharing::temporal}, {"dp=1+pp=2", Sharing::batch_all}}) {
    std::vector<JobSpec> specs = mixed_jobs(12);
    std::erase_if(specs, [](const JobSpec& spec) { return spec.adapter.method == AdapterMethod::diff_pruning; });
    ASSERT_GE(specs.size(), 3u);
    specs[0].train.steps = 17;
    specs[0].train.eval_steps = 5;
    specs[2].train.save_steps = 7;
    TrainerOptions options = on_ranks(parse_parallel(degrees)->ranks());
    options.parallel = *parse_parallel(degrees);
    options.policy.sharing = sharing;
    options.rounds_at_once = 2;
    SmallRun ahead("ahead"), in_line("in_line");
    PlansOfRanks plans_ahead, plans_in_line;
    const RunSummary with = run_with_changes(ahead, specs, options, plans_ahead);
    options.plan_ahead = false;
    const RunSummary without = run_with_changes(in_line, specs, options, plans_in_line);
    EXPECT_EQ(plans_ahead.lists, plans_in_line.lists) << degrees;
    EXPECT_EQ(plans_ahead.rows, plans_in_line.rows) << degrees;
    EXPECT_EQ(plans_ahead.exchanges, plans_in_line.exchanges) << degrees;
    EXPECT_EQ(with.losses, without.losses) << degrees;
    for (const char* job : {"plain", "long"}) expect_same_adapter(adapter_bytes(ahead, job), adapter_bytes(in_line, job), job);
    EXPECT_GT(with.rounds_planned_ahead, with.rounds / 2) << degrees;
    EXPECT_LT(with.rounds_planned_ahead, with.rounds) << degrees;  // after every change they are planned anew
    EXPECT_EQ(without.rounds_planned_ahead, 0);
    EXPECT_EQ(without.planning_exposed_seconds, without.planning_seconds);
    EXPECT_GT(with.planning_seconds, 0);
  }
}

/// Ranks that take far longer for rounds than it takes to plan them.
class SlowRanks : public RankThreads {
 public:
  using RankThreads::RankThreads;
  using RankThreads::run;
  void run(const ReplicaPlans& plans, std::span<JobRound> rounds) override {
    RankThreads::run(plans, rounds);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
};

TEST(RunOnRanks, HidesPlanningBehindTheRoundsBefore) {
  std::vector<JobSpec> specs = mixed_jobs(20);
  std::erase_if(specs, [](const JobSpec& spec) { return spec.adapter.method == AdapterMethod::diff_pruning; });  // selects at first
  SmallRun run("hidden");
  TrainerOptions options = on_ranks(2);
  options.rounds_at_once = 2;
  const PipelineLayout layout{.stages = {{0, 1, true, false}, {1, 2, false, true}}, .stage_rank = {0, 1}};
  options.rank_group = std::make_shared<SlowRanks>(run.backbone, layout, 1);
  FirstUsage usage;
  options.observers = {&usage};
  const RunSummary summary = run.trainer(specs, options)->run();
  EXPECT_EQ(summary.rounds, 20);
  EXPECT_EQ(summary.rounds_planned_ahead, 19) << "all but the first, which nothing runs before";
  ASSERT_TRUE(usage.first);
  const double later_s = summary.planning_seconds - usage.first->planning_seconds.value();
  EXPECT_GT(later_s, 0);
  EXPECT_LT(summary.planning_exposed_seconds - usage.first->planning_exposed_seconds.value(), 0.5 * later_s);
}

/// What the rounds on ranks are like: whether jobs share microbatches, and what is padded.
class PackingOfRanks : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    for (const RankPlan& replica : plans.replicas) {
      for (const StepPlan& plan : replica.rounds) {
        for (const Microbatch& microbatch : plan.microbatches) {
          std::set<int32_t> jobs;
          for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
          ++microbatches;
          of_several_jobs += jobs.size() > 1 ? 1 : 0;
        }
        for (const TokenCounts& counts : count_tokens(plan)) tokens += counts;
      }
    }
  }
  int64_t microbatches = 0, of_several_jobs = 0;
  TokenCounts tokens;
};

/// MuxTune §2.4: tasks (what is fused), operators (what is computed beside an all-reduce) and data (how lengths are aligned), each on or off.
TEST(RunOnRanks, TrainTheSameWithEveryCombinationOfTheThreeLevels) {
  const std::vector<JobSpec> specs = mixed_jobs(4);
  SmallRun one("one", at::kDouble);
  const RunSummary expected = one.trainer(specs, on_ranks(1))->run();
  const auto parts = small_parts(2);
  int64_t beside_sums = 0;
  for (const Sharing tasks : {Sharing::temporal, Sharing::hybrid}) {
    for (const Interleave operators : {Interleave::never, Interleave::always}) {
      for (const Layout data : {Layout::padded, Layout::chunked}) {
        SCOPED_TRACE(fmt::format("sharing {}, interleave {}, layout {}", static_cast<int>(tasks), static_cast<int>(operators), static_cast<int>(data)));
        SmallRun run("levels", at::kDouble);
        TrainerOptions options = on_ranks(2);
        options.policy = {.sharing = tasks, .layout = data, .token_budget = 320, .chunk_size = 16};
        options.interleave = operators;
        options.parallel = *parse_parallel("tp=2");
        options.parts[2] = parts;
        run.backbone = parts.front();
        CountsClocks clocks;
        PackingOfRanks packing;
        options.observers = {&clocks, &packing};
        const RunSummary summary = run.trainer(specs, options)->run();
        expect_equal_adapters(run, one, specs);
        // The switches do what they say.
        EXPECT_GT(packing.microbatches, 0);
        EXPECT_EQ(packing.of_several_jobs > 0, tasks == Sharing::hybrid);
        EXPECT_EQ(packing.tokens.pad_to_row + packing.tokens.pad_to_mix > 0, data == Layout::padded);
        EXPECT_EQ(packing.tokens.pad_to_chunk > 0, data == Layout::chunked);
        for (const auto& [job, losses] : expected.losses) {
          const std::vector<double>& own = summary.losses.at(job);
          ASSERT_EQ(own.size(), losses.size());
          for (size_t step = 0; step < own.size(); ++step) EXPECT_NEAR(own[step], losses[step], 1e-10) << job << " step " << step;
        }
        EXPECT_EQ(clocks.of_two > 0, operators == Interleave::always);
        beside_sums += clocks.of_two;
      }
    }
  }
  EXPECT_GT(beside_sums, 0);
}

TEST(RunOnRanks, CutStepsOfFewJobsIntoMoreMicrobatchesThatTrainTheSame) {
  std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 5), small_job("b", AdapterMethod::diff_pruning, 2, 5)};
  for (JobSpec& spec : specs) spec.train.batch_size = 8;
  specs[0].adapter.dropout = 0.2;
  specs[1].train.max_grad_norm = 0.5;
  const auto run = [&](const std::string& name, const TrainerOptions& options, RunSummary& summary) {
    auto made = std::make_unique<SmallRun>(name, at::kDouble);
    made->change_data = [](const JobSpec& spec, JobData& data) { data.train = small_data(key_of(spec.name), 20, 250); };
    summary = made->trainer(specs, options)->run();
    return made;
  };
  TrainerOptions options = on_ranks(1);
  options.policy.token_budget = 4096;
  RunSummary summary;
  const auto one = run("one", options, summary);
  options.ranks = 2;
  options.parallel = *parse_parallel("pp=2");
  for (const RankOrder order : {RankOrder::split, RankOrder::automatic, RankOrder::lorapp}) {
    options.pipeline_order = order;
    const auto two = run("two", options, summary);
    expect_equal_adapters(*two, *one, specs);
    if (order == RankOrder::split) {
      EXPECT_GT(summary.rounds_split, 0);
    } else if (order == RankOrder::lorapp) {
      EXPECT_EQ(summary.rounds_split, 0);
    }
  }
}

TEST(RunOnRanks, KeepsAJobThatFailsFromTheOthers) {
  std::vector<JobSpec> specs = mixed_jobs(6);
  SmallRun all("all", at::kDouble), others("others", at::kDouble);
  others.trainer({specs[1], specs[2], specs[3]}, on_ranks(2))->run();
  specs[0].train.learning_rate = 1e300;
  const auto trainer = all.trainer(specs, on_ranks(2));
  trainer->run();
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::failed);
  expect_equal_adapters(all, others, {specs[1], specs[2], specs[3]});
}

}  // namespace
}  // namespace cotune
