#include "watch/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "watch/smoothed_curve.h"

namespace cotune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LoggedJob job_of(const std::string& name, size_t step_count) {
  LoggedJob job{.spec = {.name = name}, .status = "finished"};
  for (size_t i = 1; i <= step_count; ++i) job.made.push_back({.step = static_cast<int64_t>(i), .loss = 2.0 / static_cast<double>(i)});
  for (const int64_t step : {int64_t{0}, static_cast<int64_t>(step_count)}) job.evaluations.push_back({.step = step, .loss = 1});
  return job;
}

std::string chart(const std::string& page, const std::string& title) {
  const size_t begin = page.find("aria-label=\"" + title + "\"");
  return begin == std::string::npos ? "" : page.substr(begin, page.find("</svg>", begin) - begin);
}

/// What stands between two texts, wherever they follow each other.
std::vector<std::string> all_between(const std::string& text, const std::string& before, const std::string& after) {
  std::vector<std::string> found;
  for (size_t at = 0; (at = text.find(before, at)) != std::string::npos;) {
    at += before.size();
    found.push_back(text.substr(at, text.find(after, at) - at));
  }
  return found;
}

TEST(RunPage, CallsSmoothedWhatIs) {
  ASSERT_EQ(smoothing_reach(29), 0u);
  ASSERT_EQ(smoothing_reach(30), 1u);
  const std::string page = run_page({.folder = "/run", .jobs = {job_of("short", 29), job_of("long", 30)}}, "ended");
  EXPECT_THAT(all_between(chart(page, "short"), "data-name=\"", "\""), ElementsAre("loss", "held out"));
  EXPECT_THAT(all_between(chart(page, "long"), "data-name=\"", "\""), ElementsAre("loss", "smoothed", "held out"));
}

TEST(RunPage, AJobHasItsOwnColourThroughout) {
  const std::string page = run_page({.folder = "/run", .jobs = {job_of("first", 30), job_of("second", 30)}}, "ended");
  EXPECT_THAT(all_between(chart(page, "second"), "<polyline class=\"", "\""), ElementsAre("c1 faint", "c1", "c1"));
  EXPECT_THAT(all_between(chart(page, "second"), "<circle class=\"mark ", "\""), ElementsAre("c1", "c1", "c1"));  // one in the legend
  EXPECT_THAT(all_between(chart(page, "all jobs"), "<polyline class=\"", "\""), ElementsAre("c1", "c0"));
}

TEST(RunPage, TheBestCandidateOfASweepIsInFront) {
  RunLog log{.folder = "/run"};
  for (const auto& [name, loss] : {std::pair{"b", 2.0}, {"a", 1.0}, {"c", 3.0}, {"like-a", 1.0}}) {
    LoggedJob job = job_of(name, 4);
    job.adapter_step = 4;
    job.result_loss = job.evaluations.back().loss = loss;
    job.spec.sweep = {.of = "s", .values = {{"adapter.r", log.jobs.size() < 2 ? "4" : "8"}}};
    log.jobs.push_back(job);
  }
  const std::string page = run_page(log, "ended");
  EXPECT_THAT(all_between(chart(page, "held-out loss of each candidate"), "data-name=\"", "\""), ElementsAre("c", "b", "like-a", "a"));
  const std::string over = chart(page, "held-out loss over adapter.r");
  EXPECT_THAT(all_between(over, "<circle class=\"mark ", "\""), ElementsAre("c2 hollow", "c0 hollow", "c3 hollow", "c1"));
}

TEST(RunPage, ComparesNoCandidateOfASweepByWhatItStartedAs) {
  RunLog log{.folder = "/run"};
  for (const char* name : {"a", "b"}) {
    LoggedJob job = job_of(name, 1);
    job.evaluations.pop_back();
    job.eval_loss = 1;
    job.spec.sweep = {.of = "s", .values = {{"adapter.r", name}}};
    log.jobs.push_back(job);
  }
  EXPECT_THAT(chart(run_page(log, "training"), "held-out loss over adapter.r"), HasSubstr("nothing was recorded"));
}

TEST(RunPage, SaysWhatTheRunIsAtAsStatusDoes) {
  EXPECT_THAT(run_page({.folder = "/run"}, "killed"), HasSubstr("<b>not running, and it did not end</b><span>the run</span>"));
  EXPECT_THAT(run_page({.folder = "/run"}, "interrupted"), HasSubstr("<b>stopped and saved</b>"));
  EXPECT_THAT(run_page({.folder = "/run", .emulated = true}, "interrupted"), HasSubstr("<b>stopped</b>"));
}

}  // namespace
}  // namespace cotune
