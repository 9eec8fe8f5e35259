#include "schedule/successive_halving.h"

#include <algorithm>
#include <cmath>

namespace cotune {

bool CandidateScore::is_a_number() const { return !std::isnan(value) && !std::isnan(tie); }

bool CandidateScore::is_better_than(const CandidateScore& other) const {
  if (!is_a_number() || !other.is_a_number()) return is_a_number() && !other.is_a_number();
  return value != other.value ? value < other.value : tie < other.tie;
}

std::vector<int64_t> rung_steps(const HalvingSpec& halving, int64_t total_steps) {
  std::vector<int64_t> steps;
  if (!halving.is_on()) return steps;
  int64_t step = halving.first_steps;
  if (step == 0) step = std::max<int64_t>(1, std::llround(halving.first_fraction * static_cast<double>(total_steps)));
  for (; step < total_steps; step *= halving.factor) {
    steps.push_back(step);
    if (step > total_steps / halving.factor) break;
  }
  return steps;
}

void SuccessiveHalving::add(int32_t candidate, int64_t rung_count) { candidates_[candidate].rung_count = rung_count; }

void SuccessiveHalving::arrive(int32_t candidate, int64_t rung, CandidateScore score) {
  Candidate& own = candidates_.at(candidate);
  own.next_rung = std::max(own.next_rung, rung + 1);
  rungs_[rung].scores[candidate] = score;
  rungs_[rung].waiting.push_back(candidate);
}

void SuccessiveHalving::leave(int32_t candidate) {
  candidates_.at(candidate).ended = true;
  for (auto& [step, rung] : rungs_) std::erase(rung.waiting, candidate);
}

bool SuccessiveHalving::may_still_come(int64_t rung) const {
  return std::any_of(candidates_.begin(), candidates_.end(), [rung](const auto& entry) {
    const Candidate& candidate = entry.second;
    return !candidate.ended && candidate.next_rung <= rung && candidate.rung_count > rung;
  });
}

std::vector<RungJudgement> SuccessiveHalving::judge() {
  std::vector<RungJudgement> judgements;
  for (auto& [place, rung] : rungs_) {
    if (mode_ == HalvingMode::synchronous && may_still_come(place)) continue;
    std::sort(rung.waiting.begin(), rung.waiting.end());
    const auto count = std::ssize(rung.scores);
    for (const int32_t candidate : rung.waiting) {
      const CandidateScore& own = rung.scores.at(candidate);
      const auto better = std::count_if(rung.scores.begin(), rung.scores.end(), [&](const auto& other) { return other.second.is_better_than(own); });
      RungJudgement judgement{candidate, place, better + 1, count};
      judgement.goes_on = own.is_a_number() && judgement.rank <= std::max<int64_t>(1, count / factor_);
      judgements.push_back(judgement);
    }
    rung.waiting.clear();
    for (const RungJudgement& judgement : judgements) {
      Candidate& own = candidates_.at(judgement.candidate);
      own.judgements[judgement.rung] = judgement;
      own.ended = own.ended || !judgement.goes_on;
    }
  }
  return judgements;
}

void SuccessiveHalving::restore(const RungJudgement& judgement, CandidateScore score) {
  Candidate& own = candidates_[judgement.candidate];
  own.next_rung = std::max(own.next_rung, judgement.rung + 1);
  own.judgements[judgement.rung] = judgement;
  own.ended = own.ended || !judgement.goes_on;
  rungs_[judgement.rung].scores[judgement.candidate] = score;
}

std::optional<RungJudgement> SuccessiveHalving::judgement(int32_t candidate, int64_t rung) const {
  const auto own = candidates_.find(candidate);
  if (own == candidates_.end()) return std::nullopt;
  const auto found = own->second.judgements.find(rung);
  return found == own->second.judgements.end() ? std::nullopt : std::optional(found->second);
}

bool SuccessiveHalving::waits(int32_t candidate) const {
  return std::any_of(rungs_.begin(), rungs_.end(), [candidate](const auto& rung) {
    return std::count(rung.second.waiting.begin(), rung.second.waiting.end(), candidate) > 0;
  });
}

}  // namespace cotune
