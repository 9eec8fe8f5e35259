#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace cotune {
namespace {

struct Candidate {
  double weight;  ///< exp((logit - highest) / temperature)
  int32_t id;
};

/// Whether `left` is less likely: the order of a heap with the likeliest candidate on top.
bool less_likely(const Candidate& left, const Candidate& right) {
  return left.weight != right.weight ? left.weight < right.weight : left.id > right.id;
}

double total_weight(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

void keep_likeliest(std::vector<Candidate>& candidates, int64_t count) {
  if (count <= 0 || count >= static_cast<int64_t>(candidates.size())) return;
  const auto likelier = [](const Candidate& left, const Candidate& right) { return less_likely(right, left); };
  std::nth_element(candidates.begin(), candidates.begin() + count, candidates.end(), likelier);
  candidates.resize(static_cast<size_t>(count));
}

/// A heap gives the likeliest candidates one by one: few are needed of a large vocabulary.
void keep_probability(std::vector<Candidate>& candidates, double share) {
  if (share >= 1) return;
  const double wanted = share * total_weight(candidates);
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto rest = candidates.end();
  double kept = 0;
  do {
    std::pop_heap(candidates.begin(), rest, less_likely);
    kept += (--rest)->weight;
  } while (kept < wanted && rest != candidates.begin());
  candidates.erase(candidates.begin(), rest);
}

void keep_near_likeliest(std::vector<Candidate>& candidates, double share) {
  if (share <= 0) return;
  double highest = 0;
  for (const Candidate& candidate : candidates) highest = std::max(highest, candidate.weight);
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < share * highest; });
}

std::vector<double> penalised(std::span<const double> logits, double penalty, std::span<const int32_t> sequence) {
  std::vector<double> changed(logits.begin(), logits.end());
  for (const int32_t token : sequence) {
    const auto id = static_cast<size_t>(token);
    changed[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
  }
  return changed;
}

}  // namespace

uint64_t answer_seed(uint64_t seed, uint64_t prompt, uint64_t sample) { return mix_key(mix_key(mix_key(0, seed), prompt), sample); }

std::optional<int32_t> sample_token(std::span<const double> logits, const SamplingSettings& settings, uint64_t position,
                                    std::span<const int32_t> sequence) {
  std::vector<double> changed;
  if (settings.repetition_penalty != 1) {
    changed = penalised(logits, settings.repetition_penalty, sequence);
    logits = changed;
  }
  double highest = -std::numeric_limits<double>::infinity();
  int32_t likeliest = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return std::nullopt;
    if (logits[i] > highest) {
      highest = logits[i];
      likeliest = static_cast<int32_t>(i);
    }
  }
  if (!std::isfinite(highest)) return std::nullopt;
  if (settings.temperature <= 0) return likeliest;

  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({std::exp((logits[i] - highest) / settings.temperature), static_cast<int32_t>(i)});
  }
  keep_likeliest(candidates, settings.top_k);
  keep_probability(candidates, settings.top_p);
  keep_near_likeliest(candidates, settings.min_p);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& left, const Candidate& right) { return left.id < right.id; });

  const double drawn = uniform(mix64(settings.seed), position) * total_weight(candidates);
  double passed = 0;
  int32_t last = likeliest;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;
    last = candidate.id;
    passed += candidate.weight;
    if (drawn < passed) break;
  }
  return last;
}

}  // namespace cotune
