// Jobs with deadlines: within a priority the earlier one goes first, and jobs without one last, whoever came first.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule/memory/admission.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

using Jobs = std::vector<int32_t>;

PredictPeak added_up(std::map<int32_t, int64_t> bytes) {
  return [bytes = std::move(bytes)](std::span<const int32_t> jobs) {
    MemoryEstimate estimate;
    for (const int32_t job : jobs) estimate.adapters += bytes.at(job);
    return estimate;
  };
}

TEST(GoesBefore, IsByPriorityThenDeadlineThenArrivalThenIndex) {
  // From first to last; every pair is compared both ways.
  const std::vector<AdmissionCandidate> order = {
      {.job = 9, .priority = 2, .arrival = 8},
      {.job = 7, .priority = 1, .arrival = 9, .deadline = 1000},
      {.job = 1, .priority = 1, .arrival = 2, .deadline = 2000},
      {.job = 0, .priority = 1, .arrival = 3, .deadline = 2000},
      {.job = 2, .priority = 1, .arrival = 0},
      {.job = 3, .priority = 1, .arrival = 0},
      {.job = 5, .priority = 0, .arrival = 0, .deadline = 1},
  };
  for (size_t a = 0; a < order.size(); ++a) {
    for (size_t b = 0; b < order.size(); ++b) EXPECT_EQ(goes_before(order[a], order[b]), a < b) << a << " " << b;
  }
}

TEST(Admit, OfJobsOfOneSizeTakesTheFirstByPriorityDeadlineAndArrival) {
  int64_t by_deadline = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(mix_key(51, seed));
    std::vector<AdmissionCandidate> candidates;
    std::map<int32_t, int64_t> bytes;
    const int64_t count = dice.between(2, 12);
    for (int32_t job = 0; job < count; ++job) {
      candidates.push_back({.job = job, .priority = dice.between(0, 1), .arrival = dice.between(0, 3)});
      if (dice.between(0, 2) > 0) candidates.back().deadline = dice.between(1000, 1003);
      bytes[job] = 10;
    }
    const int64_t places = dice.between(1, count);
    const Admission admission = admit(candidates, 10 * places, added_up(bytes));
    ASSERT_EQ(admission.admitted.size(), static_cast<size_t>(places));
    Jobs jobs = admission.admitted;
    jobs.insert(jobs.end(), admission.waiting.begin(), admission.waiting.end());
    ASSERT_EQ(jobs.size(), candidates.size());
    for (size_t i = 1; i < jobs.size(); ++i) {
      const AdmissionCandidate& a = candidates[static_cast<size_t>(jobs[i - 1])];
      const AdmissionCandidate& b = candidates[static_cast<size_t>(jobs[i])];
      if (a.priority != b.priority) {
        EXPECT_GT(a.priority, b.priority) << seed;
      } else if (a.deadline != b.deadline) {
        EXPECT_LT(a.deadline, b.deadline) << seed;
        by_deadline += a.arrival > b.arrival ? 1 : 0;
      } else if (a.arrival != b.arrival) {
        EXPECT_LT(a.arrival, b.arrival) << seed;
      } else {
        EXPECT_LT(a.job, b.job) << seed;
      }
    }
  }
  EXPECT_GT(by_deadline, 100) << "jobs that came later went first";
}

TEST(Admit, FillsInBehindADeadlineThatDoesNotFit) {
  const std::vector<AdmissionCandidate> candidates = {
      {.job = 0, .arrival = 0}, {.job = 1, .arrival = 1, .deadline = 1000}, {.job = 2, .arrival = 2, .deadline = 2000}};
  const Admission admission = admit(candidates, 100, added_up({{0, 20}, {1, 60}, {2, 50}}));
  EXPECT_EQ(admission.admitted, (Jobs{1, 0})) << "job 2 does not fit beside job 1, job 0 does";
  EXPECT_EQ(admission.waiting, (Jobs{2}));
}

TEST(JobsToPutOut, AreOfOnePriorityThoseOfTheLatestDeadlineAndWithoutOneFirst) {
  // Jobs 0 to 2 run, job 0 has come last; job 3 waits.
  const auto out = [](std::vector<int64_t> deadlines, int64_t needed) {
    std::vector<AdmissionCandidate> candidates = {{.job = 0, .arrival = 5, .running = true},
                                                  {.job = 1, .arrival = 1, .running = true},
                                                  {.job = 2, .arrival = 2, .running = true},
                                                  {.job = 3, .priority = 1, .arrival = 9}};
    for (size_t i = 0; i < deadlines.size(); ++i) {
      if (deadlines[i] > 0) candidates[i].deadline = deadlines[i];
    }
    return jobs_to_put_out(candidates, 3, 30, added_up({{0, 10}, {1, 10}, {2, 10}, {3, needed}}));
  };
  EXPECT_EQ(out({0, 0, 0}, 10), (Jobs{0})) << "the youngest";
  EXPECT_EQ(out({1000, 2000, 3000}, 10), (Jobs{2}));
  EXPECT_EQ(out({1000, 0, 3000}, 10), (Jobs{1})) << "has no deadline";
  EXPECT_EQ(out({1000, 0, 3000}, 20), (Jobs{1, 2}));
  EXPECT_EQ(out({1000, 1000, 1000}, 10), (Jobs{0}));
}

TEST(JobToPause, HasTheLatestDeadlineOfTheLowestPriority) {
  std::vector<AdmissionCandidate> candidates = {{.job = 0, .priority = 1, .arrival = 9, .running = true},
                                                {.job = 1, .arrival = 2, .running = true, .deadline = 2000},
                                                {.job = 2, .arrival = 5, .running = true, .deadline = 1000},
                                                {.job = 3, .arrival = 8}};
  EXPECT_EQ(job_to_pause(candidates), 1);
  candidates[1].deadline = 500;
  EXPECT_EQ(job_to_pause(candidates), 2);
}

}  // namespace
}  // namespace cotune
