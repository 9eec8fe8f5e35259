#include "schedule/memory/learned_peak.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "schedule/memory/peak_memory.h"
#include "schedule/memory/resident_memory.h"
#include "schedule/memory/worst_case.h"

namespace cotune {
namespace {

int64_t bytes_of_rounds(const MemoryEstimate& estimate) {
  return estimate.activations + estimate.chain_kv + estimate.workspace + estimate.logits;
}

void correct(MemoryEstimate& estimate, int64_t correction) {
  for (int64_t* term : {&estimate.activations, &estimate.workspace, &estimate.chain_kv, &estimate.logits}) {
    const int64_t taken = std::max(correction, -*term);
    *term += taken;
    correction -= taken;
  }
}

}  // namespace

const LearnedPeak::Learned* LearnedPeak::known(int32_t job, const PackingPolicy& policy) const {
  const auto found = jobs_.find(job);
  if (policy != policy_ || found == jobs_.end() || found->second.samples.sample_count() < min_samples) return nullptr;
  return &found->second;
}

std::optional<int64_t> LearnedPeak::correction(std::span<const JobFootprint> running, const PackingPolicy& policy) const {
  if (running.empty() || policy != policy_) return std::nullopt;
  const WorstCase worst = worst_case_on_ranks(config_, running, policy, facts_);
  double learned = 0;
  for (const JobFootprint& job : running) {
    const Learned* const own = known(job.job, policy);
    if (own == nullptr || 2 * own->most_alive < worst.alive_tokens || 2 * own->most_chain < worst.chain_tokens) return std::nullopt;
    int64_t alive = worst.alive_tokens, chain = worst.chain_tokens;
    if (facts_.ranks > 1) {  // whose orders may keep more for rows that are chains, and cut steps into more microbatches than the budget asks for
      alive = std::max(alive, own->most_needed);
      chain = std::max(chain, own->most_chain);
    }
    learned = std::max(learned, own->fit.predict_with_margin(static_cast<double>(alive), static_cast<double>(chain)));
  }
  const auto held = static_cast<int64_t>(std::ceil(learned * facts_.fragmentation));
  return held - bytes_of_rounds(predict_rounds(config_, running, policy, facts_, RoundKind::training));
}

MemoryEstimate LearnedPeak::predict(std::span<const JobFootprint> jobs, std::span<const JobFootprint> running,
                                    const PackingPolicy& policy) const {
  return with_correction(jobs, policy, correction(running, policy));
}

MemoryEstimate LearnedPeak::with_correction(std::span<const JobFootprint> jobs, const PackingPolicy& policy, std::optional<int64_t> learned) const {
  if (!learned) return predict_memory(config_, jobs, policy, facts_);
  MemoryEstimate estimate = predict_rounds(config_, jobs, policy, facts_, RoundKind::training);
  if (!facts_.replicas.empty() && facts_.ranks_are_processes()) {
    // The bound is of the dearest process; once what rounds take is another, the dearest may be one that holds more between them.
    estimate.adapters = estimate.gradients = estimate.optimizer = 0;
    for (const JobFootprint& job : jobs) {
      const MemoryEstimate resident = resident_bytes(config_, job, facts_);
      estimate.adapters += resident.adapters;
      estimate.gradients += resident.gradients;
      estimate.optimizer += resident.optimizer;
    }
  }
  correct(estimate, *learned);
  return at_worst_moment(estimate, config_, jobs, policy, facts_);
}

std::optional<RoundPeak> LearnedPeak::expect(std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                                             const WorstCase& alive) const {
  double learned = 0;
  for (const JobFootprint& job : jobs) {
    const Learned* const own = known(job.job, policy);
    if (own == nullptr) return std::nullopt;
    learned = std::max(learned, own->fit.predict(static_cast<double>(alive.alive_tokens), static_cast<double>(alive.chain_tokens)));
  }
  MemoryFacts alive_facts = facts_;
  alive_facts.fragmentation = 1;
  return RoundPeak{bytes_of_rounds(predict_rounds(config_, jobs, policy, alive_facts, RoundKind::training)), static_cast<int64_t>(learned)};
}

void LearnedPeak::observe(std::span<const int32_t> jobs, const PackingPolicy& policy, const WorstCase& alive,
                          int64_t bytes, bool keeps_spare) {
  if (policy != policy_) jobs_.clear();
  policy_ = policy;
  for (const int32_t job : jobs) {
    Learned& learned = jobs_[job];
    learned.samples.add({static_cast<double>(alive.alive_tokens), static_cast<double>(alive.chain_tokens),
                         static_cast<double>(bytes)});
    learned.fit = learned.samples.fit();
    learned.most_alive = std::max(learned.most_alive, alive.alive_tokens);
    if (!keeps_spare) learned.most_needed = std::max(learned.most_needed, alive.alive_tokens);
    learned.most_chain = std::max(learned.most_chain, alive.chain_tokens);
  }
}

size_t LearnedPeak::sample_count(int32_t job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : found->second.samples.sample_count();
}

}  // namespace cotune
