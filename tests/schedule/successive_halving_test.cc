#include "schedule/successive_halving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace cotune {
namespace {

constexpr double nan_loss = std::numeric_limits<double>::quiet_NaN();

HalvingSpec halving_from(int64_t first_steps, int64_t factor) {
  HalvingSpec halving;
  halving.first_steps = first_steps;
  halving.factor = factor;
  return halving;
}

/// The rule from scratch: the loss is none above the keep-th lowest of all.
bool is_among_the_best(std::vector<double> losses, double own, int64_t keep) {
  if (std::isnan(own)) return false;
  std::erase_if(losses, [](double loss) { return std::isnan(loss); });
  std::sort(losses.begin(), losses.end());
  return own <= losses[std::min(losses.size(), static_cast<size_t>(keep)) - 1];
}

TEST(RungSteps, GrowByTheFactorAndEndBeforeTheLastStep) {
  EXPECT_EQ(rung_steps(halving_from(50, 3), 1000), (std::vector<int64_t>{50, 150, 450}));
  EXPECT_EQ(rung_steps(halving_from(50, 3), 450), (std::vector<int64_t>{50, 150}));
  EXPECT_EQ(rung_steps(halving_from(50, 3), 50), std::vector<int64_t>{});
  EXPECT_EQ(rung_steps(HalvingSpec{}, 1000), std::vector<int64_t>{});
  HalvingSpec share;
  share.first_fraction = 0.1;
  share.factor = 2;
  EXPECT_EQ(rung_steps(share, 100), (std::vector<int64_t>{10, 20, 40, 80}));
  EXPECT_EQ(rung_steps(share, 3), (std::vector<int64_t>{1, 2}));
}

TEST(RungSteps, DoNotOverflow) {
  const std::vector<int64_t> steps = rung_steps(halving_from(1, 1000), 1'000'000'000);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 1000, 1'000'000}));
  EXPECT_EQ(rung_steps(halving_from(999'999'999, 1000), 1'000'000'000), std::vector<int64_t>{999'999'999});
}

TEST(CandidateScore, OrdersTiesByTheSecondValueAndPutsNaNLast) {
  EXPECT_TRUE((CandidateScore{1, 0}).is_better_than({2, 0}));
  EXPECT_TRUE((CandidateScore{-0.5, 1}).is_better_than({-0.5, 2}));
  EXPECT_FALSE((CandidateScore{1, 0}).is_better_than({1, 0}));
  EXPECT_TRUE((CandidateScore{1e300, 0}).is_better_than({nan_loss, 0}));
  EXPECT_FALSE((CandidateScore{nan_loss, 0}).is_better_than({nan_loss, 0}));
}

/// Candidates come to one rung in groups; what is decided equals the rule from scratch.
TEST(AsynchronousHalving, KeepsTheBestShareOfThoseThatHaveComeSoFar) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto factor = static_cast<int64_t>(2 + uniform_below(seed, 0, 4));
    SuccessiveHalving halving(factor, HalvingMode::asynchronous);
    std::vector<double> come;
    int32_t next = 0;
    for (uint64_t group = 0; group < 8; ++group) {
      std::vector<double> losses(1 + uniform_below(seed, 100 + group, 5));
      const int32_t first = next;
      for (size_t i = 0; i < losses.size(); ++i) {
        const uint64_t draw = uniform_below(seed, 1000 + static_cast<uint64_t>(next), 12);  // many ties
        losses[i] = draw == 0 ? nan_loss : static_cast<double>(draw);
        halving.add(next, 2);
        halving.arrive(next++, 0, {losses[i], 0});
      }
      come.insert(come.end(), losses.begin(), losses.end());
      const std::vector<RungJudgement> judgements = halving.judge();
      ASSERT_EQ(judgements.size(), losses.size());
      const auto keep = std::max<int64_t>(1, std::ssize(come) / factor);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_EQ(judgements[i].candidate, first + static_cast<int32_t>(i));
        EXPECT_EQ(judgements[i].of, std::ssize(come));
        EXPECT_EQ(judgements[i].goes_on, is_among_the_best(come, losses[i], keep)) << "seed " << seed;
      }
    }
  }
}

TEST(AsynchronousHalving, LetsTheFirstToComeGoOnAndNeverOneWithoutANumber) {
  SuccessiveHalving halving(3, HalvingMode::asynchronous);
  for (int32_t candidate = 0; candidate < 3; ++candidate) halving.add(candidate, 1);
  halving.arrive(0, 0, {nan_loss, 0});
  EXPECT_FALSE(halving.judge().front().goes_on);
  halving.arrive(1, 0, {5, 0});
  EXPECT_EQ(halving.judge(), (std::vector<RungJudgement>{{1, 0, 1, 2, true}}));
  halving.arrive(2, 0, {5, 0});  // as good
  EXPECT_EQ(halving.judge(), (std::vector<RungJudgement>{{2, 0, 1, 3, true}}));
  EXPECT_TRUE(halving.judge().empty());
}

/// All come together: one rung after the other keeps exactly the best 1/factor, and the best of all is never stopped.
TEST(AsynchronousHalving, OfCandidatesInStepIsSuccessiveHalving) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    constexpr int32_t count = 27;
    SuccessiveHalving halving(3, HalvingMode::asynchronous);
    std::vector<int32_t> alive(count);
    std::iota(alive.begin(), alive.end(), 0);
    for (const int32_t candidate : alive) halving.add(candidate, 3);
    const auto loss = [&](int32_t candidate) { return uniform(seed, static_cast<uint64_t>(candidate)); };
    for (int64_t rung = 0; rung < 3; ++rung) {
      for (const int32_t candidate : alive) halving.arrive(candidate, rung, {loss(candidate), 0});
      std::vector<int32_t> next;
      for (const RungJudgement& judgement : halving.judge()) {
        if (judgement.goes_on) next.push_back(judgement.candidate);
      }
      std::sort(alive.begin(), alive.end(), [&](int32_t a, int32_t b) { return loss(a) < loss(b); });
      alive.resize(alive.size() / 3);
      std::sort(alive.begin(), alive.end());
      EXPECT_EQ(next, alive);
    }
    EXPECT_EQ(alive.size(), 1U);
  }
}

TEST(SynchronousHalving, WaitsForAllThatMayStillCome) {
  SuccessiveHalving halving(2, HalvingMode::synchronous);
  for (int32_t candidate = 0; candidate < 4; ++candidate) halving.add(candidate, 2);
  halving.arrive(0, 0, {1, 0});
  halving.arrive(1, 0, {2, 0});
  EXPECT_TRUE(halving.judge().empty());
  EXPECT_TRUE(halving.waits(0));
  halving.arrive(2, 0, {3, 0});
  halving.leave(3);  // it failed
  const std::vector<RungJudgement> judgements = halving.judge();
  ASSERT_EQ(judgements.size(), 3U);
  EXPECT_TRUE(judgements[0].goes_on);
  EXPECT_FALSE(judgements[1].goes_on);
  EXPECT_FALSE(halving.waits(0));
  halving.arrive(0, 1, {1, 0});
  EXPECT_EQ(halving.judge(), (std::vector<RungJudgement>{{0, 1, 1, 1, true}}));  // the others have been stopped
}

/// Whatever the order in which candidates come, with a few running at a time: the same ones go on.
TEST(SynchronousHalving, DoesNotDependOnTheOrder) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    constexpr int64_t count = 20, rungs = 3;
    const auto loss = [](int32_t candidate, int64_t rung) { return uniform(mix_key(7, static_cast<uint64_t>(candidate)), static_cast<uint64_t>(rung)); };
    std::vector<std::vector<int32_t>> gone_on(rungs);
    SuccessiveHalving halving(2, HalvingMode::synchronous);
    for (int32_t candidate = 0; candidate < count; ++candidate) halving.add(candidate, rungs);
    std::vector<std::pair<int32_t, int64_t>> ready;
    for (const int64_t candidate : permutation(seed, count)) ready.emplace_back(static_cast<int32_t>(candidate), 0);
    for (uint64_t turn = 0; !ready.empty(); ++turn) {
      const auto next = ready.begin() + static_cast<std::ptrdiff_t>(uniform_below(seed, turn, ready.size()));
      const auto [candidate, rung] = *next;
      ready.erase(next);
      halving.arrive(candidate, rung, {loss(candidate, rung), 0});
      for (const RungJudgement& judgement : halving.judge()) {
        if (!judgement.goes_on) continue;
        gone_on[static_cast<size_t>(judgement.rung)].push_back(judgement.candidate);
        if (judgement.rung + 1 < rungs) ready.emplace_back(judgement.candidate, judgement.rung + 1);
      }
    }
    EXPECT_EQ(gone_on[0].size(), 10U);
    EXPECT_EQ(gone_on[1].size(), 5U);
    EXPECT_EQ(gone_on[2].size(), 2U);
    std::vector<int32_t> best(count);
    std::iota(best.begin(), best.end(), 0);
    std::sort(best.begin(), best.end(), [&](int32_t a, int32_t b) { return loss(a, 0) < loss(b, 0); });
    best.resize(10);
    std::sort(best.begin(), best.end());
    std::sort(gone_on[0].begin(), gone_on[0].end());
    EXPECT_EQ(gone_on[0], best);
  }
}

/// Stopped and taken up again at any time, from what was decided, a search goes on as one that was never stopped.
TEST(SuccessiveHalving, GoesOnFromWhatWasDecidedBefore) {
  for (const HalvingMode mode : {HalvingMode::asynchronous, HalvingMode::synchronous}) {
    for (uint64_t stop_at = 0; stop_at < 40; ++stop_at) {
      constexpr int32_t count = 9;
      const auto loss = [](int32_t candidate, int64_t rung) { return uniform(static_cast<uint64_t>(candidate), static_cast<uint64_t>(rung)); };
      const auto run = [&](bool stops) {
        SuccessiveHalving halving(3, mode);
        std::vector<RungJudgement> decided;
        std::vector<int64_t> next(count, 0);
        std::vector<bool> over(count, false);
        for (int32_t candidate = 0; candidate < count; ++candidate) halving.add(candidate, 2);
        uint64_t turn = 0;
        for (bool any = true; any;) {
          any = false;
          for (int32_t candidate = 0; candidate < count; ++candidate) {
            if (over[static_cast<size_t>(candidate)] || halving.waits(candidate) || next[static_cast<size_t>(candidate)] == 2) continue;
            any = true;
            if (stops && turn++ == stop_at) {
              SuccessiveHalving again(3, mode);
              for (int32_t each = 0; each < count; ++each) again.add(each, 2);
              for (const RungJudgement& judgement : decided) again.restore(judgement, {loss(judgement.candidate, judgement.rung), 0});
              for (int32_t each = 0; each < count; ++each) {
                const int64_t rung = next[static_cast<size_t>(each)] - 1;
                if (halving.waits(each)) again.arrive(each, rung, {loss(each, rung), 0});
              }
              halving = again;
            }
            const int64_t rung = next[static_cast<size_t>(candidate)]++;
            halving.arrive(candidate, rung, {loss(candidate, rung), 0});
            for (const RungJudgement& judgement : halving.judge()) {
              decided.push_back(judgement);
              if (!judgement.goes_on) over[static_cast<size_t>(judgement.candidate)] = true;
            }
          }
        }
        return decided;
      };
      EXPECT_EQ(run(true), run(false));
    }
  }
}

/// Learning curves that fall to where their quality says, with noise that fades: the one that is best in the end is found, for a
/// third of the steps that all would take.
TEST(SuccessiveHalving, FindsTheBestLearningCurveForAFractionOfTheSteps) {
  int found = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    constexpr int32_t count = 27;
    constexpr int64_t total = 270;
    const std::vector<int64_t> rungs = rung_steps(halving_from(10, 3), total);
    const auto quality = [&](int32_t candidate) { return uniform(seed, static_cast<uint64_t>(candidate)); };
    const auto loss = [&](int32_t candidate, int64_t step) {
      const auto noise = 0.1 * normal(mix_key(seed, 99), static_cast<uint64_t>(candidate * 1000 + step)) / std::sqrt(static_cast<double>(step));
      return 1 + quality(candidate) + std::exp(-static_cast<double>(step) / 30) + noise;
    };
    SuccessiveHalving halving(3, HalvingMode::synchronous);
    for (int32_t candidate = 0; candidate < count; ++candidate) halving.add(candidate, std::ssize(rungs));
    std::vector<int32_t> alive(count);
    std::iota(alive.begin(), alive.end(), 0);
    int64_t steps = 0;
    for (size_t rung = 0; rung < rungs.size(); ++rung) {
      std::vector<int32_t> next;
      for (const int32_t candidate : alive) {
        steps += rungs[rung] - (rung > 0 ? rungs[rung - 1] : 0);
        halving.arrive(candidate, static_cast<int64_t>(rung), {loss(candidate, rungs[rung]), 0});
      }
      for (const RungJudgement& judgement : halving.judge()) {
        if (judgement.goes_on) next.push_back(judgement.candidate);
      }
      alive = next;
    }
    steps += static_cast<int64_t>(alive.size()) * (total - rungs.back());
    int32_t best = 0;
    for (int32_t candidate = 1; candidate < count; ++candidate) {
      if (quality(candidate) < quality(best)) best = candidate;
    }
    found += std::count(alive.begin(), alive.end(), best) > 0 ? 1 : 0;
    EXPECT_LT(steps, count * total / 3);
  }
  EXPECT_GE(found, 17);
}

}  // namespace
}  // namespace cotune
