#include "watch/run_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "watch/screen_text.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunView a_run(int jobs) {
  RunView view;
  view.run = {.pid = 7, .folder = "/data/runs/latest", .phase = "training", .rounds = 12, .seconds = 75, .jobs = {{"running", jobs - 1}, {"waiting", 1}}};
  view.memory = {.used_bytes = int64_t{3} << 30, .peak_bytes = int64_t{4} << 30, .limit_bytes = int64_t{8} << 30};
  view.tokens_per_second = 1234;
  view.seconds_left = 100;
  for (int i = 0; i < jobs; ++i) {
    JobView job;
    job.report = {.name = "job-" + std::to_string(i), .status = "running", .step = 120, .steps = 400, .loss = 0.8123, .eval_loss = 0.9,
                  .tokens_per_second = 320, .seconds_left = 100};
    job.learning_rate = 1e-4;
    job.losses = {4, 3, 2, 1};
    view.jobs.push_back(job);
  }
  JobReport& waiting = view.jobs.back().report;
  waiting = {.name = "waiting", .status = "waiting", .steps = 50, .reason = "memory: it and the running job would take 12.7 GiB, the limit leaves 11.5 GiB"};
  view.jobs.back().losses.clear();
  view.jobs.back().learning_rate = JobReport::unknown;
  return view;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(RunScreen, ShowsEveryJobTotalsMemoryAndWhyJobsWait) {
  EXPECT_EQ(text_of(run_screen(a_run(2), {.columns = 100})),
            "cotune · training · 12 rounds in 1m15s · /data/runs/latest\n"
            "1 running, 1 waiting · 120 of 450 steps · 1234 tok/s · 1m40s left of those that run\n"
            "memory █████████░░░░░░░░░░░░░░░ 3.00 GiB of 8.00 GiB · peak 4.00 GiB\n"
            "\n"
            "  job      state       step    loss  trend     held out        lr  tok/s   left\n"
            "  job-0    running  120/400  0.8123  █▆▃▁        0.9000  1.00e-04    320  1m40s\n"
            "  waiting  waiting     0/50                                                    \n"
            "waiting waits: memory: it and the running job would take 12.7 GiB, the limit leaves 11.5 GiB\n");
}

TEST(RunScreen, SaysHowBusyRanksAreInWhatTheWindowHasRoomFor) {
  RunView view = a_run(1);
  EXPECT_THAT(text_of(run_screen(view, {.columns = 100})), Not(HasSubstr("rank")));
  view.ranks = {{.host = "node-1", .layers = {{0, 7}}, .busy = 0.604}, {.host = "node-2", .layers = {{8, 11}, {16, 19}}, .part = 1, .parts = 2, .busy = 0.9}};
  const auto line = [&](size_t columns) { return run_screen(view, {.columns = columns}).at(3); };
  EXPECT_EQ(line(100), "2 ranks busy: 0 60% (layers 0-7, node-1), 1 90% (layers 8-11,16-19, part 2 of 2, node-2)");
  EXPECT_EQ(line(60), "2 ranks busy: 0 60%, 1 90%");
  view.ranks[1].host = "node-1";
  EXPECT_EQ(line(100), "2 ranks busy: 0 60% (layers 0-7), 1 90% (layers 8-11,16-19, part 2 of 2)");
  view.ranks.resize(16, view.ranks.front());
  view.ranks[5].busy = 0.25;
  EXPECT_EQ(line(60), "16 ranks busy: 25% (rank 5) to 90% (rank 1)");
  EXPECT_EQ(line(20), "16 ranks busy: 25% …");
}

TEST(RunScreen, LeavesOutTheHeldOutLossBeforeTheLearningRate) {
  size_t with_rate_alone = 0;
  for (size_t columns = 30; columns <= 100; ++columns) {
    const std::string text = text_of(run_screen(a_run(2), {.columns = columns}));
    const bool has_rate = text.find("  lr") != std::string::npos, has_held_out = text.find("held out") != std::string::npos;
    EXPECT_TRUE(has_rate || !has_held_out) << columns;
    with_rate_alone += has_rate && !has_held_out;
  }
  EXPECT_GT(with_rate_alone, 0u);
}

TEST(RunScreen, SaysOfEverySweepHowFarItIsAndWhichCandidateHasTheLeastLoss) {
  RunView view = a_run(5);
  for (size_t i = 0; i < 4; ++i) view.jobs[i].report.sweep = i < 3 ? "rank" : "rate";
  view.jobs[0].report.result_loss = 0.9;
  view.jobs[1].report.status = "stopped_early";
  view.jobs[1].report.result_loss = 0.75;
  view.jobs[1].report.eval_loss = 0.95;
  view.jobs[2].report.status = "cancelled";
  view.jobs[2].report.result_loss = 0.5;
  view.jobs[3].report.eval_loss = 0.4;  // of step 0
  const std::string text = text_of(run_screen(view, {.columns = 100}));
  EXPECT_THAT(text, HasSubstr("sweep rank · least held out 0.7500: job-1 · 1 running, 1 stopped early, 1 cancelled\n"));
  EXPECT_THAT(text, HasSubstr("sweep rate · 1 running\n"));
  EXPECT_THAT(text_of(run_screen(view, {.columns = 48})), HasSubstr("sweep rank · least held out 0.7500: job-1\n"));
  for (JobView& job : view.jobs) job.report.by_accuracy = true;
  view.jobs[0].report.result_accuracy = 0.91;
  view.jobs[1].report.result_accuracy = 0.9;
  EXPECT_THAT(text_of(run_screen(view, {.columns = 100})), HasSubstr("sweep rank · most right 91.0%: job-0"));
  EXPECT_THAT(text_of(run_screen(view, {.columns = 80, .rows = 8})), AllOf(HasSubstr("sweep rank"), Not(HasSubstr("sweep rate"))));
}

TEST(RunScreen, TellsNamesApartThatDifferAtTheirEnds) {
  RunView view = a_run(5);
  const std::string stem = "another-sweep-with-a-very-long-name-";
  for (size_t i = 0; i < 4; ++i) view.jobs[i].report.name = stem + std::string(i < 2 ? "r1" : "r2") + (i % 2 == 0 ? "-lr0.001" : "-lr0.0001");
  for (const size_t columns : {60, 80, 130}) {
    std::set<std::string> names;
    for (const std::string& line : run_screen(view, {.columns = columns})) {
      if (line.find("another") == 2) names.insert(line.substr(2, line.find(' ', 2) - 2));
    }
    EXPECT_EQ(names.size(), 4u) << columns;
  }
}

TEST(RunScreen, SaysReasonsOnceThatSeveralJobsHave) {
  RunView view = a_run(6);
  for (size_t i = 1; i < 4; ++i) {
    view.jobs[i].report.status = "waiting";
    view.jobs[i].report.reason = "sweep: `sql` trains 2 at a time";
  }
  const std::string text = text_of(run_screen(view, {.columns = 100}));
  EXPECT_THAT(text, HasSubstr("3 jobs wait: sweep: `sql` trains 2 at a time\n"));
  EXPECT_THAT(text, Not(HasSubstr("job-2 waits")));
}

TEST(RunScreen, CountsStepsThatCanStillBeMade) {
  RunView view = a_run(3);
  view.jobs[0].report.status = "stopped_early";
  EXPECT_THAT(text_of(run_screen(view, {.columns = 100})), HasSubstr("240 of 570 steps"));
}

TEST(RunScreen, HasExactlyTheRowsAndAtMostTheColumnsOfAnyWindow) {
  for (const int jobs : {1, 2, 5, 40}) {
    RunView view = a_run(jobs);
    view.jobs.front().report.name = std::string(100, 'n');
    for (size_t i = 0; i < view.jobs.size(); ++i) view.jobs[i].report.sweep = i % 3 == 0 ? "" : "sweep" + std::to_string(i);
    view.run.folder = "/a/日本語/folder/" + std::string(200, 'x');
    for (size_t columns = 1; columns < 140; columns += columns < 20 ? 1 : 7) {
      for (size_t rows = 1; rows < 60; rows += rows < 12 ? 1 : 9) {
        const ScreenState state{.selected = "job-3", .events = {"an event", std::string(300, 'e')}, .footer = {"q leave"}};
        const std::vector<std::string> lines = run_screen(view, {.columns = columns, .rows = rows}, state);
        ASSERT_EQ(lines.size(), rows) << columns;
        for (const std::string& line : lines) ASSERT_LE(columns_of(line), columns) << rows << ": " << line;
      }
    }
  }
}

TEST(RunScreen, OfANarrowWindowLeavesOutWhatMattersLeast) {
  const std::string wide = text_of(run_screen(a_run(3), {.columns = 90})), narrow = text_of(run_screen(a_run(3), {.columns = 40}));
  EXPECT_THAT(wide, HasSubstr("trend"));
  EXPECT_THAT(narrow, Not(HasSubstr("trend")));
  EXPECT_THAT(narrow, Not(HasSubstr("tok/s  ")));
  for (const char* kept : {"job-0", "running", "120/400", "0.8123"}) EXPECT_THAT(narrow, HasSubstr(kept));
}

TEST(RunScreen, InFortyColumnsCutsNothingThatMatters) {
  const ScreenState state{.selected = "job-0", .footer = {"j k choose", "p pause", "r resume", "c cancel", "q lines instead", "Ctrl-C saves and stops"}};
  EXPECT_EQ(text_of(run_screen(a_run(2), {.columns = 40, .rows = 14}, state)),
            "cotune · training · 12 rounds in 1m15s\n"
            "1 running, 1 waiting · 120 of 450 steps\n"
            "memory █████░░░░░░░ 3.00 GiB of 8.00 GiB\n"
            "\n"
            "  job      state       step    loss\n"
            "▶ job-0    running  120/400  0.8123\n"
            "  waiting  waiting     0/50        \n"
            "waiting waits: memory: it and the\n"
            "running job would take 12.7 GiB, the\n"
            "limit leaves 11.5 GiB\n"
            "\n\n"
            "j k choose  p pause  r resume  c cancel \n"
            "q lines instead  Ctrl-C saves and stops \n");
}

TEST(RunScreen, KeepsEveryKeyInPlaceOfEvents) {
  const ScreenState state{.selected = "job-0",
                          .events = {"first", "second", "third", "fourth"},
                          .footer = {"j k choose", "p pause", "r resume", "c cancel", "q lines instead", "Ctrl-C saves and stops"}};
  const std::string text = text_of(run_screen(a_run(2), {.columns = 34, .rows = 14}, state));
  EXPECT_THAT(text, HasSubstr("j k choose  p pause  r resume     \n"
                              "c cancel  q lines instead         \n"
                              "Ctrl-C saves and stops            \n"));
  EXPECT_THAT(text, HasSubstr("▶ job-0"));
  EXPECT_THAT(text, Not(HasSubstr("first")));
}

TEST(RunScreen, ShowsTheSelectedJobInAWindowOfAnyHeight) {
  RunView view = a_run(6);
  for (JobView& job : view.jobs) job.report.sweep = "rank";
  const ScreenState state{.selected = "job-3", .footer = {"p pause", "Ctrl-C saves and stops"}};
  for (size_t rows = 2; rows < 30; ++rows) {
    for (const size_t columns : {20, 40, 80}) {
      const std::string text = text_of(run_screen(view, {.columns = columns, .rows = rows}, state));
      EXPECT_THAT(text, AllOf(HasSubstr("▶ job-3"), HasSubstr("Ctrl-C saves and"))) << columns << " x " << rows << "\n" << text;
    }
  }
}

TEST(RunScreen, SaysInAnyWindowWhatARunIsAt) {
  RunView view = a_run(2);
  view.run.phase = "interrupted";
  EXPECT_EQ(run_screen(view, {.columns = 60}).front(), "cotune · stopped and saved; --resume goes on with it");
  EXPECT_EQ(run_screen(view, {.columns = 40}).front(), "cotune · stopped and saved");
  EXPECT_EQ(run_screen(view, {.columns = 20}).front(), "cotune · stopped an…");
}

TEST(RunScreen, SaysThatARunIsEmulatedAndNotThatItIsSavedOrGoesOn) {
  RunView view = a_run(2);
  view.run.emulated = true;
  const std::map<std::string, std::string> titles{{"training", "training"},
                                                  {"stopping", "stops"},
                                                  {"interrupted", "stopped"},
                                                  {"killed", "not running, and it did not end"}};
  for (const auto& [phase, text] : titles) {
    view.run.phase = phase;
    EXPECT_EQ(run_screen(view, {.columns = 64}).front().substr(0, std::string("cotune · emulated · " + text).size()), "cotune · emulated · " + text);
    EXPECT_THAT(text_of(run_screen(view, {.columns = 100})), AllOf(Not(HasSubstr("save")), Not(HasSubstr("--resume"))));
    EXPECT_FALSE(can_be_resumed(view.run));
  }
  view.run.emulated = false;
  for (const char* phase : {"interrupted", "killed"}) {
    view.run.phase = phase;
    EXPECT_TRUE(can_be_resumed(view.run)) << phase;
  }
}

TEST(RunScreen, OfMemoryShowsInANarrowWindowWhatIsUsed) {
  const RunView view = a_run(2);
  EXPECT_EQ(run_screen(view, {.columns = 28}).at(2), "memory 3.00 GiB of 8.00 GiB");
  EXPECT_EQ(run_screen(view, {.columns = 20}).at(2), "memory 3.00 GiB");
}

TEST(RunScreen, OfManyJobsShowsThoseAroundTheSelectedOne) {
  const RunView view = a_run(40);
  const std::string text = text_of(run_screen(view, {.columns = 80, .rows = 20}, {.selected = "job-25", .footer = {"keys"}}));
  EXPECT_THAT(text, HasSubstr("▶ job-25"));
  EXPECT_THAT(text, Not(HasSubstr("job-2 ")));
  EXPECT_THAT(text, HasSubstr("more above"));
  EXPECT_THAT(text, HasSubstr("waits: "));
}

TEST(RunScreen, TakesNothingFromANameOrAReasonButItsText) {
  RunView view = a_run(2);
  view.jobs[1].report.reason = "\x1b[2J\x1b]0;title\x07 no\nlines";
  for (const std::string& line : run_screen(view, {.columns = 80, .rows = 24})) {
    EXPECT_EQ(line.find_first_of("\x1b\x07\n"), std::string::npos) << line;
  }
}

TEST(RunScreen, ColoursTakeNoColumns) {
  RunView view = a_run(2);
  const auto plain = run_screen(view, {.columns = 80, .rows = 24}, {.selected = "job-0"});
  auto coloured = run_screen(view, {.columns = 80, .rows = 24, .colour = true}, {.selected = "job-0"});
  EXPECT_NE(coloured, plain);
  for (std::string& line : coloured) {
    for (size_t at = 0; (at = line.find('\x1b')) != std::string::npos;) line.erase(at, line.find('m', at) - at + 1);
  }
  EXPECT_EQ(coloured, plain);
}

TEST(RunScreen, InASCIIHasNoOtherCharacters) {
  for (const std::string& line : run_screen(a_run(3), {.columns = 60, .rows = 20, .unicode = false}, {.selected = "job-0", .footer = {"q"}})) {
    for (const char c : line) EXPECT_LT(static_cast<unsigned char>(c), 0x80) << line;
  }
}

TEST(Neighbour, StaysWithinTheJobs) {
  const RunView view = a_run(3);
  EXPECT_EQ(neighbour(view, "", 1), "job-0");
  EXPECT_EQ(neighbour(view, "job-0", -1), "job-0");
  EXPECT_EQ(neighbour(view, "job-0", 1), "job-1");
  EXPECT_EQ(neighbour(view, "waiting", 1), "waiting");
  EXPECT_EQ(neighbour({}, "job-0", 1), "");
}

}  // namespace
}  // namespace cotune
