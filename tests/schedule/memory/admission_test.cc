#include "schedule/memory/admission.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "schedule/random_batches.h"

namespace cotune {
namespace {

/// Static bytes add up; activations are shared: the largest counts.
PredictPeak simulated(const std::vector<std::pair<int64_t, int64_t>>& static_and_activation, int64_t weights) {
  return [=](std::span<const int32_t> jobs) {
    MemoryEstimate estimate{.weights = weights};
    for (int32_t job : jobs) {
      estimate.adapters += static_and_activation[static_cast<size_t>(job)].first;
      estimate.activations = std::max(estimate.activations, static_and_activation[static_cast<size_t>(job)].second);
    }
    return estimate;
  };
}

TEST(Admit, GoesByPriorityThenArrivalWithBackfill) {
  const std::vector<AdmissionCandidate> candidates = {
      {.job = 0, .priority = 0, .arrival = 0}, {.job = 1, .priority = 5, .arrival = 3},
      {.job = 2, .priority = 5, .arrival = 2}, {.job = 3, .priority = 0, .arrival = 1}};
  const Admission admission = admit(candidates, 100, simulated({{60, 0}, {40, 0}, {30, 0}, {20, 0}}, 10));
  EXPECT_EQ(admission.admitted, (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(admission.waiting, (std::vector<int32_t>{0}));
}

TEST(Admit, GoesByDeadlineWithinAPriorityAndLastWithoutOne) {
  const std::vector<AdmissionCandidate> candidates = {
      {.job = 0, .arrival = 0}, {.job = 1, .arrival = 1, .deadline = 2000}, {.job = 2, .arrival = 2, .deadline = 1000},
      {.job = 3, .priority = 1, .arrival = 3, .deadline = 9000}};
  const auto predict = simulated({{30, 0}, {30, 0}, {30, 0}, {30, 0}}, 0);
  const Admission admission = admit(candidates, 60, predict);
  EXPECT_EQ(admission.admitted, (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(admission.waiting, (std::vector<int32_t>{1, 0}));
}

TEST(Admit, KeepsWhatRuns) {
  const std::vector<AdmissionCandidate> candidates = {{.job = 0, .priority = 0, .running = true},
                                                      {.job = 1, .priority = 9}};
  const Admission admission = admit(candidates, 100, simulated({{60, 0}, {60, 0}}, 0));
  EXPECT_EQ(admission.admitted, (std::vector<int32_t>{0}));
  EXPECT_EQ(admission.waiting, (std::vector<int32_t>{1}));
}

TEST(JobsToPutOut, AreTheLastOfLowerPriorityAndAsFewAsMakeRoom) {
  // Job 5 waits; the others run.
  const auto out = [](std::vector<int64_t> needs, std::vector<int64_t> priorities, int64_t limit) {
    std::vector<AdmissionCandidate> candidates;
    std::vector<std::pair<int64_t, int64_t>> sizes;
    for (int32_t job = 0; job < 6; ++job) {
      const auto i = static_cast<size_t>(job);
      candidates.push_back({.job = job, .priority = priorities[i], .arrival = job, .running = job < 5});
      sizes.push_back({needs[i], 0});
    }
    return jobs_to_put_out(candidates, 5, limit, simulated(sizes, 0));
  };
  using Jobs = std::vector<int32_t>;
  EXPECT_EQ(out({10, 10, 10, 10, 10, 10}, {0, 0, 0, 0, 0, 1}, 50), (Jobs{4}));
  EXPECT_EQ(out({10, 10, 10, 10, 10, 20}, {0, 3, 0, 0, 2, 2}, 50), (Jobs{3, 2})) << "equal priority never makes way";
  EXPECT_EQ(out({10, 10, 10, 40, 10, 40}, {0, 0, 0, 0, 0, 1}, 80), (Jobs{3})) << "the small one would not have been enough";
  EXPECT_EQ(out({10, 10, 10, 10, 10, 20}, {2, 2, 2, 2, 0, 1}, 50), Jobs{}) << "one that leaves no room for it stays";
  EXPECT_EQ(out({10, 10, 10, 10, 10, 10}, {1, 1, 1, 1, 1, 1}, 50), Jobs{});
  EXPECT_EQ(out({10, 10, 10, 10, 10, 90}, {0, 0, 0, 0, 0, 1}, 50), Jobs{}) << "does not fit alone";
}

TEST(Admit, RefusesWhatCanNeverFitAndNamesTheTerm) {
  const std::vector<AdmissionCandidate> candidates = {{.job = 0}, {.job = 1}};
  const Admission admission = admit(candidates, 100 << 20, simulated({{10, 200 << 20}, {20, 0}}, 0));
  EXPECT_EQ(admission.admitted, (std::vector<int32_t>{1}));
  ASSERT_EQ(admission.refused.size(), 1u);
  EXPECT_EQ(admission.refused[0].term, "activations");
  EXPECT_EQ(admission.refused[0].to_string(),
            "needs 200.0 MiB by itself, the limit is 100.0 MiB; it is exceeded at activations");
  EXPECT_EQ(admission.refused[0].to_string(512 << 20),
            "needs 200.0 MiB by itself, model included; the limit of 512.0 MiB leaves 100.0 MiB beside the program itself; "
            "it is exceeded at activations");
}

TEST(Admit, NeverExceedsTheLimitAndLeavesNobodyWaitingWhoFits) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(mix_key(50, seed));
    std::vector<AdmissionCandidate> candidates;
    std::vector<std::pair<int64_t, int64_t>> needs;
    const int64_t count = dice.between(1, 20);
    for (int32_t job = 0; job < count; ++job) {
      candidates.push_back({.job = job, .priority = dice.between(0, 2), .arrival = dice.between(0, 9)});
      needs.push_back({dice.between(1, 40), dice.between(0, 60)});
    }
    const int64_t limit = 120;
    const PredictPeak predict = simulated(needs, 20);
    const Admission admission = admit(candidates, limit, predict);
    EXPECT_EQ(admission.admitted.size() + admission.waiting.size() + admission.refused.size(), candidates.size());
    if (!admission.admitted.empty()) {
      EXPECT_LE(predict(admission.admitted).total(), limit);
    }
    for (int32_t job : admission.waiting) {
      std::vector<int32_t> with = admission.admitted;
      with.push_back(job);
      EXPECT_GT(predict(with).total(), limit) << "seed " << seed;
      // Among jobs of one size the order is never violated: who was admitted in its place goes before it or is smaller.
      const AdmissionCandidate& waiting = candidates[static_cast<size_t>(job)];
      for (int32_t other : admission.admitted) {
        const AdmissionCandidate& admitted = candidates[static_cast<size_t>(other)];
        if (needs[static_cast<size_t>(other)] != needs[static_cast<size_t>(job)]) continue;
        EXPECT_GE(std::tuple(admitted.priority, -admitted.arrival), std::tuple(waiting.priority, -waiting.arrival));
      }
    }
    for (const AdmissionRefusal& refusal : admission.refused) {
      EXPECT_GT(predict(std::array{refusal.job}).total(), limit);
      EXPECT_FALSE(refusal.term.empty());
    }
  }
}

TEST(JobToPause, IsTheYoungestOfTheLowestPriority) {
  EXPECT_EQ(job_to_pause(std::vector<AdmissionCandidate>{{.job = 0, .priority = 1, .arrival = 9, .running = true},
                                                         {.job = 1, .priority = 0, .arrival = 2, .running = true},
                                                         {.job = 2, .priority = 0, .arrival = 5, .running = true},
                                                         {.job = 3, .priority = 0, .arrival = 8}}),
            2);
  EXPECT_EQ(job_to_pause({}), -1);
}

}  // namespace
}  // namespace cotune
