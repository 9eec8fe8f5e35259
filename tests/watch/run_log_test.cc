#include "watch/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace cotune {
namespace {

using ::testing::ElementsAre;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const configuration =
    "cotune: 1\nmodel: {config: smollm2-135m, weights: random}\njobs:\n"
    "  - {name: sql, data: {train: a.jsonl}, adapter: {method: lora}, train: {steps: 4}}\n"
    "  - {name: chat, data: {train: b.jsonl}, adapter: {method: lora}}\n";

class RunFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("cotune-run-log-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    write("run.json", nlohmann::json{{"configuration", configuration}, {"compute_dtype", "float"}, {"memory_limit_bytes", 1000}}.dump());
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  void write(const char* name, const std::string& text) { std::ofstream(folder / name) << text; }
  std::string mistake() {
    try {
      read_run_log(folder);
    } catch (const UserError& error) {
      return error.what();
    }
    return "read";
  }
  std::filesystem::path folder;
};

const char* const metrics =
    R"({"event":"start","job":"sql","step":0,"steps":4,"examples":9,"held_out":1})" "\n"
    R"({"event":"evaluation","job":"sql","step":0,"loss":3.0,"accuracy":0.0,"best":false,"seconds":0.5})" "\n"
    R"({"event":"step","job":"sql","step":1,"loss":2.0,"learning_rate":0.1,"gradient_norm":1.0,"real_tokens":10,"seconds":1.0})" "\n"
    R"({"event":"usage","steps":1,"resident_bytes":700,"tensor_bytes":500,"tokens_per_second":10.0,"seconds":1.0})" "\n"
    R"({"event":"sample","job":"sql","step":0,"prompt":"a","answer":null})" "\n"
    R"({"event":"plan","cause":"start"})" "\n"
    R"({"event":"step","job":"gone","step":1,"loss":2.0,"seconds":1.0})" "\n"
    R"({"event":"notice","text":"memory ran short"})" "\n"
    R"({"event":"start","job":"sql","step":1,"steps":4,"examples":9,"held_out":1})" "\n"  // resumed: seconds begin again
    R"({"event":"step","job":"sql","step":2,"loss":1.5,"learning_rate":0.1,"gradient_norm":null,"real_tokens":10,"seconds":0.25})" "\n"
    R"({"event":"step","job":"sql","step":3,"lo)";

TEST_F(RunFiles, SayWhenARunWasResumedHoweverLateItsNextEventComes) {
  write("metrics.jsonl",
        R"({"event":"step","job":"sql","step":1,"loss":2.0,"learning_rate":0.1,"gradient_norm":1.0,"seconds":4.0})" "\n"
        R"({"event":"resume"})" "\n"
        R"({"event":"resume"})" "\n"
        R"({"event":"step","job":"sql","step":2,"loss":1.5,"learning_rate":0.1,"gradient_norm":1.0,"seconds":5.0})" "\n");
  const RunLog log = read_run_log(folder);
  ASSERT_EQ(log.jobs.at(0).made.size(), 2u);
  EXPECT_EQ(log.jobs[0].made[1].seconds, 9.0);
  EXPECT_EQ(log.seconds, 9.0);
}

TEST_F(RunFiles, OfARunThatWasKilledSayHowFarItWas) {
  write("metrics.jsonl", metrics);
  const RunLog log = read_run_log(folder);
  ASSERT_EQ(log.jobs.size(), 2u);
  const LoggedJob& sql = log.jobs[0];
  ASSERT_EQ(sql.made.size(), 2u);
  EXPECT_EQ(sql.made[1].loss, 1.5);
  EXPECT_TRUE(std::isnan(sql.made[1].gradient_norm));
  EXPECT_EQ(sql.made[1].seconds, 1.25);
  EXPECT_EQ(log.usage.size(), 1u);
  EXPECT_FALSE(sql.samples.at(0).answer);
  EXPECT_THAT(log.notices, ElementsAre("memory ran short"));
  const RunView view = view_of(log, false);
  EXPECT_EQ(view.run.phase, "killed");
  EXPECT_EQ(view.jobs[0].report.status, "stopped");
  EXPECT_EQ(view.jobs[0].report.step, 2);
  EXPECT_EQ(view.jobs[0].report.steps, 4);
  EXPECT_EQ(view.jobs[0].report.eval_loss, 3.0);
  EXPECT_THAT(view.jobs[0].losses, ElementsAre(2.0, 1.5));
  EXPECT_EQ(view.jobs[1].report.status, "waiting");
  EXPECT_EQ(view.memory.peak_bytes, 700);
  EXPECT_EQ(view_of(log, true).run.phase, "training");
}

TEST_F(RunFiles, OfARunThatHasEndedSayHow) {
  write("metrics.jsonl", metrics);
  write("summary.json", R"({"interrupted":false,"seconds":2.0,"rounds":4,"tokens_per_second":40.0,"peak_rss_bytes":900,"device":"cpu",)"
                        R"("jobs":[{"name":"sql","status":"failed","step":4,"reason":"loss is not finite","eval_loss":null,"adapter_step":null}]})");
  const RunView view = view_of(read_run_log(folder), false);
  EXPECT_EQ(view.run.phase, "ended");
  EXPECT_EQ(view.run.rounds, 4);
  EXPECT_EQ(view.tokens_per_second, 40);
  EXPECT_EQ(view.memory.peak_bytes, 900);
  EXPECT_EQ(view.jobs[0].report.status, "failed");
  EXPECT_EQ(view.jobs[0].report.reason, "loss is not finite");
  EXPECT_TRUE(view.ranks.empty());
}

TEST_F(RunFiles, SayWhetherARunIsEmulated) {
  EXPECT_FALSE(view_of(read_run_log(folder), true).run.emulated);
  write("run.json", nlohmann::json{{"configuration", configuration}, {"compute_dtype", "float"}, {"emulated", "cluster.yaml"}}.dump());
  for (const bool is_trained : {false, true}) EXPECT_TRUE(view_of(read_run_log(folder), is_trained).run.emulated);
}

TEST_F(RunFiles, SayWhatASweepComparesAJobBy) {
  const auto evaluation = [](int step, double loss, bool best) {
    return nlohmann::json{{"event", "evaluation"}, {"job", "sql"}, {"step", step}, {"loss", loss}, {"accuracy", loss / 10}, {"best", best}, {"seconds", 1}}.dump() + "\n";
  };
  const std::string start = evaluation(0, 1.0, false), rest = evaluation(2, 2.0, true) + evaluation(4, 3.0, false);
  const auto report = [&] { return view_of(read_run_log(folder), false).jobs.at(0).report; };
  write("metrics.jsonl", start);
  EXPECT_TRUE(std::isnan(report().result_loss));
  EXPECT_EQ(report().eval_loss, 1);
  write("metrics.jsonl", start + rest);
  EXPECT_EQ(report().result_loss, 3);
  EXPECT_EQ(report().result_accuracy, 0.3);
  std::string with_best = configuration;
  with_best.insert(with_best.find("steps: 4"), "load_best_model_at_end: true, eval_steps: 2, ");
  with_best.insert(with_best.find("a.jsonl") + 7, ", eval_fraction: 0.5");
  write("run.json", nlohmann::json{{"configuration", with_best}, {"compute_dtype", "float"}}.dump());
  EXPECT_EQ(report().result_loss, 2);
  EXPECT_EQ(report().eval_loss, 3);
  const auto summary = [&](int eval_step) {
    write("summary.json", R"({"interrupted":true,"seconds":2.0,"rounds":4,"device":"cpu","jobs":[{"name":"sql","status":"stopped","step":4,"eval_step":)" +
                              std::to_string(eval_step) + R"(,"eval_loss":2.5,"eval_accuracy":0.5}]})");
  };
  summary(2);
  EXPECT_EQ(report().result_loss, 2.5);
  write("metrics.jsonl", start);
  summary(0);
  EXPECT_TRUE(std::isnan(report().result_loss));
}

TEST_F(RunFiles, OfARunOnRanksSayHowBusyEachWas) {
  const char* const ranks = R"([{"host":"a","layers":[[0,1],[4,5]],"replica":0,"part":1,"parts":2,"measured":{"busy":0.5,"exposed":0.25,"bubble":0.25}}])";
  write("metrics.jsonl", metrics);
  write("summary.json", R"({"interrupted":false,"seconds":2.0,"rounds":4,"device":"cpu","jobs":[],"ranks":)" + std::string(ranks) + "}");
  const RunView view = view_of(read_run_log(folder), false);
  EXPECT_THAT(view.ranks, ElementsAre(RankView{.host = "a", .layers = {{0, 1}, {4, 5}}, .part = 1, .parts = 2, .busy = 0.5, .exposed = 0.25, .bubble = 0.25}));
  write("summary.json", R"({"interrupted":false,"seconds":2.0,"rounds":4,"device":"cpu","jobs":[],"ranks":[{"host":"a","layers":[[0,"x"]],"parts":1,"measured":{}}]})");
  EXPECT_THAT(read_run_log(folder).damage, ElementsAre(HasSubstr("summary.json: is not as `cotune train` writes it")));
}

TEST_F(RunFiles, WithDamagedLinesShowTheOthersAndSayWhichIsTheFirst) {
  const auto step = [](const std::string& loss) { return R"({"event":"step","job":"sql","step":1,"loss":)" + loss + R"(,"seconds":1})" "\n"; };
  write("metrics.jsonl", step("2.0") + "{\"event\":3}\n" + step("1.5"));
  RunLog log = read_run_log(folder);
  EXPECT_EQ(log.jobs[0].made.size(), 2u);
  EXPECT_THAT(log.damage, ElementsAre(AllOf(HasSubstr("metrics.jsonl:2: is not as `cotune train` writes it"), EndsWith("; the line is left out"),
                                            Not(HasSubstr("json.exception")))));
  write("metrics.jsonl", step("\x9b") + step("2.0") + "\n{\n");
  log = read_run_log(folder);
  EXPECT_EQ(log.jobs[0].made.size(), 1u);
  EXPECT_THAT(log.damage, ElementsAre(AllOf(HasSubstr("metrics.jsonl:1: "), EndsWith("; it and 2 other lines are left out"))));
  for (const char* number : {"1e57", "1.5", "18446744073709551615", "true"}) {
    write("metrics.jsonl", "{\"event\":\"start\",\"job\":\"sql\",\"step\":0,\"steps\":" + std::string(number) + "}\n");
    EXPECT_THAT(read_run_log(folder).damage, ElementsAre(HasSubstr("expected a whole number, found "))) << number;
  }
  write("metrics.jsonl", metrics);
  EXPECT_THAT(read_run_log(folder).damage, ElementsAre()) << "half a line at the end is none";
}

TEST_F(RunFiles, WithADamagedSummaryShowWhatTheMetricsSay) {
  const auto phase = [&] { return view_of(read_run_log(folder), false).run.phase; };
  write("metrics.jsonl", metrics);
  write("summary.json", "{\"interrupted\":fa");
  EXPECT_THAT(read_run_log(folder).damage, ElementsAre(AllOf(HasSubstr("summary.json: is not as"), HasSubstr("what metrics.jsonl says is shown"))));
  const RunView view = view_of(read_run_log(folder), false);
  EXPECT_EQ(view.run.phase, "interrupted");
  EXPECT_EQ(view.jobs[0].report.step, 2);
  EXPECT_EQ(view.memory.peak_bytes, 700);
  const auto end = [](const std::string& job) { return R"({"event":"end","job":")" + job + R"(","step":4,"status":"finished"})" "\n"; };
  write("metrics.jsonl", end("sql") + end("chat"));
  EXPECT_EQ(phase(), "ended");
  write("summary.json", "{}");
  EXPECT_EQ(phase(), "ended");
}

TEST_F(RunFiles, ThatAreNoneAreRefusedByName) {
  write("run.json", "[]");
  EXPECT_THAT(mistake(), HasSubstr("run.json: is not as"));
  std::filesystem::remove(folder / "run.json");
  EXPECT_THAT(mistake(), HasSubstr("holds no run: run.json is missing"));
}

}  // namespace
}  // namespace cotune
