#include "jobs/jobs_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "jobs/emulated_file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

const std::string head = "cotune: 1\nmodel: {path: /m}\n";

JobsFile parse(const std::string& text, std::vector<std::string> overrides = {}, Purpose purpose = Purpose::train) {
  return parse_jobs_file(text, "jobs.yaml", "/folder", overrides, purpose);
}

/// The one job whose sections are `body` (flow maps), with data given.
JobSpec job(const std::string& body, const std::string& defaults = "{}", std::vector<std::string> overrides = {}) {
  return parse(head + "defaults: " + defaults + "\njobs:\n  - {name: a, data: {train: t.jsonl, eval: e.jsonl}, " + body +
                   "}\n",
               overrides)
      .jobs.at(0);
}

TEST(JobsFile, OfOneJobWithPathsAloneHasAllDefaults) {
  const JobsFile file = parse(head + "jobs:\n  - name: a\n    data: {train: t.jsonl}\n");
  JobSpec expected;
  expected.name = "a";
  expected.data.train = {{"/folder/t.jsonl"}};
  expected.train.epochs = 1;
  EXPECT_EQ(file.jobs, std::vector{expected});
  EXPECT_EQ(file.jobs[0].line, 4);
  EXPECT_EQ(file.jobs[0].file, "jobs.yaml");
  EXPECT_EQ(file.model.path, "/m");
  EXPECT_EQ(file.run, RunSpec{});
}

TEST(JobsFile, ResolvesPathsAgainstItsFolderAndThoseOfSetAgainstTheWorkingFolder) {
  const JobsFile file = parse(
      "cotune: 1\nmodel: {path: ../m}\nrun: {output_dir: out}\n"
      "jobs: [{name: a, data: {train: d/t.jsonl, eval: /abs/e.jsonl, chat_template: c.jinja}, adapter: {init_from: x}}]",
      {"jobs[0].data.eval=e.jsonl"});
  EXPECT_EQ(file.model.path, "/m");
  EXPECT_EQ(file.jobs[0].data.train, (std::vector<TrainFile>{{"/folder/d/t.jsonl"}}));
  EXPECT_EQ(file.jobs[0].data.chat_template, "/folder/c.jinja");
  EXPECT_EQ(file.jobs[0].adapter.init_from, "/folder/x");
  EXPECT_EQ(file.jobs[0].data.eval, (std::filesystem::current_path() / "e.jsonl").string());
  EXPECT_EQ(file.run.output, "out");
}

TEST(JobsFile, TakesAPresetNameAsItIsAndAConfigFileAsAPath) {
  const std::string rest = "\njobs: [{name: a, data: {train: t}}]";
  EXPECT_EQ(parse("cotune: 1\nmodel: {config: llama-7b, weights: random}" + rest).model.config, "llama-7b");
  EXPECT_EQ(parse("cotune: 1\nmodel: {config: c.json, weights: random, seed: 3}" + rest).model.config, "/folder/c.json");
}

TEST(JobsFile, NeedsNeitherWeightsNorDataOnAnEmulatedDevice) {
  const std::string text = "cotune: 1\nmodel: {config: llama-2-7b, weights: none}\njobs: [{name: a, data: {lengths: [30, 20, 30]}}]\n";
  const JobsFile file = parse(text + "run: {device: 'emulated:a100.json'}");
  EXPECT_EQ(file.run.device, "emulated:/folder/a100.json");
  EXPECT_EQ(emulated_file(file.run.device), "/folder/a100.json");
  EXPECT_EQ(parse(text, {"run.device=emulated:x/../a.yaml"}).run.device,
            "emulated:" + (std::filesystem::current_path() / "a.yaml").string());
  EXPECT_EQ(parse(to_yaml(file)), file);
  for (const char* other : {"cpu", "cuda", "auto", "emulated", ""}) EXPECT_EQ(emulated_file(other), "");
  EXPECT_THROW(parse(text + "run: {device: cpu}"), UserError);
}

TEST(JobsFile, TakesBackWithNullWhatWeakerLevelsSay) {
  EXPECT_EQ(job("adapter: {r: }", "{adapter: {r: 4}}"), job("adapter: {}"));
  EXPECT_EQ(job("adapter: {r: ~, dropout: null}, train: {lr: 0.1}", "{train: {lr: null}}"), job("train: {lr: 0.1}"));
  EXPECT_EQ(job("train: {eval_steps: 5}", "{}", {"jobs.a.data.eval=null", "jobs.a.train.eval_steps=~"}).data.eval, "");
  EXPECT_EQ(job("adapter: {r: 8}", "{}", {"jobs.a.adapter.r=null"}), job("adapter: {}"));
  EXPECT_EQ(job("adapter: {method: bottleneck, r: null}"), job("adapter: {method: bottleneck}"));
  EXPECT_EQ(job("adapter: {}", "{adapter: {dropout: 0.1}, train: {eval_steps: 10, early_stopping_patience: 3}}",
                {"defaults.adapter.dropout=null", "defaults.train.eval_steps=null", "defaults.train.early_stopping_patience=~"}),
            job("adapter: {}"));
  const std::string one_of_two = "data: {train: t, eval: null, eval_fraction: 0.1}";
  EXPECT_EQ(parse(head + "defaults: {data: {eval: e}}\njobs: [{name: a, " + one_of_two + "}]").jobs[0].data.eval, "");
}

TEST(JobsFile, MergesDefaultsOptionByOptionUnderEveryJob) {
  const JobSpec merged = job("adapter: {r: 4}, train: {lr: 0.1}",
                             "{adapter: {r: 16, alpha: 32}, train: {learning_rate: 1, seed: 7}, priority: 3}");
  EXPECT_EQ(merged.adapter.r, 4);
  EXPECT_EQ(merged.adapter.alpha, 32);
  EXPECT_EQ(merged.train.learning_rate, 0.1);
  EXPECT_EQ(merged.train.seed, 7u);
  EXPECT_EQ(merged.priority, 3);
}

TEST(JobsFile, LeavesDefaultsOfAnotherMethodOut) {
  const JobsFile file = parse(head +
                              "defaults: {data: {train: t}, adapter: {r: 16}, train: {eval_steps: 5}}\n"
                              "jobs:\n  - {name: a, data: {eval: e}}\n  - {name: b, adapter: {method: bottleneck}}\n");
  EXPECT_EQ(file.jobs[0].adapter.r, 16);
  EXPECT_EQ(file.jobs[0].train.eval_steps, 5);
  EXPECT_EQ(file.jobs[1].adapter.r, AdapterSpec{}.r);
  EXPECT_EQ(file.jobs[1].train.eval_steps, 0);
}

TEST(JobsFile, LetsAJobsOwnStepsReplaceTheDefaultsEpochs) {
  const JobSpec steps = job("train: {steps: 300}", "{train: {epochs: 2}}");
  EXPECT_EQ(steps.train.steps, 300);
  EXPECT_EQ(steps.train.epochs, 0);
  const JobSpec epochs = job("train: {epochs: 0.5}", "{train: {max_steps: 2}}");
  EXPECT_EQ(epochs.train.steps, 0);
  EXPECT_EQ(epochs.train.epochs, 0.5);
}

TEST(JobsFile, TakesWhatPeftAndTransformersWriteForNothing) {
  const JobSpec none = job("train: {max_steps: -1, num_train_epochs: 3, optim: adamw_torch_fused}, "
                           "adapter: {bias: none, task_type: CAUSAL_LM, rank_pattern: {}, alpha_pattern: {}, layers_to_transform: []}");
  EXPECT_EQ(none.train.steps, 0);
  EXPECT_EQ(none.train.epochs, 3);
  EXPECT_EQ(none.train.optimizer, OptimizerKind::adamw);
  EXPECT_EQ(none.adapter, AdapterSpec{});
  EXPECT_EQ(job("train: {max_steps: 7}").train.steps, 7);
  EXPECT_EQ(job("train: {max_steps: -1}", "{train: {max_steps: 2}}").train.steps, 0);
}

TEST(JobsFile, AJobsOwnMaxStepsOfNothingTakesBackTheDefaultsSteps) {
  for (const char* nothing : {"-1", "0"}) {
    const std::string max_steps = std::string("max_steps: ") + nothing;
    EXPECT_EQ(job("train: {" + max_steps + "}", "{train: {steps: 5}}"), job("train: {}"));
    EXPECT_EQ(job("train: {" + max_steps + ", epochs: 3}", "{train: {steps: 5}}").train.epochs, 3);
    EXPECT_EQ(job("train: {}", "{train: {steps: 5}}", {std::string("jobs.a.train.max_steps=") + nothing}).train.steps, 0);
    EXPECT_EQ(job("train: {" + max_steps + ", steps: 7}", "{train: {steps: 5}}").train.steps, 7) << "of the same level";
    EXPECT_EQ(job("train: {steps: 5}", "{train: {" + max_steps + "}}").train.steps, 5) << "of a weaker level";
  }
  EXPECT_EQ(job("train: {micro_batch_size: 4}", "{train: {gradient_accumulation_steps: 3}}").train.batch_size, 12);
}

TEST(JobsFile, AJobsOwnTargetsReplaceThoseOfTheDefaultsWhicheverWayTheyAreGiven) {
  EXPECT_TRUE(job("adapter: {lora_target_linear: false}", "{adapter: {lora_target_linear: true}}").adapter.target_modules.empty());
  EXPECT_EQ(job("adapter: {target_modules: [q_proj]}", "{adapter: {lora_target_linear: true}}").adapter.target_modules, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(job("adapter: {lora_target_linear: true}", "{adapter: {target_modules: [q_proj]}}").adapter.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(job("adapter: {lora_target_linear: false}", "{adapter: {target_modules: [q_proj]}}").adapter.target_modules, std::vector<std::string>{"q_proj"});
}

TEST(JobsFile, KeepsTheHigherOfWarmUpStepsAndRatio) {
  EXPECT_EQ(job("train: {warmup_steps: 0}", "{train: {warmup_ratio: 0.1}}").train.warmup_ratio, 0);
  EXPECT_EQ(job("train: {warmup_steps: 0, warmup_ratio: 0.1}").train.warmup_ratio, 0.1);
}

TEST(JobsFile, MultipliesMicroBatchAndAccumulation) {
  EXPECT_EQ(job("train: {micro_batch_size: 4, gradient_accumulation_steps: 3}").train.batch_size, 12);
  EXPECT_EQ(job("train: {per_device_train_batch_size: 4}", "{train: {gradient_accumulation_steps: 2}}").train.batch_size,
            8);
  EXPECT_EQ(job("train: {batch_size: 5}", "{train: {micro_batch_size: 4, gradient_accumulation_steps: 2}}")
                .train.batch_size,
            5);
}

TEST(JobsFile, KnowsTheNamesOfPeftTransformersAndAxolotl) {
  const JobSpec read = job(
      "adapter: {peft_type: LORA, lora_r: 4, lora_alpha: 16, lora_dropout: 0.1, lora_target_modules: [q_proj], "
      "use_rslora: true, loraplus_lr_ratio: 16, layers_to_transform: [0, 2], exclude_modules: [layers.0.mlp.up_proj]}, "
      "train: {num_train_epochs: 3, learning_rate: 1e-3, lr_scheduler_type: cosine, warmup_steps: 5, weight_decay: 0.1, "
      "adam_beta1: 0.8, adam_beta2: 0.9, adam_epsilon: 1e-6, max_grad_norm: 1, seed: 42, eval_steps: 10, save_steps: 20, "
      "early_stopping_patience: 2, load_best_model_at_end: true, optim: adamw_torch}");
  EXPECT_EQ(read.adapter.r, 4);
  EXPECT_EQ(read.adapter.alpha, 16);
  EXPECT_EQ(read.adapter.dropout, 0.1);
  EXPECT_EQ(read.adapter.target_modules, std::vector<std::string>{"q_proj"});
  EXPECT_TRUE(read.adapter.use_rslora);
  EXPECT_EQ(read.adapter.lora_plus_ratio, 16);
  EXPECT_EQ(read.adapter.layers_to_transform, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(job("adapter: {layers_to_transform: 3}").adapter.layers_to_transform, std::vector<int64_t>{3}) << "as PEFT takes one";
  EXPECT_EQ(read.train.epochs, 3);
  EXPECT_EQ(read.train.schedule, ScheduleKind::cosine);
  EXPECT_EQ(read.train.beta1, 0.8);
  EXPECT_EQ(read.train.beta2, 0.9);
  EXPECT_EQ(read.train.epsilon, 1e-6);
  EXPECT_EQ(read.train.early_stopping_patience, 2);
  EXPECT_TRUE(read.train.load_best);
  EXPECT_EQ(job("adapter: {lora_target_linear: true}").adapter.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_TRUE(job("adapter: {lora_target_linear: false}").adapter.target_modules.empty());
  EXPECT_EQ(parse("cotune: 1\nbase_model: /x\njobs: [{name: a, data: {train: t, sequence_len: 99}}]").model.path, "/x");
}

TEST(JobsFile, ReadsNumbersInEveryUsualSpelling) {
  for (const char* text : {"2e-4", "2E-4", "0.0002", "2.0e-04", ".0002", "+2e-4"}) {
    EXPECT_EQ(job(std::string("train: {lr: ") + text + "}").train.learning_rate, 2e-4) << text;
  }
  EXPECT_EQ(job("train: {seed: 18446744073709551615}").train.seed, UINT64_MAX);
  EXPECT_EQ(job("train: {max_grad_norm: 1}").train.max_grad_norm, 1.0);
}

TEST(JobsFile, TakesAnchorsAndJson) {
  const JobsFile file = parse(head + "defaults: {data: &d {train: t}}\njobs: [{name: a}, {name: b, data: *d}]\n");
  EXPECT_EQ(file.jobs[0].data, file.jobs[1].data);
  EXPECT_EQ(parse(R"({"cotune": 1, "model": {"path": "/m"}, "jobs": [{"name": "a", "data": {"train": "/t"}}]})").jobs[0].name,
            "a");
}

TEST(JobsFile, KeepsTheOrderOfPatterns) {
  const ModulePattern<int64_t> expected = {{"v_proj", 2}, {"layers\\.0\\..*", 4}, {"q_proj", 3}};
  EXPECT_EQ(job("adapter: {rank_pattern: {v_proj: 2, 'layers\\.0\\..*': 4, q_proj: 3}}").adapter.rank_pattern, expected);
}

TEST(JobsFile, ForPlanningMayHaveNeitherWeightsNorData) {
  const JobsFile file = parse("cotune: 1\nmodel: {config: llama-7b, weights: none}\n"
                              "jobs: [{name: a, data: {lengths: [12, 100]}, deadline: 2026-01-31T18:00Z}]",
                              {}, Purpose::plan);
  EXPECT_EQ(file.jobs[0].data.lengths.counts, (std::vector<std::pair<int64_t, int64_t>>{{12, 1}, {100, 1}}));
  EXPECT_EQ(file.jobs[0].deadline, "2026-01-31T18:00Z");
}

TEST(JobsFile, TakesLengthsAsAListAHistogramANameOrAFile) {
  const auto lengths = [](const std::string& text) {
    const std::string start = "cotune: 1\nmodel: {config: llama-7b, weights: none}\njobs: [{name: a, data: {lengths: ";
    return parse(start + text + "}}]", {}, Purpose::plan).jobs[0].data.lengths;
  };
  using Counts = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(lengths("[9, 4, 9]"), (LengthsSpec{.counts = Counts{{4, 1}, {9, 2}}}));
  EXPECT_EQ(lengths("{512: 3, 64: 100}"), (LengthsSpec{.counts = Counts{{64, 100}, {512, 3}}}));
  EXPECT_EQ(lengths("xsum-gamma"), (LengthsSpec{.histogram = "xsum-gamma"}));
  EXPECT_THAT(lengths("lengths/own.json").histogram, testing::EndsWith("/lengths/own.json"));
  EXPECT_EQ(lengths("/x/y").histogram, "/x/y");
}

TEST(JobsFileOverrides, ReplaceWhatTheFileSays) {
  const std::string text = head +
                           "defaults: {data: {train: t}, train: {epochs: 4}}\n"
                           "jobs: [{name: a, train: {learning_rate: 1}}, {name: a.b, adapter: {r: 2}}]\n";
  const JobsFile file = parse(text, {"model.path=/other", "run.memory=4GiB", "defaults.train.steps=10",
                                     "jobs[0].train.lr=1e-3", "jobs.a.b.adapter.lora_r=4", "jobs.a.priority=1",
                                     "jobs[1].adapter.target_modules=[q_proj, v_proj]", "jobs.a.adapter.r=3",
                                     "jobs.a.adapter.r=5", "jobs.a.adapter.rank_pattern={q_proj: 9}",
                                     "jobs.a.adapter.target_modules=.*[qk]_proj", "jobs[1].tenant=me"});
  EXPECT_EQ(file.model.path, "/other");
  EXPECT_EQ(file.run.memory, "4GiB");
  EXPECT_EQ(file.jobs[0].train.steps, 10);
  EXPECT_EQ(file.jobs[0].train.epochs, 0);
  EXPECT_EQ(file.jobs[0].train.learning_rate, 1e-3);
  EXPECT_EQ(file.jobs[0].priority, 1);
  EXPECT_EQ(file.jobs[0].adapter.r, 5);
  EXPECT_EQ(file.jobs[0].adapter.rank_pattern, (ModulePattern<int64_t>{{"q_proj", 9}}));
  EXPECT_EQ(file.jobs[0].adapter.target_modules, std::vector<std::string>{".*[qk]_proj"});
  EXPECT_EQ(file.jobs[1].adapter.r, 4);
  EXPECT_EQ(file.jobs[1].adapter.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(file.jobs[1].tenant, "me");
}

TEST(JobsFileOverrides, LeaveAJobsOwnStepsWhenTheyChangeTheDefaults) {
  EXPECT_EQ(job("train: {steps: 3}", "{}", {"defaults.train.epochs=5"}).train.steps, 3);
}

TEST(JobsFile, OnDiskIsReadWithItsInputsLookedFor) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "jobs_file_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "t.jsonl") << "{}";
  std::ofstream(folder / "jobs.yaml") << "cotune: 1\nmodel: {path: t.jsonl}\njobs:\n  - name: a\n    data:\n"
                                         "      train: t.jsonl\n      eval: missing.jsonl\n";
  const std::string file = (folder / "jobs.yaml").string();
  try {
    read_jobs_file(file, {}, Purpose::train);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), file + ":7: jobs[0].data.eval: no such file or folder: " +
                                             (folder / "missing.jsonl").string());
  }
  EXPECT_EQ(read_jobs_file(file, {"jobs.a.data.eval=" + (folder / "t.jsonl").string()}, Purpose::train).jobs.size(), 1u);
  EXPECT_THROW(read_jobs_file(folder / "none.yaml", {}, Purpose::train), UserError);
}

TEST(JobsFile, NamesDataThatAreNoFileAtTheirPlace) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "jobs_file_folder_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / "parts");
  std::ofstream(folder / "t.jsonl") << "{}";
  std::ofstream(folder / "jobs.yaml") << "cotune: 1\nmodel: {path: t.jsonl}\njobs:\n  - name: a\n    data:\n"
                                         "      train: [t.jsonl, parts]\n      eval: /dev/null\n";
  const std::string accepted = "accepted: a file of JSONL, plain or compressed by gzip or zstd, or of Parquet";
  Diagnostics mistakes;
  const JobsFileReading reading = read_jobs_file(folder / "jobs.yaml", {}, Purpose::train, mistakes);
  const std::string file = (folder / "jobs.yaml").string();
  ASSERT_EQ(mistakes.size(), 2u);
  EXPECT_EQ(mistakes.items()[0].to_string(),
            file + ":6: jobs[0].data.train: is a folder: " + (folder / "parts").string() + "; " + accepted + ", or a list of such files");
  EXPECT_EQ(mistakes.items()[1].to_string(), file + ":7: jobs[0].data.eval: is not a regular file: /dev/null; " + accepted);
  EXPECT_TRUE(reading.jobs_file.jobs.at(0).data.train.empty()) << "nothing is read";
  std::filesystem::create_symlink("t.jsonl", folder / "link.jsonl");
  const std::string link = (folder / "link.jsonl").string();
  EXPECT_EQ(read_jobs_file(folder / "jobs.yaml", {"jobs.a.data.train=" + link, "jobs.a.data.eval=" + link}, Purpose::train).jobs.size(), 1u);
  std::filesystem::remove_all(folder);
}

TEST(JobsFile, OfAJobWithACheckpointNeedsNotWhatItStartedFrom) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "jobs_file_checkpoint_test";
  std::filesystem::create_directories(folder / "there");
  std::ofstream(folder / "t.jsonl") << "{}";
  std::ofstream(folder / "jobs.yaml") << "cotune: 1\nmodel: {path: t.jsonl}\nrun: {output_dir: out}\ndefaults: {data: {train: t.jsonl}}\njobs:\n"
                                         "  - {name: a, adapter: {init_from: gone}}\n  - {name: b, adapter: {init_from: gone}}\n"
                                         "  - {name: c, adapter: {init_from: there}}\n  - {name: d}\n";
  std::vector<std::string> asked;
  Diagnostics mistakes;
  const JobsFileReading reading =
      read_jobs_file(folder / "jobs.yaml", {}, Purpose::train, mistakes, [&](const std::string& output, const std::string& job) {
        asked.push_back(output + "/" + job);
        return job == "a";
      });
  EXPECT_EQ(asked, (std::vector<std::string>{"out/a", "out/b", "out/c", "out/d"}));
  ASSERT_EQ(mistakes.size(), 1u);
  EXPECT_EQ(mistakes.items()[0].field, "jobs[1].adapter.init_from");
  EXPECT_EQ(reading.jobs_file.jobs[0].adapter.init_from, (folder / "gone").string());
  std::vector<bool> needed;
  for (const auto& job : reading.jobs) needed.push_back(job.init_from);
  EXPECT_EQ(needed, (std::vector<bool>{false, false, true, false}));
}

TEST(JobsFile, ThatJoinsARunMayLeaveTheModelOutAndComesAsText) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "joining_jobs_test", elsewhere = folder / "elsewhere";
  std::filesystem::create_directories(elsewhere);
  std::ofstream(folder / "t.jsonl") << "{}";
  std::ofstream(elsewhere / "e.jsonl") << "{}";
  const JobsText text{"cotune: 1\njobs:\n  - {name: a, data: {train: t.jsonl}}\n", "more.yaml", folder, elsewhere};
  Diagnostics mistakes;
  const JobsFileReading joining = read_jobs_text(text, {"jobs.a.data.eval=e.jsonl"}, Purpose::join, mistakes);
  EXPECT_TRUE(mistakes.empty());
  EXPECT_EQ(joining.jobs_file.jobs.at(0).data.train, (std::vector<TrainFile>{{(folder / "t.jsonl").string()}}));
  EXPECT_EQ(joining.jobs_file.jobs.at(0).data.eval, (elsewhere / "e.jsonl").string());
  EXPECT_TRUE(joining.model_places.empty());
  read_jobs_text(text, {"jobs.a.data.eval=t.jsonl", "model.weights=none"}, Purpose::join, mistakes);
  ASSERT_EQ(mistakes.size(), 1u) << "what is said of a model is compared by the run";
  EXPECT_EQ(mistakes.items()[0].to_string(), "--set: jobs.a.data.eval: no such file or folder: " + (elsewhere / "t.jsonl").string());
  JobsText shape{"cotune: 1\njobs:\n  - {name: a, data: {lengths: [20, 30]}}\n", "shape.yaml", folder, elsewhere};
  Diagnostics of_shape;
  read_jobs_text(shape, {}, Purpose::join, of_shape);
  EXPECT_EQ(of_shape.size(), 1u) << "a run that computes needs data";
  shape.joined_device = "emulated:" + (folder / "t.jsonl").string();
  Diagnostics of_emulated;
  EXPECT_FALSE(read_jobs_text(shape, {}, Purpose::join, of_emulated).jobs_file.jobs.at(0).data.lengths.empty());
  EXPECT_TRUE(of_emulated.empty());
  Diagnostics of_start;
  read_jobs_text(text, {}, Purpose::train, of_start);
  ASSERT_EQ(of_start.size(), 1u);
  EXPECT_EQ(of_start.items()[0].field, "model");
}

TEST(ExampleJobsFiles, AreValid) {
  for (const char* name : {"minimal.yaml", "four-methods.yaml", "demo.yaml"}) {
    const std::filesystem::path path = source_folder() / "examples" / name;
    std::ifstream stream(path);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_NO_THROW(parse(text)) << name;
  }
}

}  // namespace
}  // namespace cotune
