#include "schedule/pipeline/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "schedule/pipeline/random_work.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;

struct Example {
  PipelineWork work;
  PipelineSchedule schedule;
  PipelineSimulation simulation;

  explicit Example(PipelineWork given, const PipelineCluster& cluster = {}) : work(std::move(given)) {
    schedule = make_schedule(work, lorapp(work, cluster), cluster);
    simulation = simulate(work, schedule, cluster);
  }
};

TEST(RenderText, DrawsTheScheduleAsItsDiagram) {
  // Two ranks, two jobs, one microbatch each, forward 1 s, backward 2 s; four columns a second.
  const Example example(uniform_work(2, 2, 1, 1, {.forward_s = 1, .backward_s = 2, .kept_bytes = 1 << 20}));
  ASSERT_DOUBLE_EQ(example.simulation.makespan_s, 9);
  EXPECT_EQ(render_text(example.schedule, example.simulation, {.width = 6 + 2 + 7 + 36, .unicode = false}),
            "9.00 s, 33.3% idle, 4 messages, 0 B\n"
            "rank 0|AAAABBBB........aaaaaaaa....bbbbbbbb|  66.7%\n"
            "      |====@@@@@@@@@@@@@@@@@@@@@===========| 2.00 MiB\n"
            "rank 1|....AAAAaaaaaaaaBBBBbbbbbbbb........|  66.7%\n"
            "      |    =========================       | 1.00 MiB\n");
  const std::string unicode =
      render_text(example.schedule, example.simulation, {.width = 6 + 2 + 7 + 36, .memory = false});
  EXPECT_THAT(unicode, HasSubstr("rank 1│····AAAAaaaaaaaaBBBBbbbbbbbb········│  66.7%\n"));
}

TEST(RenderText, KeepsItsWidthAndHasNoEscapes) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Dice dice(seed);
    const PipelineCluster cluster = random_cluster(dice);
    const Example example(random_work(dice), cluster);
    for (const int64_t width : {30, 77, 200}) {
      std::istringstream lines(
          render_text(example.schedule, example.simulation, {.width = width, .unicode = false}));
      std::string line;
      std::getline(lines, line);  // the summary
      for (bool is_activity = true; std::getline(lines, line); is_activity = !is_activity) {
        EXPECT_TRUE(!is_activity || static_cast<int64_t>(line.size()) == width) << line;
        for (const char c : line) EXPECT_TRUE(c >= 32 && c < 127) << line;
      }
    }
  }
  const Example example(uniform_work(1, 1, 1, 1));
  EXPECT_THROW(render_text(example.schedule, example.simulation, {.width = 29}), InternalError);
}

/// Tags closed in order, attributes quoted, ampersands escaped: enough of XML for what we write.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  for (size_t at = xml.find('&'); at != std::string::npos; at = xml.find('&', at + 1)) {
    EXPECT_THAT(xml.substr(at, 6), ::testing::MatchesRegex("&(amp|lt|gt|quot|#39);.*"));
  }
  EXPECT_EQ(xml.find("nan"), std::string::npos);
  EXPECT_EQ(xml.find("inf"), std::string::npos);
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(RenderSvg, HasABarForEveryComputationAndALineForEveryMessage) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const PipelineCluster cluster = random_cluster(dice);
    const Example example(random_work(dice), cluster);
    const std::string svg =
        render_svg(example.schedule, example.simulation, {.width = 700, .title = "a < b & \"c\""});
    expect_well_formed(svg);
    size_t bars = 0;
    for (const SimulatedRank& rank : example.simulation.ranks) {
      for (const SimulatedSpan& span : rank.spans) bars += span.end_s > span.start_s ? 1 : 0;
    }
    EXPECT_EQ(count(svg, "</title></rect>"), bars);
    EXPECT_EQ(count(svg, "stroke-opacity"), example.simulation.transfers.size());
  }
  const Example nothing(uniform_work(2, 1, 0, 1));
  expect_well_formed(render_svg(nothing.schedule, nothing.simulation));
  EXPECT_THROW(render_svg(nothing.schedule, nothing.simulation, {.width = 399}), InternalError);
}

TEST(RenderTrace, HoldsEverySpanTransferAndFlow) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const PipelineCluster cluster = random_cluster(dice);
    const Example example(random_work(dice, seed % 2 == 0 ? 2 : 1), cluster);
    const nlohmann::json trace = nlohmann::json::parse(render_trace(example.schedule, example.simulation));
    size_t slices = 0;
    size_t starts = 0;
    std::map<int64_t, double> flow_start;
    std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<double, double>>> tracks;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      const std::string phase = event["ph"];
      slices += phase == "X" ? 1 : 0;
      if (phase == "X") {
        const double begin = event["ts"];
        EXPECT_GT(event["pid"], 0);
        EXPECT_GT(event["tid"], 0) << "Perfetto takes it for the thread of the process's number";
        EXPECT_NE(event["tid"], event["pid"]) << "Perfetto takes it for the main thread";
        tracks[{event["pid"], event["tid"]}].emplace_back(begin, begin + event["dur"].get<double>());
      }
      if (phase == "s") flow_start[event["id"]] = event["ts"];
      if (phase == "f") {
        ++starts;
        EXPECT_GE(event["ts"].get<double>() + 1e-6, flow_start.at(event["id"]));
      }
    }
    size_t spans = 0;
    for (const SimulatedRank& rank : example.simulation.ranks) spans += rank.spans.size();
    EXPECT_EQ(slices, spans + example.simulation.transfers.size());
    EXPECT_EQ(starts, example.simulation.transfers.size());
    EXPECT_EQ(flow_start.size(), starts);
    for (auto& [track, taken] : tracks) {  // what overlaps has tracks of its own
      std::sort(taken.begin(), taken.end());
      for (size_t i = 1; i < taken.size(); ++i) EXPECT_LE(taken[i - 1].second, taken[i].first + 1e-6) << track.second;
    }
  }
}

TEST(RenderTrace, HasTracksBesideRunsWhoseSlicesNeverOverlap) {
  const Example example(uniform_work(2, 1, 2, 1));
  const TracedRun run{.schedule = &example.schedule, .simulation = &example.simulation, .name = "planned", .process = 1};
  const std::vector<TracedTrack> tracks{
      {.name = "rounds",
       .slices = {{.name = "round 1", .category = "round", .start_s = 0, .end_s = 2, .jobs = "a, b", .tokens = 7},
                  {.name = "saved \xff", .category = "checkpoint", .start_s = 1, .end_s = 3, .jobs = "a"},
                  {.name = "round 2", .category = "round", .start_s = 2, .end_s = 4, .jobs = "b", .tokens = 5}}},
      {.name = "empty", .slices = {}}};
  const nlohmann::json events = nlohmann::json::parse(render_trace(std::span(&run, 1), tracks, "run")).at("traceEvents");
  std::map<int64_t, std::string> processes, threads;  // of process 1
  std::map<std::string, nlohmann::json> slices;
  for (const nlohmann::json& event : events) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["pid"] != 1) continue;
    if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") slices[event["name"]] = event;
  }
  EXPECT_EQ(processes[1], "run");
  EXPECT_EQ(processes[5], "planned, ranks");
  ASSERT_EQ(slices.size(), 3);
  EXPECT_EQ(threads[slices["round 1"]["tid"]], "rounds");
  EXPECT_EQ(slices["round 2"]["tid"], slices["round 1"]["tid"]);
  EXPECT_EQ(threads[slices["saved \xEF\xBF\xBD"]["tid"]], "rounds (2)");
  EXPECT_EQ(slices["round 1"]["args"], (nlohmann::json{{"jobs", "a, b"}, {"tokens", 7}}));
  EXPECT_EQ(slices["saved \xEF\xBF\xBD"]["args"], (nlohmann::json{{"jobs", "a"}}));
  EXPECT_EQ(slices["round 2"]["ts"], 2e6);
  EXPECT_EQ(slices["round 2"]["dur"], 2e6);
}

TEST(RenderTrace, HasATrackOfWhatARankExchangesBesideWhatItComputes) {
  Example example(uniform_work(2, 1, 1, 1));
  example.schedule.ranks[1].push_back({.kind = ActionKind::reduce_gradients, .job = 3, .job_step = 8, .stage = 1});
  example.simulation.ranks[1].exchanges = {{example.schedule.ranks[1].size() - 1, 0.5, 2.5}};
  const nlohmann::json events = nlohmann::json::parse(render_trace(example.schedule, example.simulation)).at("traceEvents");
  std::map<int64_t, std::string> threads;  // of the ranks
  nlohmann::json exchange;
  for (const nlohmann::json& event : events) {
    if (event["name"] == "thread_name" && event["pid"] == 1) threads[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X" && event["cat"] == "reduce_gradients") exchange = event;
  }
  EXPECT_EQ(threads.size(), 3);
  ASSERT_FALSE(exchange.is_null());
  EXPECT_EQ(threads.at(exchange["tid"]), "rank 1, gradients exchanged");
  EXPECT_EQ(exchange["name"], "gradients of step 8 of job 3");
  EXPECT_EQ(exchange["ts"], 0.5e6);
  EXPECT_EQ(exchange["dur"], 2e6);
}

}  // namespace
}  // namespace cotune
