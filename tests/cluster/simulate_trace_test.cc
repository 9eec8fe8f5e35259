#include "cluster/simulate_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "cluster/random_trace.h"

namespace cotune {
namespace {

/// Follows the events of a simulation and checks after each what must hold at that moment.
class Follower {
 public:
  Follower(const RandomTrace& random, const TraceSimulation& simulation)
      : random_(random), simulation_(simulation), on_(static_cast<size_t>(random.options.instances)) {}

  void follow() {
    for (size_t i = 0; i < simulation_.events.size(); ++i) {
      const TraceEvent& event = simulation_.events[i];
      ASSERT_GE(event.time_s, time_s_) << "time goes back";
      if (event.time_s > time_s_) check_moment();
      time_s_ = event.time_s;
      apply(event);
    }
    check_moment();
    EXPECT_TRUE(waiting_.empty());
    for (const auto& jobs : on_) EXPECT_TRUE(jobs.empty());
  }

 private:
  const TraceJob& job(int64_t index) const { return random_.trace.jobs[static_cast<size_t>(index)]; }
  JobMix mix_with(const std::set<int64_t>& jobs, int64_t more = -1) const {
    JobMix mix;
    for (const int64_t each : jobs) mix.add(job(each).kind);
    if (more >= 0) mix.add(job(more).kind);
    return mix;
  }

  void apply(const TraceEvent& event) {
    switch (event.kind) {
      case TraceEventKind::arrive:
        EXPECT_DOUBLE_EQ(event.time_s, job(event.job).arrival_s);
        EXPECT_TRUE(waiting_.insert(event.job).second);
        break;
      case TraceEventKind::start:
        EXPECT_EQ(waiting_.erase(event.job), 1u) << "starts without having waited";
        EXPECT_TRUE(on_[static_cast<size_t>(event.instance)].insert(event.job).second);
        break;
      case TraceEventKind::preempt:
        EXPECT_EQ(on_[static_cast<size_t>(event.instance)].erase(event.job), 1u);
        EXPECT_TRUE(waiting_.insert(event.job).second);
        break;
      case TraceEventKind::finish:
        EXPECT_EQ(on_[static_cast<size_t>(event.instance)].erase(event.job), 1u);
        EXPECT_TRUE(finished_.insert(event.job).second) << "finishes twice";
        break;
      case TraceEventKind::refuse:
        EXPECT_EQ(waiting_.erase(event.job), 1u);
        break;
    }
  }

  /// Between moments: nothing is over-committed, and nothing stands idle that could be used.
  void check_moment() const {
    const TraceOptions& options = random_.options;
    for (const auto& jobs : on_) {
      EXPECT_TRUE(random_.memory.fits(mix_with(jobs)));
      if (options.most_jobs > 0) {
        EXPECT_LE(static_cast<int64_t>(jobs.size()), options.most_jobs);
      }
      for (const int64_t each : jobs) {
        if (job(each).dedicated) {
          EXPECT_EQ(jobs.size(), 1u);
        }
      }
      // Admission by deadlines may leave an instance to nobody, since no deadline could be kept there.
      if (!jobs.empty() || options.refuse_late) continue;
      for (const int64_t each : waiting_) {
        EXPECT_FALSE(MemoryInUse(random_.memory).fits(job(each).kind)) << "job " << each << " waits beside an idle instance";
      }
    }
  }

  const RandomTrace& random_;
  const TraceSimulation& simulation_;
  std::vector<std::set<int64_t>> on_;
  std::set<int64_t> waiting_, finished_;
  double time_s_ = 0;
};

class EveryPolicy : public testing::TestWithParam<std::string> {};

TEST_P(EveryPolicy, NeverOverCommitsAndDoesAllWorkOnceOnThousandsOfTraces) {
  int64_t preemptions = 0, refusals = 0, shared = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    RandomTrace random(seed);
    const TraceSimulation simulation = random.simulate(GetParam());
    Follower(random, simulation).follow();
    EXPECT_LE(simulation.highest_memory_share, 1);
    const std::vector<double> alone = random.rates.alone();
    double service_s = 0, ran_s = 0;
    for (const double each : simulation.tenant_service_s) service_s += each;
    for (size_t j = 0; j < random.trace.jobs.size(); ++j) {
      const TraceJob& job = random.trace.jobs[j];
      const JobOutcome& outcome = simulation.jobs[j];
      EXPECT_NE(outcome.finished(), !outcome.refusal.empty());
      preemptions += outcome.preemptions;
      refusals += outcome.finished() ? 0 : 1;
      ran_s += outcome.ran_s;
      if (!outcome.finished()) continue;
      EXPECT_NEAR(outcome.rounds, static_cast<double>(outcome.steps) + outcome.lost_steps,
                  1e-6 * std::max(1.0, outcome.rounds));
      EXPECT_GE(outcome.lost_steps, -1e-6);
      EXPECT_LE(outcome.lost_steps, static_cast<double>(outcome.preemptions) + 1e-9) << "more than a step for each time";
      EXPECT_GE(outcome.started_s, job.arrival_s);
      const double least_s = static_cast<double>(outcome.steps) * alone[static_cast<size_t>(job.kind)];
      EXPECT_GE(outcome.finished_s - outcome.started_s, least_s * (1 - 1e-9)) << "faster than alone";
      const auto planned = static_cast<double>(planned_steps(job, alone[static_cast<size_t>(job.kind)]));
      EXPECT_EQ(outcome.steps, static_cast<int64_t>(std::max(1.0, std::ceil(job.stops_after * planned))));
    }
    EXPECT_LE(service_s, ran_s * (1 + 1e-9) + 1e-9) << "an instance's seconds were given out more than once";
    EXPECT_LE(simulation.window_busy_s, simulation.window_s * static_cast<double>(random.options.instances) * (1 + 1e-9));
    shared += ran_s > service_s * 1.01 ? 1 : 0;
  }
  EXPECT_GT(refusals, 100);
  EXPECT_GT(shared, 100) << "too few traces in which jobs share an instance";
  const bool is_preemptive = GetParam() != "fcfs" && GetParam() != "multiplexing" && GetParam() != "fair";
  if (is_preemptive) {
    EXPECT_GT(preemptions, 100);
  }
}

TEST_P(EveryPolicy, GivesEqualSimulationsForEqualInputs) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RandomTrace first(seed), second(seed);
    EXPECT_EQ(first.simulate(GetParam()), second.simulate(GetParam()));
  }
}

TEST_P(EveryPolicy, KeepsTheDeadlinesOfWhoeverItAdmitsByThem) {
  int64_t admitted = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    RandomTrace random(seed);
    random.options.refuse_late = true;
    const TraceSimulation simulation = random.simulate(GetParam());
    for (size_t j = 0; j < random.trace.jobs.size(); ++j) {
      const double deadline_s = random.trace.jobs[j].deadline_s;
      if (std::isinf(deadline_s) || !simulation.jobs[j].finished()) continue;
      ++admitted;
      EXPECT_LE(simulation.jobs[j].finished_s, deadline_s * (1 + 1e-9));
      EXPECT_EQ(simulation.jobs[j].preemptions, 0);
    }
  }
  EXPECT_GT(admitted, 1000);
}

TEST_P(EveryPolicy, KeepsItsOrderAmongLikeJobs) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomTrace random(seed);
    random.options.refuse_late = false;
    for (TraceJob& job : random.trace.jobs) {
      job.kind = 0;
      job.tenant = 0;
      job.dedicated = false;
    }
    const auto policy = make_policy(GetParam(), random.rates, random.trace.kinds.size());
    const TraceSimulation simulation =
        simulate_trace(random.trace, *policy, random.rates, random.memory, random.rates.alone(), random.options);
    // First starts: of two that wait at that moment, the lower (rank, arrival) goes first.
    const double alone_s = random.rates.alone()[0];
    const auto key = [&](int64_t each) {
      const TraceJob& job = random.trace.jobs[static_cast<size_t>(each)];
      const double left_s = static_cast<double>(planned_steps(job, alone_s)) * alone_s;
      return std::tuple(policy->rank({each, 0, job.priority, job.arrival_s, job.deadline_s, left_s}), job.arrival_s, each);
    };
    std::set<int64_t> fresh;
    for (const TraceEvent& event : simulation.events) {
      if (event.kind == TraceEventKind::arrive) fresh.insert(event.job);
      if (event.kind == TraceEventKind::refuse) fresh.erase(event.job);
      if (event.kind != TraceEventKind::start || fresh.erase(event.job) == 0) continue;
      for (const int64_t other : fresh) EXPECT_LT(key(event.job), key(other)) << event.job << " before " << other;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(policy_names()), [](const auto& each) { return each.param; });

/// A cluster of `instances` instances where a job's step takes a second alone, and as many as there are jobs in company.
struct SecondsTrace {
  SecondsTrace() : rates(0, {1.0}) {
    trace.kinds = {{1, 64, AdapterMethod::lora, 8}};
    trace.tenants = {"a", "b"};
  }
  TraceJob& add(double arrival_s, double duration_s) {
    TraceJob& job = trace.jobs.emplace_back();
    job.arrival_s = arrival_s;
    job.duration_s = duration_s;
    return job;
  }
  TraceSimulation simulate(const std::string& name) {
    const auto policy = make_policy(name, rates, 1);
    return simulate_trace(trace, *policy, rates, memory, {1.0}, options);
  }
  Trace trace;
  AddedRates rates;
  InstanceMemory memory = InstanceMemory::unlimited(1);
  TraceOptions options;
};

TEST(SimulateTrace, SharesRoundsBetweenTheJobsOnAnInstance) {
  SecondsTrace seconds;
  seconds.add(0, 10);
  seconds.add(4, 10);
  // 4 s alone, then 2 s a round: the first ends after 6 more rounds, at 16; the second has 4 left and is alone.
  const TraceSimulation simulation = seconds.simulate("fcfs");
  EXPECT_DOUBLE_EQ(simulation.jobs[0].finished_s, 16);
  EXPECT_DOUBLE_EQ(simulation.jobs[1].finished_s, 20);
  EXPECT_DOUBLE_EQ(simulation.window_s, 4);
  EXPECT_DOUBLE_EQ(simulation.window_tokens, 4 * 64);
}

TEST(SimulateTrace, APreemptedJobKeepsItsFinishedStepsAndLosesTheOneUnderWay) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.add(0, 10);
  seconds.add(3.25, 5).priority = 1;
  const TraceSimulation simulation = seconds.simulate("priority");
  EXPECT_DOUBLE_EQ(simulation.jobs[1].started_s, 3.25);
  EXPECT_DOUBLE_EQ(simulation.jobs[1].finished_s, 8.25);
  EXPECT_EQ(simulation.jobs[0].preemptions, 1);
  EXPECT_NEAR(simulation.jobs[0].lost_steps, 0.25, 1e-9);
  EXPECT_NEAR(simulation.jobs[0].finished_s, 8.25 + 7, 1e-9) << "three steps were finished";
}

TEST(SimulateTrace, EqualPriorityNeverPreempts) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.add(0, 10).priority = 1;
  seconds.add(3, 1).priority = 1;
  EXPECT_EQ(seconds.simulate("priority").jobs[0].preemptions, 0);
}

TEST(SimulateTrace, AResumedJobPaysForItsRestart) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.options.restart_s = 2;
  seconds.add(0, 10);
  seconds.add(3, 5).priority = 1;
  const TraceSimulation simulation = seconds.simulate("priority");
  EXPECT_NEAR(simulation.jobs[0].finished_s, 8 + 7 + 2, 1e-9);
  EXPECT_NEAR(simulation.jobs[0].restarting_s, 2, 1e-9);
  EXPECT_NEAR(simulation.window_tokens, 3 * 64, 1e-9);
}

TEST(SimulateTrace, ARestartTakesAsLongInCompanyAndTrainsNothing) {
  SecondsTrace seconds;
  seconds.options.instances = 2;
  seconds.options.most_jobs = 2;
  seconds.options.restart_s = 2;
  seconds.options.window_s = 100;
  for (int i = 0; i < 4; ++i) seconds.add(0, 10);
  seconds.add(4, 1).priority = 1;
  // Two jobs on each instance, 2 s a round. At 4 one of two finished steps goes; the newcomer's round ends at 6, and the one pushed out
  // comes back, restarts until 8, makes six steps until its neighbour is through at 20, and its last two alone.
  const TraceSimulation simulation = seconds.simulate("priority");
  int64_t pushed_out = 0;
  for (size_t j = 0; j < 4; ++j) {
    const JobOutcome& outcome = simulation.jobs[j];
    pushed_out += outcome.preemptions;
    EXPECT_NEAR(outcome.restarting_s, 2.0 * static_cast<double>(outcome.preemptions), 1e-9);
    EXPECT_NEAR(outcome.finished_s, outcome.preemptions > 0 ? 22 : 20, 1e-9) << j;
  }
  EXPECT_EQ(pushed_out, 1);
  EXPECT_NEAR(simulation.window_tokens, 41 * 64, 1e-6);
}

TEST(SimulateTrace, AJobThatStopsEarlyIsPlannedWithAllItsSteps) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.add(0, 1);
  seconds.add(0.5, 10).stops_after = 0.2;
  seconds.add(0.5, 5);
  // By what is known the second has ten seconds to go, and so the third goes first.
  const TraceSimulation simulation = seconds.simulate("shortest");
  EXPECT_DOUBLE_EQ(simulation.jobs[2].finished_s, 6);
  EXPECT_DOUBLE_EQ(simulation.jobs[1].finished_s, 8);
  EXPECT_EQ(simulation.jobs[1].steps, 2);
}

TEST(SimulateTrace, ADedicatedJobSharesWithNobody) {
  SecondsTrace seconds;
  seconds.options.instances = 2;
  seconds.add(0, 10).dedicated = true;
  for (int i = 0; i < 3; ++i) seconds.add(1, 4);
  const TraceSimulation simulation = seconds.simulate("fcfs");
  EXPECT_DOUBLE_EQ(simulation.jobs[0].finished_s, 10);
  for (size_t i = 1; i < 4; ++i) EXPECT_DOUBLE_EQ(simulation.jobs[i].finished_s, 13);
}

TEST(SimulateTrace, AJobThatNobodyLeavesRoomForGetsAnInstanceAfterFourHours) {
  for (const char* policy : {"fcfs", "multiplexing"}) {
    SecondsTrace seconds;
    seconds.rates = AddedRates(1, {1.0});  // together is better
    seconds.options.most_jobs = 2;
    for (int i = 0; i < 60; ++i) seconds.add(500 * i, 600);
    TraceJob dedicated{.name = "dedicated", .arrival_s = 505, .duration_s = 10, .dedicated = true};
    seconds.trace.jobs.insert(seconds.trace.jobs.begin() + 2, dedicated);
    const TraceSimulation simulation = seconds.simulate(policy);
    EXPECT_GT(simulation.jobs[2].started_s, 4 * 3600) << policy;
    EXPECT_LT(simulation.jobs[2].started_s, 20'000) << policy;
    EXPECT_GT(simulation.end_s, 50'000) << policy << ": there is work for so long";
  }
}

TEST(SimulateTrace, AJobThatWouldMissItsDeadlineHoldsUpNoOtherOfItsKind) {
  for (const char* policy : {"fcfs", "multiplexing"}) {
    SecondsTrace seconds;
    seconds.options.refuse_late = true;
    if (std::string(policy) == "multiplexing") seconds.rates = AddedRates(0.5, {0.5});
    seconds.add(0, 100);
    seconds.add(1, 10).deadline_s = 12;
    seconds.add(1, 5);
    const TraceSimulation simulation = seconds.simulate(policy);
    EXPECT_DOUBLE_EQ(simulation.jobs[2].started_s, 1) << policy;
    EXPECT_FALSE(simulation.jobs[1].refusal.empty()) << policy;
  }
}

TEST(SimulateTrace, FairShareLetsTheTenantThatHadLessGoFirst) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  for (int i = 0; i < 4; ++i) seconds.add(0, 10);
  seconds.add(1, 10).tenant = 1;
  EXPECT_DOUBLE_EQ(seconds.simulate("fcfs").jobs[4].started_s, 40);
  EXPECT_DOUBLE_EQ(seconds.simulate("fair").jobs[4].started_s, 10);
}

TEST(SimulateTrace, FairSharePushesOutATenantThatIsADayAhead) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.add(0, 300000);
  seconds.add(100000, 10).tenant = 1;
  const TraceSimulation simulation = seconds.simulate("fair");
  EXPECT_DOUBLE_EQ(simulation.jobs[1].started_s, 100000);
  EXPECT_EQ(simulation.jobs[0].preemptions, 1);
}

/// Nobody comes or leaves at that moment. A running job puts its tenant an hour ahead.
TEST(SimulateTrace, FairSharePushesOutATenantAsSoonAsItIsADayAhead) {
  SecondsTrace seconds;
  seconds.options.most_jobs = 1;
  seconds.add(0, 300000);
  seconds.add(1000, 10).tenant = 1;
  const TraceSimulation simulation = seconds.simulate("fair");
  EXPECT_NEAR(simulation.jobs[1].started_s, 23 * 3600, 0.01);
  EXPECT_EQ(simulation.jobs[0].preemptions, 1);
}

TEST(SimulateTrace, AdmissionByDeadlinesRefusesWhatWouldMakeANeighbourLate) {
  SecondsTrace seconds;
  seconds.options.refuse_late = true;
  seconds.add(0, 10).deadline_s = 12;
  seconds.add(1, 10).deadline_s = 15;  // beside the first, neither could keep it
  seconds.add(1, 3);                   // would make the first late, and has time
  const TraceSimulation simulation = seconds.simulate("fcfs");
  EXPECT_DOUBLE_EQ(simulation.jobs[0].finished_s, 10);
  EXPECT_THAT(simulation.jobs[1].refusal, testing::HasSubstr("deadline"));
  EXPECT_DOUBLE_EQ(simulation.jobs[2].started_s, 10);
}

TEST(SimulateTrace, RefusesWhatFitsNowhereAndSaysWhy) {
  SecondsTrace seconds;
  seconds.memory.limit_bytes = {10};
  seconds.memory.kinds[0].resident_bytes = {20};
  seconds.add(0, 10);
  const JobOutcome outcome = seconds.simulate("fcfs").jobs[0];
  EXPECT_THAT(outcome.refusal, testing::HasSubstr("memory of an instance, even alone: it takes "));
  EXPECT_TRUE(outcome.fits_nowhere);
}

TEST(MultiplexingAware, PlacesAJobWhereTheJointThroughputGainsMost) {
  // Kind 0 is all start-up, kind 1 all work: beside the former another job is nearly free.
  AddedRates rates(1.0, {0.1, 4.0});
  Trace trace;
  trace.kinds = {{1, 16, AdapterMethod::lora, 8}, {1, 64, AdapterMethod::lora, 8}};
  trace.tenants = {"a"};
  for (const int32_t kind : {1, 0, 0}) {
    TraceJob& job = trace.jobs.emplace_back();
    job.kind = kind;
    job.duration_s = 1000;
    job.arrival_s = static_cast<double>(trace.jobs.size());
  }
  const InstanceMemory memory = InstanceMemory::unlimited(2);
  const auto policy = make_policy("multiplexing", rates, 2);
  const TraceSimulation simulation = simulate_trace(trace, *policy, rates, memory, rates.alone(), {.instances = 2});
  std::map<int64_t, int64_t> place;
  for (const TraceEvent& event : simulation.events) {
    if (event.kind == TraceEventKind::start) place[event.job] = event.instance;
  }
  EXPECT_NE(place[1], place[0]);
  EXPECT_EQ(place[2], place[1]) << "beside the other small job";
}

TEST(MultiplexingAware, LeavesAJobWaitingThatWouldOnlySlowTheOthersDown) {
  // In these rates nothing is gained by sharing.
  SecondsTrace seconds;
  seconds.add(0, 100);
  seconds.add(1, 100);
  EXPECT_DOUBLE_EQ(seconds.simulate("multiplexing").jobs[1].started_s, 100);
  // But not for ever: when the queue is next looked at after four hours, it goes first.
  seconds.trace.jobs[0].duration_s = 1e6;
  seconds.add(20000, 10);
  EXPECT_DOUBLE_EQ(seconds.simulate("multiplexing").jobs[1].started_s, 20000);
}

TEST(MakePolicy, NamesThePoliciesForAnUnknownOne) {
  AddedRates rates(0, {1.0});
  try {
    make_policy("lottery", rates, 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("fcfs, priority, shortest, fair, deadline, multiplexing"));
  }
}

}  // namespace
}  // namespace cotune
