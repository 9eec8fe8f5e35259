#include "cluster/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cluster/philly_trace.h"

namespace cotune {
namespace {

using testing::HasSubstr;

std::string mistake_in(const std::string& text) {
  try {
    parse_trace_file(text, "trace.csv");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(TraceFile, ReadsColumnsInAnyOrderWithDefaults) {
  const TraceFile file = parse_trace_file(
      "# from the scheduler's log\n"
      "tenant,duration_min,gpu_type,arrival_min,deadline_min,method,width,tokens\r\n"
      "\"acme, inc\",10,V100,3,60,,,\n"
      "\n"
      "solo,5,P100,1,inf,bottleneck,32,64\n",
      "trace.csv");
  const Trace& trace = file.trace;
  ASSERT_EQ(trace.jobs.size(), 2u);
  EXPECT_THAT(file.ignored_columns, testing::ElementsAre("gpu_type"));
  EXPECT_THAT(trace.tenants, testing::ElementsAre("solo", "acme, inc"));
  EXPECT_DOUBLE_EQ(trace.jobs[0].arrival_s, 60);
  EXPECT_DOUBLE_EQ(trace.jobs[1].deadline_s, 180 + 3600);
  EXPECT_TRUE(std::isinf(trace.jobs[0].deadline_s));
  EXPECT_EQ(trace.kinds[static_cast<size_t>(trace.jobs[1].kind)], (JobKind{8, 256, AdapterMethod::lora, 16}));
  EXPECT_EQ(trace.kinds[static_cast<size_t>(trace.jobs[0].kind)], (JobKind{8, 64, AdapterMethod::bottleneck, 32}));
}

TEST(TraceFile, NamesFileLineAndFieldOfEveryMistake) {
  const std::string message = mistake_in(
      "arrival_min,duration_min,priority,method,dedicated,stops_after,tokens\n"
      "-1,5,0,lora,0,1,64\n"
      "0,0,0,lora,0,1,64\n"
      "0,5,high,dora,2,1.5,0\n"
      "0,5\n"
      "0,nan,0,\"lora,0,1,64\n");
  for (const char* each :
       {"trace.csv:2: arrival_min: must be minutes, from 0 to 1000000000, got `-1`", "trace.csv:3: duration_min: must be minutes, from 0.000001 to 1000000000",
        "trace.csv:4: priority: must be a whole number", "trace.csv:4: method: must be lora, bottleneck or diff_pruning, got `dora`",
        "trace.csv:4: dedicated: must be a whole number from 0 to 1, got `2`", "trace.csv:4: stops_after: must be a share",
        "trace.csv:4: tokens", "trace.csv:5: has 2 fields where the first line names 7", "trace.csv:6: a double quote is not closed"}) {
    EXPECT_THAT(message, HasSubstr(each));
  }
}

TEST(TraceFile, RefusesTwoJobsOfOneName) {
  EXPECT_EQ(mistake_in("arrival_min,duration_min,job\n0,5,a\n1,5,b\n\n2,5,\"a\"\n"),
            "trace.csv:5: job: two jobs are named `a`; the first is in line 2");
  EXPECT_EQ(mistake_in("arrival_min,duration_min,job\n0,5,job1\n1,5,\n"),
            "trace.csv:3: job: two jobs are named `job1`, which a line without a name gets by its number; the first is in line 2");
  EXPECT_EQ(mistake_in("arrival_min,duration_min,job,tenant\n0,5,a,x\n1,5,b,x\n"), "");
}

TEST(TraceFile, CountsMistakesThatItDoesNotName) {
  std::string text = "arrival_min,duration_min\n";
  for (int i = 0; i < 30; ++i) text += "0,no\n";
  EXPECT_THAT(mistake_in(text), testing::AllOf(HasSubstr("trace.csv:4: duration_min: "), testing::Not(HasSubstr("trace.csv:5:")),
                                               HasSubstr("trace.csv:31: and 27 more such lines, this is the last")));
}

TEST(TraceFile, AsksForColumnsThatAreMissing) {
  EXPECT_THAT(mistake_in("arrival_mins,duration_min\n1,2\n"), HasSubstr("trace.csv:1: arrival_min: the column is missing; is it `arrival_mins`?"));
  EXPECT_THAT(mistake_in(""), HasSubstr("no line names the columns"));
  EXPECT_THAT(mistake_in("arrival_min,duration_min\n"), HasSubstr("no job"));
  EXPECT_THAT(mistake_in("arrival_min,duration_min,arrival_min\n1,2,3\n"), HasSubstr("twice"));
}

TEST(TraceFile, GoesIntoAFileAndBack) {
  Trace trace = philly_trace({.seed = 5, .minutes = 500});
  trace.tenants[0] = "a \"quoted\", name";
  trace.jobs[3].dedicated = true;
  const Trace back = parse_trace_file(to_csv(trace), "trace.csv").trace;
  ASSERT_EQ(back.jobs.size(), trace.jobs.size());
  EXPECT_EQ(back.kinds, trace.kinds);
  for (size_t j = 0; j < trace.jobs.size(); ++j) {
    const TraceJob &before = trace.jobs[j], &after = back.jobs[j];
    EXPECT_NEAR(after.arrival_s, before.arrival_s, 1e-9 * before.arrival_s);
    EXPECT_NEAR(after.duration_s, before.duration_s, 1e-9 * before.duration_s);
    EXPECT_EQ(std::isinf(after.deadline_s), std::isinf(before.deadline_s));
    EXPECT_EQ(back.tenants[static_cast<size_t>(after.tenant)], trace.tenants[static_cast<size_t>(before.tenant)]);
    EXPECT_EQ(std::tie(after.name, after.kind, after.priority, after.stops_after, after.dedicated),
              std::tie(before.name, before.kind, before.priority, before.stops_after, before.dedicated));
  }
}

TEST(Trace, WithFewerKindsHasRowsThatAreLittleLonger) {
  Trace trace;
  for (int64_t tokens = 40; tokens < 3040; ++tokens) {
    trace.kinds.push_back({8, tokens, AdapterMethod::lora, 16});
    trace.jobs.push_back({.kind = static_cast<int32_t>(tokens - 40)});
  }
  EXPECT_EQ(with_fewer_kinds(trace, 3000), trace);
  const Trace fewer = with_fewer_kinds(trace, 100);
  EXPECT_LE(fewer.kinds.size(), 60u);
  ASSERT_EQ(fewer.jobs.size(), trace.jobs.size());
  for (size_t j = 0; j < trace.jobs.size(); ++j) {
    const auto given = static_cast<double>(trace.kinds[j].tokens), taken = static_cast<double>(fewer.kinds[static_cast<size_t>(fewer.jobs[j].kind)].tokens);
    EXPECT_GE(taken, given);
    EXPECT_LE(taken, 1.1 * given + 1);
    EXPECT_LE(taken, 3039);
  }
  EXPECT_TRUE(std::is_sorted(fewer.kinds.begin(), fewer.kinds.end()));
  EXPECT_LE(with_fewer_kinds(trace, 1).kinds.size(), 8u) << "as few as octaves";
}

TEST(PhillyTrace, HasThePublishedMoments) {
  for (const uint64_t seed : {1, 2, 3}) {
    const Trace trace = philly_trace({.seed = seed});
    const auto count = static_cast<double>(trace.jobs.size());
    EXPECT_NEAR(count / (7 * 24 * 60), 2.59, 0.03 * 2.59);
    double mean = 0, square = 0;
    for (const TraceJob& job : trace.jobs) mean += job.duration_s / 60 / count;
    for (const TraceJob& job : trace.jobs) square += std::pow(job.duration_s / 60 - mean, 2) / count;
    EXPECT_NEAR(mean, 372.6, 0.03 * 372.6);
    EXPECT_NEAR(std::sqrt(square), 612.9, 0.1 * 612.9);
    EXPECT_TRUE(std::is_sorted(trace.jobs.begin(), trace.jobs.end(),
                               [](const TraceJob& a, const TraceJob& b) { return a.arrival_s < b.arrival_s; }));
  }
}

TEST(PhillyTrace, DrawsWhatAJobIsWhateverItsDuration) {
  const Trace trace = philly_trace({});
  const auto mean_log_of = [&](auto is_meant) {
    double sum = 0, count = 0;
    for (const TraceJob& job : trace.jobs) {
      if (!is_meant(trace.kinds[static_cast<size_t>(job.kind)])) continue;
      sum += std::log(job.duration_s / 60);
      ++count;
    }
    return sum / count;
  };
  const double mean = mean_log_of([](const JobKind&) { return true; });
  for (const JobKind& kind : trace.kinds) {
    EXPECT_NEAR(mean_log_of([&](const JobKind& each) { return each.rows == kind.rows; }), mean, 0.06) << kind.rows << " rows";
    EXPECT_NEAR(mean_log_of([&](const JobKind& each) { return each.tokens == kind.tokens; }), mean, 0.06) << kind.tokens << " tokens";
    EXPECT_NEAR(mean_log_of([&](const JobKind& each) { return each.width == kind.width; }), mean, 0.06) << "rank " << kind.width;
  }
}

TEST(PhillyTrace, IsAPureFunctionOfItsSeed) {
  EXPECT_EQ(philly_trace({.seed = 4, .minutes = 1000}), philly_trace({.seed = 4, .minutes = 1000}));
  EXPECT_NE(philly_trace({.seed = 4, .minutes = 1000}), philly_trace({.seed = 5, .minutes = 1000}));
}

}  // namespace
}  // namespace cotune
