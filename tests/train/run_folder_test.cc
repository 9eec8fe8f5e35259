#include "train/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/file.h"
#include "jobs/jobs_file.h"
#include "train/checkpoint.h"
#include "train/lost_checkpoints.h"
#include "train/metrics_file.h"

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() : path(fs::temp_directory_path() / ("cotune-run-folder-" + std::to_string(::getpid()))) {
    fs::remove_all(path);
  }
  ~RunFolderTest() override { fs::remove_all(path); }
  fs::path path;
};

RunRecord record_of(const std::string& jobs, const std::string& run = "") {
  RunRecord record;
  record.configuration = parse_jobs_file("cotune: 1\nmodel: {config: llama-2-7b, weights: random}\n" + run + "jobs:\n" + jobs,
                                         "jobs.yaml", "/data", {}, Purpose::train);
  record.model_fingerprint = "m";
  record.compute_dtype = "Float";
  record.instruction_set = "avx512";
  record.memory_limit_bytes = 1 << 30;
  for (const JobSpec& job : record.configuration.jobs) record.data_hashes[job.name] = "hash of " + job.name;
  return record;
}

const std::string two_jobs =
    "  - {name: a, data: {train: a.jsonl}, adapter: {r: 4, target_modules: all-linear}, train: {lr: 1e-3}}\n"
    "  - {name: b, data: {train: b.jsonl}, adapter: {method: bottleneck}}\n";

/// A whole one of no adapter, of the state's step.
void write_newest_checkpoint(const fs::path& job_folder, const JobState& state) {
  const std::string name = "step-" + std::to_string(state.step);
  fs::create_directories(job_folder / name);
  std::string checksums;
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string bytes = state.to_json();
    write_file_atomically(job_folder / name / file, bytes);
    checksums += std::string(checksums.empty() ? "{" : ",") + "\"" + file + "\":\"" + checksum(bytes) + "\"";
  }
  write_file_atomically(job_folder / name / "checksums.json", checksums + "}");
  write_file_atomically(job_folder / "latest", name + "\n");
}

TEST_F(RunFolderTest, IsHeldByOneAtATime) {
  {
    RunFolder first(path, RunFolder::Start::fresh);
    try {
      RunFolder second(path, RunFolder::Start::fresh);
      FAIL();
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_THAT(error.what(), HasSubstr("process " + std::to_string(::getpid())));
    }
  }
  RunFolder again(path, RunFolder::Start::fresh);
}

TEST_F(RunFolderTest, ThatCannotBeMadeIsTheUsersMistakeAndSeenBefore) {
  fs::create_directories(path / "locked" / "lock");
  fs::create_directory_symlink("nowhere", path / "link");
  write_file_atomically(path / "file", "mine");
  for (const fs::path& place : {path / "locked", path / "link", path / "link" / "below", path / "file", fs::path("/proc/none")}) {
    Diagnostics mistakes;
    RunFolder::look(place, RunFolder::Start::fresh, mistakes);
    EXPECT_EQ(mistakes.size(), 1u) << place;
    EXPECT_THROW(RunFolder(place, RunFolder::Start::fresh), UserError) << place;
  }
  EXPECT_FALSE(fs::exists(path / "nowhere"));
  EXPECT_TRUE(fs::is_symlink(path / "link"));
}

TEST_F(RunFolderTest, IsAsItWasWhereTheRunHasNotBegun) {
  { RunFolder folder(path / "a" / "b", RunFolder::Start::fresh); }
  EXPECT_FALSE(fs::exists(path));
  fs::create_directories(path);
  write_file_atomically(path / "notes", "mine");
  { RunFolder folder(path, RunFolder::Start::fresh); }
  EXPECT_FALSE(fs::exists(path / "lock"));
  EXPECT_TRUE(fs::exists(path / "notes"));
  { RunFolder(path, RunFolder::Start::overwrite).begin(record_of(two_jobs)); }
  EXPECT_THROW(RunFolder(path, RunFolder::Start::fresh), UserError);
  EXPECT_TRUE(fs::exists(path / "lock"));
  EXPECT_TRUE(fs::exists(path / "run.json"));
}

TEST_F(RunFolderTest, SaysWhatAProgramThatEndsAtOnceShouldRemove) {
  RunFolder folder(path / "run", RunFolder::Start::fresh);
  EXPECT_THAT(folder.made(), ElementsAre(path / "run" / "lock", path / "run" / "jobs", path / "run", path));
  folder.begin(record_of(two_jobs));
  EXPECT_THAT(folder.made(), ElementsAre());
}

TEST_F(RunFolderTest, HoldsARunOnceItHasBegun) {
  EXPECT_THROW(RunFolder(path, RunFolder::Start::resume), UserError);
  EXPECT_FALSE(fs::exists(path));
  RunFolder(path, RunFolder::Start::fresh).begin(record_of(two_jobs));
  EXPECT_THROW(RunFolder(path, RunFolder::Start::fresh), UserError);
  fs::create_directories(path / "jobs" / "a");
  RunFolder(path, RunFolder::Start::resume).begin(record_of(two_jobs));
  EXPECT_TRUE(fs::exists(path / "jobs" / "a"));
  RunFolder(path, RunFolder::Start::overwrite).begin(record_of(two_jobs));
  EXPECT_FALSE(fs::exists(path / "jobs" / "a"));
}

TEST_F(RunFolderTest, OfJobsWithoutARunIsNotWrittenOver) {
  fs::create_directories(path / "jobs" / "a");
  write_file_atomically(path / "summary.json", "{}");
  EXPECT_THROW(RunFolder(path, RunFolder::Start::fresh), UserError);
  EXPECT_TRUE(fs::exists(path / "summary.json"));
  RunFolder(path, RunFolder::Start::overwrite).begin(record_of(two_jobs));
  EXPECT_FALSE(fs::exists(path / "summary.json"));
}

TEST_F(RunFolderTest, WhoseCheckpointsAreGoneIsRefusedBeforeAnythingIsChanged) {
  RunFolder(path, RunFolder::Start::fresh).begin(record_of(two_jobs));
  write_file_atomically(path / "summary.json", "{}");
  fs::create_directories(path / "jobs" / "b" / "step-1");
  write_file_atomically(path / "jobs" / "b" / "best", "step-2\n");
  EXPECT_THROW(RunFolder(path, RunFolder::Start::resume).begin(record_of(two_jobs)), UserError);
  EXPECT_TRUE(fs::exists(path / "summary.json"));
  EXPECT_TRUE(fs::exists(path / "jobs" / "b" / "step-1"));
}

/// Saving a best checkpoint ended after `latest` had moved.
TEST_F(RunFolderTest, NamesTheBestOfJobsThatKeepOneBeforeItRemovesCheckpoints) {
  const RunRecord record = record_of(
      "  - {name: a, data: {train: a.jsonl, eval: a.jsonl}, adapter: {r: 4}, train: {load_best: true}}\n"
      "  - {name: b, data: {train: b.jsonl, eval: b.jsonl}, adapter: {r: 4}}\n");
  RunFolder(path, RunFolder::Start::fresh).begin(record);
  JobState state;
  state.step = state.best_step = 2;
  for (const char* job : {"a", "b"}) {
    const fs::path folder = path / "jobs" / job;
    fs::create_directories(folder / "step-1");
    write_newest_checkpoint(folder, state);
    write_file_atomically(folder / "best", "step-1\n");
  }
  RunFolder(path, RunFolder::Start::resume).begin(record);
  EXPECT_EQ(best_checkpoint(path / "jobs" / "a")->filename(), "step-2");
  EXPECT_FALSE(fs::exists(path / "jobs" / "a" / "step-1"));
  EXPECT_EQ(best_checkpoint(path / "jobs" / "b")->filename(), "step-1");
}

TEST_F(RunFolderTest, ThatWasRemovedOrMovedIsNotWrittenToAnyMore) {
  const RunRecord record = record_of(two_jobs);
  RunFolder folder(path, RunFolder::Start::fresh);
  folder.begin(record);
  folder.check_is_ours();
  fs::rename(path, fs::path(path) += "-moved");
  EXPECT_THROW(folder.check_is_ours(), SystemError);
  RunFolder(path, RunFolder::Start::fresh).begin(record);  // another run's
  EXPECT_THROW(folder.update(record), SystemError);
  EXPECT_THROW(folder.write_summary("{}"), SystemError);
  EXPECT_FALSE(fs::exists(path / "summary.json"));
  fs::remove_all(fs::path(path) += "-moved");
}

TEST_F(RunFolderTest, GivesItsRecordBack) {
  const RunRecord record = record_of(two_jobs, "run: {layout: chunked, chunk_size: 32}\n");
  RunFolder(path, RunFolder::Start::fresh).begin(record);
  const auto read = RunFolder(path, RunFolder::Start::resume).record();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->configuration, record.configuration);
  EXPECT_EQ(read->to_json(), record.to_json());
  EXPECT_THAT(differences(*read, record), ElementsAre());
  write_file_atomically(path / "run.json", "{\"cotune\": 1}");
  EXPECT_THROW(RunFolder(path, RunFolder::Start::resume).record(), UserError);
}

TEST(RunRecord, KeepsWhatWasDoneToJobsWhileTheRunWentOn) {
  RunRecord record = record_of(two_jobs);
  EXPECT_EQ(record.to_json().find("job_changes"), std::string::npos);
  EXPECT_EQ(RunRecord::from_json(record.to_json(), "run.json").changes, JobChanges{});
  record.changes = {.added = {"b"}, .paused = {"a"}, .cancelled = {"b"}, .priorities = {{"a", -3}}};
  EXPECT_EQ(RunRecord::from_json(record.to_json(), "run.json").changes, record.changes);
  EXPECT_TRUE(differences(record, record_of(two_jobs)).empty()) << "it changes no result";
}

TEST(RunRecord, ListsEveryDifferenceThatChangesAResult) {
  const RunRecord before = record_of(two_jobs);
  RunRecord now = record_of(
      "  - {name: a, data: {train: a.jsonl}, adapter: {r: 8, target_modules: all-linear}, train: {lr: 2e-3}}\n"
      "  - {name: c, data: {train: c.jsonl}, adapter: {method: bottleneck}}\n",
      "run: {layout: padded}\n");
  now.model_fingerprint = "n";
  now.compute_dtype = "BFloat16";
  now.data_hashes["a"] = "other";
  EXPECT_THAT(differences(before, now),
              ElementsAre(HasSubstr("fingerprint: m, now n"), "model.dtype: float32, now bfloat16",
                          "run.layout: ragged, now padded", "jobs.a.adapter.r: 4, now 8",
                          "jobs.a.train.learning_rate: 0.001, now 0.002", HasSubstr("jobs.a.data: /data/a.jsonl"),
                          "jobs.c: is not in the run", "jobs.b: is in the run, and missing now"));
}

TEST(RunRecord, NamesOfAJobsFilesThoseThatGiveOtherExamples) {
  const char* jobs = "  - {name: a, data: {train: [{path: one.jsonl, weight: 1}, {path: two.jsonl, weight: 2}], eval: test.jsonl}, adapter: {r: 4}}\n";
  RunRecord before = record_of(jobs);
  before.file_hashes["a"] = {{"/data/one.jsonl", "1"}, {"/data/two.jsonl", "2"}, {"/data/test.jsonl", "3"}};
  RunRecord now = RunRecord::from_json(before.to_json(), "run.json");
  EXPECT_EQ(now.file_hashes, before.file_hashes);
  now.data_hashes["a"] = "other";
  EXPECT_THAT(differences(before, now),
              ElementsAre("jobs.a.data: /data/one.jsonl, /data/two.jsonl, /data/test.jsonl do not give the examples that the job began with"))
      << "their order alone";
  now.file_hashes["a"]["/data/two.jsonl"] = "4";
  EXPECT_THAT(differences(before, now), ElementsAre("jobs.a.data: /data/two.jsonl does not give the examples that the job began with"));
  now.file_hashes["a"].erase("/data/test.jsonl");
  EXPECT_THAT(differences(before, now), ElementsAre("jobs.a.data: /data/test.jsonl of what the job began with is not among its files now"));
  now.file_hashes["a"].erase("/data/two.jsonl");
  EXPECT_THAT(differences(before, now), ElementsAre("jobs.a.data: /data/test.jsonl, /data/two.jsonl of what the job began with are not among its files now"));
  before.file_hashes.clear();
  EXPECT_THAT(differences(before, now), ElementsAre(HasSubstr("/data/one.jsonl, /data/two.jsonl, /data/test.jsonl do not"))) << "a run of an earlier version";
}

TEST(RunRecord, KnowsTheAdapterThatAJobStartsFrom) {
  const RunRecord none = record_of("  - {name: a, data: {train: a.jsonl}, adapter: {r: 4}}\n");
  EXPECT_EQ(none.to_json().find("initial_adapters"), std::string::npos);
  RunRecord before = record_of("  - {name: a, data: {train: a.jsonl}, adapter: {r: 4, init_from: old}}\n");
  before.initial_adapters["a"] = "1";
  RunRecord now = RunRecord::from_json(before.to_json(), "run.json");
  EXPECT_EQ(now.initial_adapters, before.initial_adapters);
  EXPECT_THAT(differences(before, now), ElementsAre());
  now.configuration.jobs[0].adapter.init_from = "/moved";
  EXPECT_THAT(differences(before, now), ElementsAre()) << "it lies elsewhere";
  now.initial_adapters["a"] = "2";
  const std::string other = "jobs.a.adapter.init_from: /moved does not hold the adapter that the job was to start from, and the job has no checkpoint yet";
  EXPECT_THAT(differences(before, now), ElementsAre(other));
  before.initial_adapters.clear();
  EXPECT_THAT(differences(before, now), ElementsAre(other)) << "a run of an earlier version";
  now.configuration.jobs[0].adapter.init_from = "/data/old";
  EXPECT_THAT(differences(before, now), ElementsAre()) << "a run of an earlier version";
  before.initial_adapters["a"] = "1";
  now.initial_adapters.clear();
  EXPECT_THAT(differences(before, now), ElementsAre()) << "the job has a checkpoint";
  EXPECT_THAT(differences(before, none), ElementsAre("jobs.a.adapter.init_from: /data/old, now none"));
  EXPECT_THAT(differences(none, before), ElementsAre("jobs.a.adapter.init_from: none, now /data/old"));
}

TEST(RunRecord, LetsPlacesAndThePackingChange) {
  RunRecord before = record_of(two_jobs), now = record_of(two_jobs, "run: {token_budget: 512, sharing: separate, threads: 1}\n");
  for (JobSpec& job : now.configuration.jobs) {
    job.data.train = {{"/elsewhere/" + job.name}};
    job.priority = 7;
    job.train.save_steps = 3;
  }
  now.instruction_set = "none";
  EXPECT_THAT(differences(before, now), ElementsAre());
}

TEST_F(RunFolderTest, MetricsGoOnFromTheCheckpoints) {
  fs::create_directories(path);
  const fs::path file = path / "metrics.jsonl";
  const auto line = [](const std::string& event, const std::string& job, int step) {
    return "{\"event\":\"" + event + "\",\"job\":\"" + job + "\",\"step\":" + std::to_string(step) + "}\n";
  };
  const auto usage = [](int steps) { return "{\"event\":\"usage\",\"steps\":" + std::to_string(steps) + "}\n"; };
  const std::string kept = line("start", "a", 0) + line("sample", "a", 0) + usage(3) + line("evaluation", "a", 0) + line("step", "a", 1) + line("step", "a", 2) +
                           "{\"event\":\"notice\",\"text\":\"memory\"}\n" + line("evaluation", "a", 2) + line("step", "b", 1) +
                           line("checkpoint", "b", 1);
  const std::string dropped = usage(4) + line("sample", "a", 2) + line("sample", "d", 0) + line("step", "a", 3) + line("evaluation", "b", 1) + line("checkpoint", "a", 3) +
                              line("end", "a", 2) + line("step", "c", 1) + "{\"event\":\"step\",\"jo";
  write_file_atomically(file, kept + dropped);
  EXPECT_EQ(trim_metrics(file, {{"a", {2, 2}}, {"b", {1, -1}}, {"d", {0, -1}}}), "");
  EXPECT_EQ(read_file(file), kept + line("checkpoint", "a", 2));
  EXPECT_EQ(trim_metrics(file, {{"a", {2, 2}}, {"b", {1, -1}}}), "");
  EXPECT_EQ(read_file(file), kept + line("checkpoint", "a", 2));
  write_file_atomically(file, kept + "\xff\n" + line("checkpoint", "a", 2));
  EXPECT_THAT(trim_metrics(file, {{"a", {2, 2}}, {"b", {1, -1}}}),
              ::testing::EndsWith("metrics.jsonl:11: is not as `cotune train` writes it; the line was dropped"));
  EXPECT_EQ(read_file(file), kept + line("checkpoint", "a", 2));
  write_file_atomically(file, "{\n" + kept + "[]\n{\"event\":\"step\"}\n" + line("checkpoint", "a", 2));
  EXPECT_THAT(trim_metrics(file, {{"a", {2, 2}}, {"b", {1, -1}}}), HasSubstr("metrics.jsonl:1: is not as `cotune train` writes it; it and 2 other lines"));
  EXPECT_EQ(trim_metrics(path / "none.jsonl", {}), "");
  EXPECT_FALSE(fs::exists(path / "none.jsonl"));
}

TEST_F(RunFolderTest, MetricsTellHowFarAJobHasCome) {
  fs::create_directories(path);
  const fs::path file = path / "metrics.jsonl";
  EXPECT_TRUE(noted_progress(file).empty());
  write_file_atomically(file,
                        R"({"event":"checkpoint","job":"a","step":3})" "\n" R"({"event":"step","job":"a","step":5})" "\n{\n"
                        R"({"event":"checkpoint","job":"a","step":4})" "\n" R"({"event":"start","job":"b","step":0})" "\n"
                        R"({"event":"usage","steps":9})" "\n" R"({"event":"step","job":"b","step":7)");
  const auto noted = noted_progress(file);
  ASSERT_EQ(noted.size(), 2u);
  EXPECT_EQ(noted.at("a").newest_step, 5);
  EXPECT_EQ(noted.at("a").newest_checkpoint, 4);
  EXPECT_EQ(noted.at("b").newest_step, 0);
  EXPECT_EQ(noted.at("b").newest_checkpoint, std::nullopt);
}

TEST_F(RunFolderTest, ThatWasKilledWhileSavingLosesWhatWasNotSavedAndNothingElse) {
  const RunRecord record = record_of(two_jobs);
  RunFolder(path, RunFolder::Start::fresh).begin(record);
  JobState state;
  state.step = 2;
  write_newest_checkpoint(path / "jobs" / "a", state);
  write_file_atomically(path / "metrics.jsonl", R"({"event":"step","job":"a","step":4})" "\n");
  for (const char* name : {"step-4", "step-5", "step-1.keep"}) fs::create_directories(path / "jobs" / "a" / name);
  RunFolder(path, RunFolder::Start::resume).begin(record);
  EXPECT_FALSE(fs::exists(path / "jobs" / "a" / "step-4"));
  EXPECT_TRUE(fs::exists(path / "jobs" / "a" / "step-5"));
  EXPECT_TRUE(fs::exists(path / "jobs" / "a" / "step-1.keep"));
}

/// What keeps a job of the run from beginning again.
std::string lost_checkpoints(const fs::path& run, const std::vector<std::string>& jobs = {"a", "b"}) {
  Diagnostics mistakes;
  check_lost_checkpoints(run, jobs, mistakes);
  std::string text;
  for (const Diagnostic& mistake : mistakes.items()) text += mistake.to_string() + "\n";
  return text;
}

TEST_F(RunFolderTest, WithoutTheNamesOfCheckpointsTellsOfThoseThatWereSaved) {
  JobState state;
  state.step = 2;
  const fs::path a = path / "jobs" / "a", metrics = path / "metrics.jsonl";
  write_newest_checkpoint(a, state);
  EXPECT_EQ(lost_checkpoints(path), "");
  fs::remove(a / "latest");
  EXPECT_EQ(lost_checkpoints(path), "") << "a kill came between the first checkpoint and its name";
  write_file_atomically(metrics, R"({"event":"checkpoint","job":"a","step":2})" "\n");
  EXPECT_EQ(lost_checkpoints(path), (a / "latest").string() + ": is missing, though job `a` has saved checkpoints (metrics.jsonl tells of one of step 2); " +
                                        (a / "step-2").string() + " is whole: `echo step-2 > " + (a / "latest").string() + "` goes on from it\n");
  EXPECT_EQ(lost_checkpoints(path, {"b"}), "");
  fs::remove_all(path / "jobs");
  EXPECT_THAT(lost_checkpoints(path), HasSubstr("no other checkpoint of the job is whole: `mkdir -p " + a.string() + " && echo none > "));
  fs::create_directories(a);
  write_file_atomically(a / "latest", "none\n");
  EXPECT_EQ(lost_checkpoints(path), "");
  fs::remove(metrics);
  fs::remove(a / "latest");
  state.step = 1;
  write_newest_checkpoint(a, state);
  state.step = 2;
  write_newest_checkpoint(a, state);
  fs::remove(a / "latest");
  EXPECT_THAT(lost_checkpoints(path), HasSubstr("step-1 are whole: ")) << "two are no kill's";
  fs::remove_all(a / "step-1");
  EXPECT_EQ(lost_checkpoints(path), "");
  write_file_atomically(a / "previous", "step-1\n");
  EXPECT_THAT(lost_checkpoints(path), HasSubstr("step-2 is whole: "));
}

}  // namespace
}  // namespace cotune::testing
