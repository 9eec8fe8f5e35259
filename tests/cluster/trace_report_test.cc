#include "cluster/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "base/error.h"
#include "base/random.h"
#include "cluster/philly_trace.h"
#include "cluster/planned_rates.h"
#include "cluster/random_trace.h"
#include "cluster/trace_charts.h"
#include "cluster/trace_study.h"

namespace cotune {
namespace {

using testing::HasSubstr;

TEST(SpreadOf, TakesTheLeastValueThatSoManyAreAtMost) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(spread_of(values), (Spread{50.5, 50, 95, 99}));
  EXPECT_EQ(spread_of({7}), (Spread{7, 7, 7, 7}));
  EXPECT_EQ(spread_of({}), Spread{});
}

TEST(JainIndex, IsOneForEqualsAndOneOverNForOneAlone) {
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{2, 2, 2}), 1);
  EXPECT_DOUBLE_EQ(jain_index(std::vector<double>{5, 0, 0, 0}), 0.25);
  EXPECT_DOUBLE_EQ(jain_index({}), 1);
}

/// Two jobs of ten seconds on one instance of 1 s a step; the second waits, and is late.
struct TwoJobs {
  TwoJobs() : rates(0, {1.0}) {
    trace.kinds = {{1, 64, AdapterMethod::lora, 8}};
    trace.tenants = {"a", "b"};
    trace.jobs = {{.name = "one", .duration_s = 600}, {.name = "two, \"late\"", .tenant = 1, .duration_s = 600, .deadline_s = 900}};
    const auto policy = make_policy("fcfs", rates, 1);
    simulation = simulate_trace(trace, *policy, rates, memory, {1.0}, {.most_jobs = 1});
    summary = summarise(trace, simulation, {1.0}, 1);
  }
  Trace trace;
  AddedRates rates;
  InstanceMemory memory = InstanceMemory::unlimited(1);
  TraceSimulation simulation;
  TraceSummary summary;
};

TEST(Summarise, CountsCompletionWaitingFairnessAndDeadlines) {
  const TraceSummary summary = TwoJobs().summary;
  EXPECT_DOUBLE_EQ(summary.completion_min.mean, 15);
  EXPECT_DOUBLE_EQ(summary.completion_min.p99, 20);
  EXPECT_DOUBLE_EQ(summary.waiting_min.mean, 5);
  EXPECT_DOUBLE_EQ(summary.end_min, 20);
  EXPECT_DOUBLE_EQ(summary.window_min, 20) << "all arrive at once";
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 64);
  EXPECT_DOUBLE_EQ(summary.utilisation, 1);
  EXPECT_DOUBLE_EQ(summary.fairness, 1.5 * 1.5 / (2 * 1.25));
  EXPECT_EQ(summary.deadlines, 1);
  EXPECT_EQ(summary.missed, 1);
  ASSERT_EQ(summary.tenants.size(), 2u);
  EXPECT_EQ(summary.tenants[0], (TenantSummary{.name = "a", .jobs = 1, .finished = 1, .completion_mean_min = 10, .slowdown = 1, .instance_hours = 1.0 / 6}));
  EXPECT_EQ(summary.tenants[1], (TenantSummary{.name = "b", .jobs = 1, .finished = 1, .completion_mean_min = 20, .slowdown = 2, .waiting_mean_min = 10,
                                               .deadlines = 1, .missed = 1, .instance_hours = 1.0 / 6}));
}

TEST(TraceReport, TablesCsvAndJsonSayTheSame) {
  TwoJobs two;
  two.summary.policy = "fcfs";
  two.summary.sharing = "separate";
  const std::vector<TraceSummary> summaries = {two.summary, two.summary};
  EXPECT_THAT(to_text(summaries), HasSubstr("1.00x"));
  EXPECT_THAT(to_text(std::span(summaries).first(1)), HasSubstr("deadlines missed      1 of 1"));
  const std::string csv = to_csv(summaries);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_THAT(csv, HasSubstr("policy,sharing,instances"));
  const nlohmann::json json = to_json(two.summary);
  EXPECT_EQ(json.at("deadlines_missed"), 1);
  EXPECT_EQ(json.at("completion_mean_min"), 15);
  EXPECT_EQ(json.at("tenants").at(1).at("slowdown"), 2);
  EXPECT_THAT(to_text(std::span(summaries).first(1)), HasSubstr("  b          1         1      20.0      2.0x     10.0     1/1             0.2\n"));
  EXPECT_THAT(jobs_csv(two.trace, two.simulation), HasSubstr("\"two, \"\"late\"\"\",b,lora8-1x64,0,0,10,20,10,600,0,0,15,"));
  // As in a trace, whose deadlines are minutes after the arrival.
  two.trace.jobs[1].arrival_s = 120;
  EXPECT_THAT(jobs_csv(two.trace, two.simulation), HasSubstr("\"two, \"\"late\"\"\",b,lora8-1x64,0,2,10,20,10,600,0,0,13,"));
}

/// Every coordinate of the picture is a number inside it, and its tags are balanced.
void expect_sound(const std::string& svg) {
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex("width=\"([0-9]+)\" height=\"([0-9]+)\"")));
  const double width = std::stod(size[1]), height = std::stod(size[2]);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
  const std::regex coordinate(" (x|x1|x2|y|y1|y2)=\"([-0-9.]+)\"");
  size_t seen = 0;
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), coordinate); it != std::sregex_iterator(); ++it, ++seen) {
    const double value = std::stod((*it)[2]);
    EXPECT_GE(value, 0) << it->str();
    EXPECT_LE(value, it->str()[1] == 'x' ? width : height) << it->str();
  }
  EXPECT_GT(seen, 10u);
  // Words as wide as they may be drawn.
  const std::regex entity("&[a-z]+;");
  const std::regex words("<text x=\"([0-9.]+)\"[^>]*text-anchor=\"(start|end)\" font-size=\"12\">([^<]*)<");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), words); it != std::sregex_iterator(); ++it) {
    const double x = std::stod((*it)[1]), wide = 7 * static_cast<double>(std::regex_replace((*it)[3].str(), entity, "x").size());
    EXPECT_GE((*it)[2] == "end" ? x - wide : x, 0) << it->str();
    EXPECT_LE((*it)[2] == "end" ? x : x + wide, width) << it->str();
  }
  const std::regex point("([-0-9.]+),([-0-9.]+)");
  const std::regex points("points=\"([^\"]*)\"");
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), points); it != std::sregex_iterator(); ++it) {
    const std::string list = (*it)[1];
    for (auto at = std::sregex_iterator(list.begin(), list.end(), point); at != std::sregex_iterator(); ++at) {
      EXPECT_LE(std::stod((*at)[1]), width);
      EXPECT_LE(std::stod((*at)[2]), height);
    }
  }
  for (const char* tag : {"svg", "text", "title", "polyline", "rect"}) {
    const auto count = [&](const std::string& what) {
      const std::regex each(what);
      return std::distance(std::sregex_iterator(svg.begin(), svg.end(), each), std::sregex_iterator());
    };
    EXPECT_EQ(count(std::string("<") + tag + "[ >]"), count(std::string("</") + tag + ">") + count(std::string("<") + tag + "[^>]*/>")) << tag;
  }
}

TEST(TraceCharts, LieInsideTheirPictures) {
  TwoJobs two;
  two.summary.policy = "a < b & \"c\", admission by deadlines (500 refused) and more";
  std::vector<ChartedTrace> charted(9, {two.summary.policy, &two.trace, &two.simulation});
  const std::vector<TraceSummary> summaries(9, two.summary);
  for (const std::string& svg : {completion_chart(charted), timeline_chart(charted), summary_chart(summaries), tenant_chart(summaries)}) {
    expect_sound(svg);
    EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  }
  RandomTrace random(3);
  const TraceSimulation simulation = random.simulate("fcfs");
  charted = {{"random", &random.trace, &simulation}};
  expect_sound(completion_chart(charted));
  expect_sound(timeline_chart(charted));
}

TEST(RateTable, IsWithinAFewPercentOfThePlannerAndGoesIntoAFileAndBack) {
  const ClusterSpec cluster{{{"a40", 16, 8, device_preset("A40"), link_preset("pcie4")}}, link_preset("infiniband-100")};
  InstancesOfCluster instances = instances_of(cluster, model_preset("llama-2-7b"), 1, 4);
  const std::vector<JobKind> kinds = {{8, 64, AdapterMethod::lora, 8}, {16, 128, AdapterMethod::lora, 64}, {32, 256, AdapterMethod::lora, 16}};
  for (const SharingChoice choice : {SharingChoice{Sharing::temporal, Layout::ragged}, SharingChoice{Sharing::batch_all, Layout::padded}}) {
    instances.spec.sharing = choice.sharing;
    instances.spec.layout = choice.layout;
    PlannedRates planned(instances.spec, kinds);
    const RateTable table = RateTable::make(planned, planned.memory(), kinds, {});
    EXPECT_GT(table.mean_error(), 0);
    EXPECT_LT(table.mean_error(), 0.04);
    // A padded mix is linear in its jobs once its longest row is known.
    if (choice.layout == Layout::padded) {
      EXPECT_LT(table.worst_error(), 0.001);
    }
    EXPECT_EQ(table.predicted_round_seconds(JobMix({1})), planned.round_seconds(JobMix({1})));
    EXPECT_EQ(table.predicted_round_seconds(JobMix({2, 0})), planned.round_seconds(JobMix({0, 2})));
    // Read for some of its kinds, in their order there.
    const std::string name = describe(instances.spec);
    const std::vector<JobKind> some = {kinds[2], kinds[0]};
    const RateTable back = RateTable::from_json(nlohmann::json::parse(table.to_json(name).dump()), "rates.json", name, some, 0);
    EXPECT_EQ(back.predicted_round_seconds(JobMix({0, 0, 1, 1})), table.predicted_round_seconds(JobMix({2, 2, 0, 0})));
    EXPECT_EQ(back.predicted_round_seconds(JobMix({0, 1})), table.predicted_round_seconds(JobMix({2, 0})));
  }
}

/// Where more jobs wait than there is room for, most instances are full: of such mixes the mean is hardly off.
TEST(RateTable, IsRightOnAverageForFullInstances) {
  const ClusterSpec cluster{{{"a40", 16, 8, device_preset("A40"), link_preset("pcie4")}}, link_preset("infiniband-100")};
  InstancesOfCluster instances = instances_of(cluster, model_preset("llama-2-7b"), 1, 4);
  instances.spec.sharing = Sharing::temporal;
  std::vector<JobKind> kinds;
  for (const int64_t rows : {8, 16, 32}) {
    for (const int64_t rank : {8, 64}) kinds.push_back({rows, 128, AdapterMethod::lora, rank});
  }
  PlannedRates planned(instances.spec, kinds);
  const RateTable table = RateTable::make(planned, planned.memory(), kinds, {});
  double of_table = 0, of_planner = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    std::vector<int32_t> drawn;
    MemoryInUse in_use(planned.memory());
    for (uint64_t j = 0;; ++j) {
      const auto kind = static_cast<int32_t>(uniform_below(mix_key(7, i), j, kinds.size()));
      if (!in_use.fits(kind)) break;
      drawn.push_back(kind);
      in_use.set(JobMix(drawn));
    }
    of_table += table.predicted_round_seconds(JobMix(drawn));
    of_planner += planned.round_seconds(JobMix(drawn));
  }
  EXPECT_NEAR(of_table / of_planner, 1, 0.005);
}

TEST(RateTable, RefusesWhatItWasNotMadeFor) {
  AddedRates rates(1, {1, 2});
  const std::vector<JobKind> kinds = {{8, 64, AdapterMethod::lora, 8}, {8, 128, AdapterMethod::lora, 8}};
  const nlohmann::json json = RateTable::make(rates, InstanceMemory::unlimited(2), kinds, {.most_jobs = 6}).to_json("here");
  const auto mistake = [&](const nlohmann::json& file, const std::string& instance, const std::vector<JobKind>& wanted, int64_t most_jobs = 6) -> std::string {
    try {
      RateTable::from_json(file, "rates.json", instance, wanted, most_jobs);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(mistake(json, "here", kinds), "");
  EXPECT_EQ(mistake(json, "here", kinds, 3), "");
  EXPECT_THAT(mistake(json, "here", kinds, 7), HasSubstr("rates.json: most_jobs: must be 0 or 7 and more, got 6"));
  EXPECT_THAT(mistake(json, "here", kinds, 0), HasSubstr("rates.json: most_jobs: must be 0: mixes of as many jobs as fit, got 6"));
  EXPECT_THAT(mistake(json, "there", kinds), HasSubstr("rates.json: instance: must be `there`, got \"here\""));
  EXPECT_THAT(mistake(json, "here", {{8, 256, AdapterMethod::lora, 8}}), HasSubstr("rates.json: kinds: must be a list with `lora8-8x256`"));
  for (const char* field : {"cotune_rates", "most_jobs", "kinds", "padded", "alone_s", "pairs_s", "fits", "instance"}) {
    nlohmann::json less = json;
    less.erase(field);
    EXPECT_THAT(mistake(less, "here", kinds), HasSubstr(field)) << field;
  }
  nlohmann::json negative = json;
  negative["alone_s"][0] = -1;
  EXPECT_THAT(mistake(negative, "here", kinds), HasSubstr("alone_s: must be numbers above 0"));
}

TEST(Describe, LeavesSharingToResultsAndRatesSayIt) {
  const ClusterSpec cluster{{{"a40", 1, 4, device_preset("A40"), link_preset("pcie4")}}, {}};
  InstanceSpec instance = instances_of(cluster, model_preset("llama-2-7b"), 1, 4).spec;
  instance.sharing = Sharing::temporal;
  EXPECT_EQ(describe(instance), "32 layers of 4096, A40 bfloat16, tp 1, pp 4, 4 microbatches");
  EXPECT_THAT(rates_origin(instance), HasSubstr("4 microbatches, temporal ("));
}

TEST(InstanceThatHolds, IsOfTheFewestDevicesAndMicrobatchesThatDo) {
  ClusterSpec cluster{{{"a", 2, 4, device_preset("A40"), link_preset("pcie4")}}, link_preset("infiniband-100")};
  cluster.nodes.front().device.memory_bytes = int64_t{11} << 30;  // of 12.6 GiB of weights two devices hold half each
  const InstanceSpec one = instances_of(cluster, model_preset("llama-2-7b"), 1, 1).spec;
  const std::vector<JobKind> kinds = {{64, 1024, AdapterMethod::lora, 16}, {4, 512, AdapterMethod::lora, 8}};
  const std::optional<InstanceSpec> found = instance_that_holds(cluster, one, kinds);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->devices(), 2);
  EXPECT_EQ(microbatches_that_fit(*found, kinds), found->microbatches);
  EXPECT_EQ(instance_that_holds(cluster, *found, kinds)->microbatches, found->microbatches);
  cluster.nodes.front().device.memory_bytes = int64_t{1} << 30;
  EXPECT_FALSE(instance_that_holds(cluster, instances_of(cluster, one.model, 1, 1).spec, kinds).has_value());
}

TEST(RunStudy, MultiplexingTrainsMoreOfAnOverloadedClusterThanDedicatedInstances) {
  const ClusterSpec cluster{{{"a40", 1, 8, device_preset("A40"), link_preset("pcie4")}}, {}};
  const InstancesOfCluster instances = instances_of(cluster, model_preset("llama-2-7b"), 1, 4);
  const Trace trace = philly_trace({.minutes = 60, .rows = {8}, .ranks = {16}});
  StudySettings settings;
  settings.options.most_jobs = 6;
  settings.sharings = {parse_sharing("separate"), parse_sharing("hybrid")};
  const std::vector<StudyResult> results = run_study(trace, instances, settings);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].summary.finished, results[0].summary.jobs);
  EXPECT_EQ(results[1].summary.finished, results[1].summary.jobs);
  EXPECT_GT(results[1].summary.tokens_per_s, results[0].summary.tokens_per_s);
  EXPECT_LT(results[1].summary.end_min, results[0].summary.end_min);
  EXPECT_THROW(parse_sharing("together"), UserError);
}

TEST(RunStudy, ASweepOfEightConfigurationsEndsSoonerTogether) {
  const ClusterSpec cluster{{{"a40", 1, 4, device_preset("A40"), link_preset("pcie4")}}, {}};
  const InstancesOfCluster instances = instances_of(cluster, model_preset("llama-2-7b"), 1, 4);
  Trace trace;
  trace.tenants = {"researcher"};
  for (const int64_t rank : {4, 8, 16, 32}) trace.kinds.push_back({8, 128, AdapterMethod::lora, rank});
  for (int32_t i = 0; i < 8; ++i) trace.jobs.push_back({.name = "lr" + std::to_string(i), .kind = i % 4, .duration_s = 3600});
  StudySettings settings;
  settings.sharings = {parse_sharing("separate"), parse_sharing("hybrid")};
  const std::vector<StudyResult> results = run_study(trace, instances, settings);
  EXPECT_LT(results[1].summary.end_min, 0.7 * results[0].summary.end_min);
  for (size_t j = 0; j < trace.jobs.size(); ++j) {
    EXPECT_EQ(results[1].simulation.jobs[j].steps, results[0].simulation.jobs[j].steps);
    EXPECT_TRUE(results[1].simulation.jobs[j].finished());
  }
}

TEST(RunStudy, ARateTableGivesNearlyWhatThePlannerGives) {
  const ClusterSpec cluster{{{"a40", 1, 8, device_preset("A40"), link_preset("pcie4")}}, {}};
  const InstancesOfCluster instances = instances_of(cluster, model_preset("llama-2-7b"), 1, 4);
  const Trace trace = philly_trace({.minutes = 60});
  StudySettings settings;
  settings.sharings = {parse_sharing("temporal")};
  const TraceSummary planned = run_study(trace, instances, settings).front().summary;
  settings.use_table = true;
  const TraceSummary tabled = run_study(trace, instances, settings).front().summary;
  EXPECT_NEAR(tabled.completion_min.mean, planned.completion_min.mean, 0.02 * planned.completion_min.mean);
  EXPECT_NEAR(tabled.tokens_per_s, planned.tokens_per_s, 0.02 * planned.tokens_per_s);
  EXPECT_THAT(planned.rates, HasSubstr("% remembered"));
}

}  // namespace
}  // namespace cotune
