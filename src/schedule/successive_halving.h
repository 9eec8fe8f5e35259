/// Successive halving: which candidates of a search go on past a rung. Pure decisions; nothing here knows losses' meaning, time
/// or memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "jobs/sweep.h"

namespace cotune {

/// Lower is better. Of equal values the lower `tie` is better.
struct CandidateScore {
  double value = 0, tie = 0;
  /// NaN in either makes it worse than every number.
  bool is_better_than(const CandidateScore& other) const;
  bool is_a_number() const;
};

/// The steps of the rungs below total_steps, ascending: first, first·factor, first·factor², … first: HalvingSpec::first_steps, or
/// first_fraction of the total, rounded, at least 1.
std::vector<int64_t> rung_steps(const HalvingSpec& halving, int64_t total_steps);

/// What was decided of a candidate at a rung.
struct RungJudgement {
  int32_t candidate = 0;
  int64_t rung = 0;        ///< counted from 0
  int64_t rank = 0;        ///< 1: none was better; equal scores have equal ranks
  int64_t of = 0;          ///< candidates whose scores it was compared with, its own included
  bool goes_on = false;
  bool operator==(const RungJudgement&) const = default;
};

/// Asynchronous (ASHA in its stopping form: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020): a
/// candidate that comes to a rung goes on when it is among the best floor(n/factor), at least one, of the n that have come there
/// so far, those that come in the same round included; and never when its score is no number. Early ones have few to be compared
/// with, so more go on than the best 1/factor of all; nobody waits.
///
/// Synchronous (Jamieson & Talwalkar, "Non-stochastic Best Arm Identification", AISTATS 2016): it waits at the rung until every
/// candidate that may still come has come, and the best floor(n/factor) of all n go on.
class SuccessiveHalving {
 public:
  SuccessiveHalving(int64_t factor, HalvingMode mode) : factor_(factor), mode_(mode) {}

  /// A candidate that will come to so many rungs, unless it is stopped or leaves.
  void add(int32_t candidate, int64_t rung_count);
  /// It has come to the rung. Once per candidate and rung, in order of the rungs.
  void arrive(int32_t candidate, int64_t rung, CandidateScore score);
  /// It has ended: it is not waited for. Its scores count on.
  void leave(int32_t candidate);
  /// What can be decided now of those that have arrived, by rung and candidate.
  std::vector<RungJudgement> judge();
  /// Takes up what was decided in an earlier run, with the score.
  void restore(const RungJudgement& judgement, CandidateScore score);

  std::optional<RungJudgement> judgement(int32_t candidate, int64_t rung) const;
  /// Has arrived at a rung and is not judged yet.
  bool waits(int32_t candidate) const;

 private:
  struct Candidate {
    int64_t rung_count = 0;
    int64_t next_rung = 0;  ///< that it has not come to
    bool ended = false;     ///< or was stopped
    std::map<int64_t, RungJudgement> judgements;
  };
  struct Rung {
    std::map<int32_t, CandidateScore> scores;
    std::vector<int32_t> waiting;  ///< arrived, not judged
  };
  bool may_still_come(int64_t rung) const;

  int64_t factor_;
  HalvingMode mode_;
  std::map<int32_t, Candidate> candidates_;
  std::map<int64_t, Rung> rungs_;
};

}  // namespace cotune
