#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "jobs/jobs_file.h"
#include "jobs/option_table.h"
#include "jobs/settings.h"

namespace cotune {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

/// A file whose one job, `sql`, has the sweep in line 3.
std::string file_with(const std::string& sweep, const std::string& sections = "data: {train: t, eval: e}") {
  return "{cotune: 1, model: {path: m}, jobs: [\n{name: sql, " + sections + ",\nsweep: {" + sweep + "}}]}";
}

std::vector<JobSpec> candidates(const std::string& sweep, const std::vector<std::string>& overrides = {},
                                const std::string& sections = "data: {train: t, eval: e}") {
  return parse_jobs_file(file_with(sweep, sections), "j.yaml", "/folder", overrides, Purpose::train).jobs;
}

std::vector<std::string> names(const std::vector<JobSpec>& jobs) {
  std::vector<std::string> result;
  for (const JobSpec& job : jobs) result.push_back(job.name);
  return result;
}

std::string mistakes(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_jobs_file(text, "j.yaml", "/folder", overrides, Purpose::train);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Sweep, OfAGridIsEveryCombination) {
  const std::vector<JobSpec> jobs = candidates("grid: {adapter.lora_r: [4, 8, 16], train.lr: [1e-4, 3e-4]}");
  EXPECT_EQ(names(jobs), (std::vector<std::string>{"sql-r4-lr0.0001", "sql-r4-lr0.0003", "sql-r8-lr0.0001", "sql-r8-lr0.0003",
                                                   "sql-r16-lr0.0001", "sql-r16-lr0.0003"}));
  EXPECT_EQ(jobs[3].adapter.r, 8);
  EXPECT_EQ(jobs[3].train.learning_rate, 3e-4);
  EXPECT_EQ(jobs[3].sweep.of, "sql");
  EXPECT_EQ(jobs[3].sweep.values, (Values{{"adapter.r", "8"}, {"train.learning_rate", "0.0003"}}));
  EXPECT_TRUE(jobs[3].sweep.grid.empty());
  EXPECT_EQ(jobs[3].places.at("adapter.r").line, 3);
  EXPECT_EQ(jobs[3].places.at("adapter.r").field, "jobs[0].sweep.grid.adapter.r");
}

TEST(Sweep, NamesOptionsByTheirAbbreviationsNotByWordsOfOtherPrograms) {
  EXPECT_EQ(names(candidates("grid: {data.eval_fraction: [0.1, 0.2]}", {}, "data: {train: t}")),
            (std::vector<std::string>{"sql-eval_fraction0.1", "sql-eval_fraction0.2"}));
  EXPECT_EQ(names(candidates("grid: {data.val_set_size: [0.1]}", {}, "data: {train: t}")), (std::vector<std::string>{"sql-eval_fraction0.1"}));
  EXPECT_EQ(names(candidates("grid: {train.optimizer: [adamw, sgd]}")), (std::vector<std::string>{"sql-optim-adamw", "sql-optim-sgd"}));
}

TEST(Sweep, NamesEveryNumberOfAGridByItsValue) {
  EXPECT_EQ(names(candidates("grid: {train.lr: [1e-3, 2.5e+20, 1e38]}")), (std::vector<std::string>{"sql-lr0.001", "sql-lr2.5e20", "sql-lr1e38"}));
  EXPECT_EQ(names(candidates("grid: {priority: [-2, 0]}")), (std::vector<std::string>{"sql-priority-2", "sql-priority0"}));
}

TEST(Sweep, TriesListsWordsPathsMapsAndNothingAsSingleValues) {
  const std::vector<JobSpec> jobs = candidates(
      "grid: {adapter.target_modules: [[q_proj, v_proj], all-linear], train.optimizer: [sgd, adamw_torch], adapter.use_rslora: [true, false], "
      "data.train: [a.jsonl, [b.jsonl, c.jsonl]], adapter.layers_to_transform: [null, [0, 1]], priority: [0, 2]}",
      {}, "data: {eval: e}");
  ASSERT_EQ(jobs.size(), 64U);
  EXPECT_EQ(jobs.front().name, "sql-1.1.1.1.1.1");  // the values would make too long a name
  EXPECT_EQ(jobs.front().adapter.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(jobs.front().data.train, (std::vector<TrainFile>{{"/folder/a.jsonl"}}));
  EXPECT_EQ(jobs.back().data.train, (std::vector<TrainFile>{{"/folder/b.jsonl"}, {"/folder/c.jsonl"}}));
  EXPECT_EQ(jobs.back().train.optimizer, OptimizerKind::adamw);
  EXPECT_TRUE(jobs.front().adapter.layers_to_transform.empty());
  EXPECT_EQ(jobs.back().adapter.layers_to_transform, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(jobs.back().priority, 2);
}

TEST(Sweep, SetsOptionsThatBelongTogether) {
  const std::vector<JobSpec> jobs = candidates("grid: {adapter: [{r: 4, alpha: 8}, {r: 8, alpha: 16, use_rslora: true}], train.seed: [1, 2]}");
  EXPECT_EQ(names(jobs), (std::vector<std::string>{"sql-adapter1-seed1", "sql-adapter1-seed2", "sql-adapter2-seed1", "sql-adapter2-seed2"}));
  EXPECT_EQ(jobs[2].adapter.alpha, 16);
  EXPECT_EQ(jobs[2].sweep.values, (Values{{"adapter.r", "8"}, {"adapter.alpha", "16"}, {"adapter.use_rslora", "true"}, {"train.seed", "1"}}));
}

TEST(Sweep, ReplacesDefaultsAndLeavesOtherJobsAlone) {
  const JobsFile file = parse_jobs_file(
      "{cotune: 1, model: {path: m}, defaults: {adapter: {r: 64}, train: {epochs: 2}}, jobs: [{name: before, data: {train: t}},\n"
      "{name: sql, data: {train: t, eval: e}, sweep: {grid: {adapter.r: [4, 8], train.steps: [5]}}}, {name: after, data: {train: t}}]}",
      "j.yaml", "/folder", {"jobs.sql.train.lr=0.5", "jobs[1].adapter.alpha=3", "jobs[2].adapter.r=2"}, Purpose::train);
  EXPECT_EQ(names(file.jobs), (std::vector<std::string>{"before", "sql-r4-steps5", "sql-r8-steps5", "after"}));
  EXPECT_EQ(file.jobs[1].adapter.r, 4);
  EXPECT_EQ(file.jobs[1].adapter.alpha, 3);
  EXPECT_EQ(file.jobs[2].train.learning_rate, 0.5);
  EXPECT_EQ(file.jobs[2].train.steps, 5);
  EXPECT_EQ(file.jobs[2].train.epochs, 0);
  EXPECT_EQ(file.jobs[3].adapter.r, 2);
}

TEST(Sweep, DrawsFromListsAndRanges) {
  const std::vector<JobSpec> jobs = candidates(
      "random: {train.lr: {log_uniform: [1e-5, 1e-3]}, adapter.r: [4, 8, 16], adapter.dropout: {uniform: [0, 0.1]}, "
      "train.batch_size: {uniform: [1, 4]}, train.warmup_steps: {uniform: [0, 100], step: 25}, adapter.alpha: {log_uniform: [1, 64]}}, samples: 400");
  ASSERT_EQ(jobs.size(), 400U);
  EXPECT_EQ(jobs.front().name, "sql-001");
  EXPECT_EQ(jobs.back().name, "sql-400");
  std::set<int64_t> ranks, batches, warmups;
  int64_t low_rates = 0;
  for (const JobSpec& job : jobs) {
    EXPECT_GE(job.train.learning_rate, 1e-5);
    EXPECT_LE(job.train.learning_rate, 1e-3);
    low_rates += job.train.learning_rate < 1e-4 ? 1 : 0;
    EXPECT_LE(job.adapter.dropout, 0.1);
    ranks.insert(job.adapter.r);
    batches.insert(job.train.batch_size);
    warmups.insert(job.train.warmup_steps);
  }
  EXPECT_NEAR(static_cast<double>(low_rates), 200, 50);
  EXPECT_EQ(ranks, (std::set<int64_t>{4, 8, 16}));
  EXPECT_EQ(batches, (std::set<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(warmups, (std::set<int64_t>{0, 25, 50, 75, 100}));
}

TEST(Sweep, DrawsEveryKindOfWholeNumberExactly) {
  const std::vector<JobSpec> jobs = candidates(
      "random: {train.seed: {uniform: [0, 9007199254740992]}, priority: {uniform: [-2, 2]}, data.max_examples: {uniform: [1, 1000000000], step: 7}, "
      "train.weight_decay: {uniform: [1000, 1002], step: 0.5}, adapter.alpha: {uniform: [0.1, 0.4], step: 0.1}}, samples: 300");
  std::set<uint64_t> seeds, odd;
  std::set<int64_t> priorities;
  std::set<double> decays, alphas;
  for (const JobSpec& job : jobs) {
    seeds.insert(job.train.seed);
    EXPECT_LE(job.train.seed, uint64_t{1} << 53);
    odd.insert(job.train.seed % 2);
    priorities.insert(job.priority);
    EXPECT_EQ(job.data.max_examples % 7, 1);
    EXPECT_LE(job.data.max_examples, 1'000'000'000);
    decays.insert(job.train.weight_decay);
    alphas.insert(job.adapter.alpha);
  }
  EXPECT_EQ(seeds.size(), 300U);
  EXPECT_GT(*seeds.rbegin(), uint64_t{1} << 52);
  EXPECT_EQ(odd.size(), 2U);
  EXPECT_EQ(priorities, (std::set<int64_t>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(decays, (std::set<double>{1000, 1000.5, 1001, 1001.5, 1002}));
  EXPECT_EQ(alphas, (std::set<double>{0.1, 0.2, 0.3, 0.4}));
  std::set<uint64_t> few;
  for (const JobSpec& job : candidates("random: {train.seed: {uniform: [3, 6]}}, samples: 60")) few.insert(job.train.seed);
  EXPECT_EQ(few, (std::set<uint64_t>{3, 4, 5, 6}));
  for (const JobSpec& job : candidates("random: {train.seed: {log_uniform: [1, 9007199254740992]}}, samples: 60")) {
    EXPECT_GE(job.train.seed, 1U);
    EXPECT_LE(job.train.seed, uint64_t{1} << 53);
  }
}

TEST(Sweep, EveryOptionThatIsANumberTakesARange) {
  for (const Option& option : option_table()) {
    const OptionType type = option.accepted.type;
    const bool is_number = type == OptionType::whole || type == OptionType::seed || type == OptionType::number;
    const bool is_tried = option.section == Section::job || option.section == Section::data || option.section == Section::adapter || option.section == Section::train;
    if (!is_number || !is_tried) continue;
    const double low = std::max(option.accepted.low, 0.0) + (option.accepted.low_open ? 0.001 : 0), high = std::min(option.accepted.high, 40.0) * 0.99;
    const bool is_real = type == OptionType::number;
    const std::string ends = is_real ? fmt::format("{}, {}", low, high) : fmt::format("{}, {}", static_cast<int64_t>(low), static_cast<int64_t>(high));
    const std::string message = mistakes(file_with(fmt::format("random: {{{}: {{uniform: [{}]}}}}, samples: 3", option.path(), ends)));
    EXPECT_EQ(message.find("sweep.random." + option.path() + ": uniform"), std::string::npos) << message;
    EXPECT_EQ(message.find("is no number"), std::string::npos) << message;
  }
}

TEST(Sweep, FurtherDrawsAndOptionsLeaveEarlierCandidatesAlone) {
  const std::string few = "random: {train.lr: {log_uniform: [1e-5, 1e-3]}}, samples: 3", lr = few.substr(9, few.find('}') - 8);
  const std::vector<JobSpec> before = candidates(few), more = candidates(few, {"jobs.sql.sweep.samples=9"});
  const std::vector<JobSpec> wider = candidates("random: {adapter.r: [4, 8], " + lr + "}, samples: 3");
  const std::vector<JobSpec> other_seed = candidates(few + ", seed: 5");
  ASSERT_EQ(more.size(), 9U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(more[i], before[i]);
    EXPECT_EQ(wider[i].train.learning_rate, before[i].train.learning_rate);
    EXPECT_NE(other_seed[i].train.learning_rate, before[i].train.learning_rate);
  }
  const std::vector<JobSpec> grid = candidates("grid: {adapter.r: [4, 8], train.seed: [1]}"), larger = candidates("grid: {adapter.r: [4, 8, 2], train.seed: [1, 2]}");
  for (const JobSpec& job : grid) EXPECT_EQ(std::count(larger.begin(), larger.end(), job), 1) << job.name;
}

TEST(Sweep, CombinesEveryDrawWithEveryCombination) {
  const std::vector<JobSpec> jobs = candidates("grid: {adapter.r: [4, 8]}, random: {train.lr: {uniform: [0.1, 0.2]}}, samples: 2");
  EXPECT_EQ(names(jobs), (std::vector<std::string>{"sql-r4-001", "sql-r8-001", "sql-r4-002", "sql-r8-002"}));
  EXPECT_EQ(jobs[0].train.learning_rate, jobs[1].train.learning_rate);
  EXPECT_NE(jobs[0].train.learning_rate, jobs[2].train.learning_rate);
}

TEST(Sweep, RulesAreThoseOfEveryCandidate) {
  const std::vector<JobSpec> jobs = candidates("grid: {adapter.r: [4, 8]}, metric: eval_accuracy, max_concurrent: 3, halving: {first_steps: 50, mode: synchronous}",
                                               {"jobs.sql.sweep.halving.factor=4"});
  for (const JobSpec& job : jobs) {
    EXPECT_EQ(job.sweep.metric, SweepMetric::eval_accuracy);
    EXPECT_EQ(job.sweep.max_concurrent, 3);
    EXPECT_EQ(job.sweep.halving, (HalvingSpec{.factor = 4, .first_steps = 50, .mode = HalvingMode::synchronous}));
  }
}

TEST(Sweep, ReadsBackFromTheEffectiveConfiguration) {
  JobsFile file = parse_jobs_file(file_with("grid: {adapter.target_modules: [[q_proj], all-linear], adapter.layers_to_transform: [null, [1]]}, "
                                            "random: {train.lr: {log_uniform: [1e-5, 1e-3]}}, samples: 3, halving: {first_fraction: 0.1}"),
                                  "j.yaml", "/folder", {}, Purpose::train);
  EXPECT_EQ(parse_configuration(to_yaml(file), "run.json", Purpose::train), file);
}

TEST(Sweep, OfTheMostJobsHasAConfigurationThatReadsBack) {
  const JobsFile file = parse_jobs_file(file_with("random: {train.lr: {log_uniform: [1e-5, 1e-3]}}, samples: 3000"), "j.yaml", "/folder", {}, Purpose::train);
  const std::string text = to_yaml(file);
  EXPECT_GT(text.size(), size_t{1} << 20);
  EXPECT_EQ(parse_configuration(text, "run.json", Purpose::train), file);
}

TEST(Sweep, MaxConcurrentIsNoSettingOfResultsAndHalvingIs) {
  const JobSpec job = candidates("grid: {adapter.r: [4]}, halving: {first_steps: 5}").front();
  JobSpec other = job;
  other.sweep.max_concurrent = 7;
  EXPECT_EQ(settings_hash(other), settings_hash(job));
  other.sweep.halving.factor = 9;
  EXPECT_EQ(settings_differences(job, other), std::vector<std::string>{"jobs.sql-r4.sweep.halving.factor: 3, now 9"});
}

struct Case {
  std::string sweep;
  std::string message;
};

TEST(SweepMistakes, NameLineFieldAndValue) {
  const std::vector<Case> cases = {
      {"grid: {adapter.r: [4, 0]}", "j.yaml:3: jobs[0].sweep.grid.adapter.r: must be a whole number from 1 to 512, got 0"},
      {"grid: {adapter.r: 4}", "j.yaml:3: jobs[0].sweep.grid.adapter.r: must be a list of values to try"},
      {"grid: {adapter.r: []}", "j.yaml:3: jobs[0].sweep.grid.adapter.r: must have at least one value"},
      {"grid: {adapter.r: [4, 8, 4]}", "j.yaml:3: jobs[0].sweep.grid.adapter.r: 4 is given twice"},
      {"grid: {adapter.r: [4], adapter.lora_r: [8]}", "j.yaml:3: jobs[0].sweep.grid.adapter.lora_r: `adapter.r` is given twice"},
      {"grid: {r: [4]}", "j.yaml:3: jobs[0].sweep.grid.r: options of a sweep are named with their section: did you mean `adapter.r`?"},
      {"grid: {adapter.rnak: [4]}", "j.yaml:3: jobs[0].sweep.grid.adapter.rnak: unknown key; did you mean `rank`?"},
      {"grid: {run.memory: [4]}",
       "j.yaml:3: jobs[0].sweep.grid.run.memory: is an option of the run, the same for all candidates; a sweep tries options of its job: tenant, "
       "priority, deadline, and those of data, adapter and train, such as `adapter.r` or `train.lr`"},
      {"grid: {name: [a]}", "j.yaml:3: jobs[0].sweep.grid.name: names of candidates are made by the sweep"},
      {"grid: {adapter: [{r: 4, alpha: -1}]}", "j.yaml:3: jobs[0].sweep.grid.adapter: alpha: must be a number above 0, got -1"},
      {"grid: {adapter: [{r: 4}], adapter.r: [8]}",
       "j.yaml:3: jobs[0].sweep.grid.adapter.r: `adapter.r` is tried by another field of the sweep, too"},
      {"grid: {adapter.bottleneck_size: [8]}",
       "j.yaml:3: jobs[0].sweep.grid.adapter.bottleneck_size: `bottleneck_size` belongs to method bottleneck; this job's method is lora"},
      {"random: {train.lr: {log_uniform: [0, 1]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.lr: log_uniform: must be a number above 0, got 0"},
      {"random: {train.lr: {uniform: [1, 0.5]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.lr: uniform: the first end, 1, must be below the second, 0.5"},
      {"random: {train.lr: {normal: [0, 1]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.lr: `normal` is no distribution; accepted: uniform, log_uniform, and step beside uniform"},
      {"random: {train.optimizer: {uniform: [0, 1]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.optimizer: is no number, but one of adamw, sgd: give a list of values to choose from"},
      {"random: {deadline: {uniform: [2026-01-01, 2026-02-01]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.deadline: is no number, but a time such as 2026-01-31 or 2026-01-31T18:00:00Z: give a list of values to "
       "choose from"},
      {"random: {adapter: {uniform: [1, 2]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.adapter: is a section, and ranges are of single options: give a list of maps to choose from"},
      {"random: {train.seed: {uniform: [0, 18446744073709551615]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.seed: uniform: the ends of a range must be at most 9007199254740992, got 18446744073709551615"},
      {"random: {train.seed: {uniform: [0, 8], step: 0}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.seed: step: must be a whole number from 1 to 18446744073709551615, got 0"},
      {"random: {train.seed: {uniform: [-1, 8]}}, samples: 2",
       "j.yaml:3: jobs[0].sweep.random.train.seed: uniform: must be a whole number from 0 to 18446744073709551615, got -1"},
      {"random: {train.lr: {uniform: [0.1, 0.2]}}", "j.yaml:3: jobs[0].sweep.random: needs `samples` beside it: how often to draw"},
      {"grid: {adapter.r: [4]}, samples: 3", "j.yaml:3: jobs[0].sweep.samples: counts draws of `random`, and the sweep has none"},
      {"grid: {adapter.r: [4]}, seed: 3", "j.yaml:3: jobs[0].sweep.seed: seeds draws of `random`, and the sweep has none"},
      {"metric: eval_loss", "j.yaml:3: jobs[0].sweep.metric: says how to sweep, and the sweep needs `grid` or `random` beside it: what to try"},
      {"grid: {adapter.r: [4]}, halving: {factor: 3}",
       "j.yaml:3: jobs[0].sweep.halving.factor: `factor` needs first_steps or first_fraction beside it"},
      {"grid: {adapter.r: [4]}, halving: {first_steps: 3, first_fraction: 0.5}",
       "j.yaml:3: jobs[0].sweep.halving.first_fraction: `first_steps` and `first_fraction` exclude each other: give one"},
      {"grid: {train.lr: [1]}, halving: {rungs: 3}",
       "j.yaml:3: jobs[0].sweep.halving.rungs: unknown key; accepted: first_steps, first_fraction, factor, mode"},
      {"random: {train.lr: {uniform: [0.1, 0.2]}}, samples: 5000, grid: {adapter.r: [1, 2, 3]}",
       "j.yaml:3: jobs[0].sweep.grid: gives more candidates than a file may have jobs, 10000"},
  };
  for (const Case& test : cases) {
    const std::string message = mistakes(file_with(test.sweep));
    EXPECT_EQ(message.substr(0, message.find('\n')), test.message) << test.sweep;
  }
}

TEST(SweepMistakes, AreToldAllAtOnce) {
  EXPECT_EQ(mistakes("{cotune: 1, model: {path: m}, jobs: [{name: sql, data: {train: t, eval: e},\n sweep: {grid: {adapter.r: [0, 8, x],\n train.lrr: [1],\n"
                     " adapter: [{r: 4, alpha: -1, rnak: 2}]},\n random: {train.lr: {uniform: [1, 0]}, train.seed: 3},\n seed: -1}}]}"),
            "j.yaml:2: jobs[0].sweep.grid.adapter.r: must be a whole number from 1 to 512, got 0\n"
            "j.yaml:2: jobs[0].sweep.grid.adapter.r: must be a whole number from 1 to 512, got x\n"
            "j.yaml:3: jobs[0].sweep.grid.train.lrr: unknown key; did you mean `lr`?\n"
            "j.yaml:4: jobs[0].sweep.grid.adapter: alpha: must be a number above 0, got -1\n"
            "j.yaml:4: jobs[0].sweep.grid.adapter: rnak: unknown key; did you mean `rank`?\n"
            "j.yaml:5: jobs[0].sweep.random.train.lr: uniform: must be a number above 0, got 0\n"
            "j.yaml:5: jobs[0].sweep.random.train.seed: must be a list to choose from, or a range: {uniform: [LOW, HIGH]} or {log_uniform: [LOW, HIGH]}\n"
            "j.yaml:5: jobs[0].sweep.random: needs `samples` beside it: how often to draw\n"
            "j.yaml:6: jobs[0].sweep.seed: must be a whole number from 0 to 18446744073709551615, got -1");
  EXPECT_EQ(mistakes(file_with("grid: {adapter.r: [4]}, samples: 3, seed: 3")),
            "j.yaml:3: jobs[0].sweep.samples: counts draws of `random`, and the sweep has none\n"
            "j.yaml:3: jobs[0].sweep.seed: seeds draws of `random`, and the sweep has none");
}

TEST(SweepMistakes, InTheFirstRungSayNothingOfTheOthers) {
  for (const char* first : {"first_steps: 0", "first_fraction: 2"}) {
    for (const char* other : {"factor: 4", "mode: synchronous"}) {
      const std::string message = mistakes(file_with(std::string("grid: {adapter.r: [4]}, halving: {") + first + ", " + other + "}"));
      EXPECT_EQ(message.find("j.yaml:3: jobs[0].sweep.halving.first_"), 0u) << message;
      EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << message;
    }
  }
}

TEST(SweepMistakes, OfOptionsThatTheJobSetsItself) {
  EXPECT_EQ(mistakes(file_with("grid: {adapter.r: [4]}", "adapter: {r: 8}, data: {train: t, eval: e}")),
            "j.yaml:2: jobs[0].adapter.r: is what the sweep tries (jobs[0].sweep.grid.adapter.r): take one of them away");
  EXPECT_EQ(mistakes(file_with("grid: {train.lr: [4]}"), {"jobs.sql.train.lr=3"}),
            "--set: jobs.sql.train.lr: is what the sweep tries (jobs[0].sweep.grid.train.learning_rate): take one of them away");
  EXPECT_EQ(mistakes(file_with("grid: {train.steps: [4]}", "train: {epochs: 2}, data: {train: t, eval: e}")),
            "j.yaml:2: jobs[0].train.epochs: `steps` and `epochs` exclude each other: give one");
}

TEST(SweepMistakes, OfAJobWithoutHeldOutExamples) {
  EXPECT_EQ(mistakes(file_with("grid: {adapter.r: [4, 8]}", "data: {train: t}")),
            "j.yaml:3: jobs[0].sweep.grid: candidates are compared by what they make of held-out examples: the job needs data.eval or data.eval_fraction above 0");
  EXPECT_TRUE(mistakes(file_with("grid: {adapter.r: [4, 8]}", "data: {train: t, eval_fraction: 0}")).find("data.eval_fraction above 0") != std::string::npos);
  EXPECT_TRUE(mistakes(file_with("grid: {data.eval_fraction: [0.1, 0]}", "data: {train: t}")).find("data.eval_fraction above 0") != std::string::npos);
}

TEST(SweepMistakes, OfNamesOnTheCommandLineAndInDefaults) {
  EXPECT_EQ(mistakes(file_with("grid: {adapter.r: [4]}"), {"jobs.sql.sweep=3"}), "--set: jobs.sql.sweep: must name one option of `sweep`: jobs.sql.sweep.KEY=value");
  EXPECT_EQ(mistakes("{cotune: 1, model: {path: m}, defaults: {sweep: {samples: 3}}, jobs: [{name: a, data: {train: t}}]}"),
            "j.yaml:1: defaults.sweep.samples: every job needs its own `samples`");
  EXPECT_EQ(mistakes("{cotune: 1, model: {path: m}, jobs: [{name: sql-r4, data: {train: t}},\n{name: sql, data: {train: t, eval: e},\nsweep: {grid: {adapter.r: [4]}}}]}"),
            "j.yaml:2: jobs[1].name: `sql-r4` is also the name of jobs[0]");
}

TEST(SweepOnTheCommandLine, ReplacesSingleFieldsAndLeavesTheOthers) {
  const std::string grid = "grid: {adapter.r: [4], train.lr: [1e-4, 3e-4]}";
  EXPECT_EQ(names(candidates(grid, {"jobs.sql.sweep.grid.train.learning_rate=[0.1, 0.2]"})), (std::vector<std::string>{"sql-r4-lr0.1", "sql-r4-lr0.2"}));
  EXPECT_EQ(names(candidates(grid, {"jobs[0].sweep.grid.adapter.lora_r=[2, 3]", "jobs.sql.sweep.grid.train.lr=null"})), (std::vector<std::string>{"sql-r2", "sql-r3"}));
  EXPECT_EQ(names(candidates(grid, {"jobs.sql.sweep.grid.train.lr=[0.1]", "jobs.sql.sweep.grid.train.seed=[5, 6]"})),
            (std::vector<std::string>{"sql-r4-lr0.1-seed5", "sql-r4-lr0.1-seed6"}));
  EXPECT_EQ(names(candidates(grid, {"jobs.sql.sweep.grid={adapter.r: [8]}", "jobs.sql.sweep.grid.train.lr=[0.1]"})), std::vector<std::string>{"sql-r8-lr0.1"});
  EXPECT_EQ(names(candidates("grid: {adapter.r: [4]}", {"jobs.sql.sweep.grid.adapter.r=~"})), std::vector<std::string>{"sql"});
  EXPECT_EQ(names(candidates("metric: eval_loss", {"jobs.sql.sweep.grid.adapter=[{r: 2, alpha: 4}]"})), std::vector<std::string>{"sql-adapter1"});
  const std::vector<JobSpec> drawn = candidates("random: {train.lr: [1e-4]}, samples: 1", {"jobs.sql.sweep.random.train.lr={uniform: [0.5, 0.6]}"});
  EXPECT_GE(drawn.at(0).train.learning_rate, 0.5);
}

TEST(SweepOnTheCommandLine, ResolvesPathsOfSingleFieldsWhereTheyWereGiven) {
  const JobSpec job = candidates("grid: {data.train: [a.jsonl]}", {"jobs.sql.sweep.grid.data.eval=[b.jsonl]"}, "priority: 0").at(0);
  EXPECT_EQ(job.data.train.at(0).path, "/folder/a.jsonl");
  EXPECT_EQ(job.data.eval, (std::filesystem::current_path() / "b.jsonl").string());
}

TEST(SweepOnTheCommandLine, ReportsMistakesInSingleFields) {
  const auto said = [](const std::string& text) { return mistakes(file_with("grid: {adapter.r: [4], adapter: [{alpha: 2}]}"), {text}); };
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.lr=3"), "--set: jobs.sql.sweep.grid.train.lr: must be a list of values to try");
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.lr=[x]"), "--set: jobs.sql.sweep.grid.train.lr: must be a number above 0, got x");
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.lr=[x, 0]"), "--set: jobs.sql.sweep.grid.train.lr: must be a number above 0, got x\n"
                                                         "--set: jobs.sql.sweep.grid.train.lr: must be a number above 0, got 0");
  EXPECT_EQ(said("jobs.sql.sweep.grid={train.lr: [0], adapter.r: 3}"), "--set: jobs.sql.sweep.grid.train.lr: must be a number above 0, got 0\n"
                                                                      "--set: jobs.sql.sweep.grid.adapter.r: must be a list of values to try");
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.lr=[1"), "--set: jobs.sql.sweep.grid.train.lr: line 1: not YAML: end of sequence flow not found");
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.lrr=[1]"), "--set: jobs.sql.sweep.grid.train.lrr: unknown key; did you mean `lr`?");
  EXPECT_EQ(said("jobs.sql.sweep.grid.adapter.alpha=[1]"), "--set: jobs[0].sweep.grid.adapter.alpha: `adapter.alpha` is tried by another field of the sweep, too");
  EXPECT_EQ(said("jobs.sql.sweep.grid.train.seed=[1]"), "");
  EXPECT_EQ(said("defaults.sweep.grid.train.lr=[1]"), "--set: defaults.sweep.grid.train.lr: every job needs its own `grid`");
  EXPECT_EQ(said("jobs.sql.sweep.samples.train.lr=[1]"),
            "--set: jobs.sql.sweep.samples.train.lr: unknown key; accepted: grid, random, samples, seed, metric, max_concurrent, halving");
}

TEST(SweepOnTheCommandLine, ReplacesFields) {
  EXPECT_EQ(names(candidates("grid: {adapter.r: [4]}", {"jobs.sql.sweep.grid={adapter.r: [2, 3]}"})), (std::vector<std::string>{"sql-r2", "sql-r3"}));
  EXPECT_EQ(names(candidates("grid: {adapter.r: [4]}", {"jobs.sql.sweep.grid=null"})), std::vector<std::string>{"sql"});
}

}  // namespace
}  // namespace cotune
