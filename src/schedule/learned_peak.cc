#include "schedule/learned_peak.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cotune {
namespace {

WorstCase worst_of_all(std::span<const JobFootprint> jobs, const PackingPolicy& policy) {
  WorstCase worst;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WorstCase lead = worst_case(jobs, i, policy);
    worst.microbatch_tokens = std::max(worst.microbatch_tokens, lead.microbatch_tokens);
    worst.alive_tokens = std::max(worst.alive_tokens, lead.alive_tokens);
    worst.chain_tokens = std::max(worst.chain_tokens, lead.chain_tokens);
  }
  return worst;
}

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

WorstCase alive_at_most(const StepPlan& plan) {
  WorstCase worst;
  int64_t alive = 0, chains = 0;
  for (const Action& action : plan.actions) {
    if (action.microbatch < 0) continue;
    const Microbatch& microbatch = plan.microbatches[static_cast<size_t>(action.microbatch)];
    const int64_t tokens = microbatch.token_count();
    if (action.kind == ActionKind::forward) {
      for (const RowPart& part : row_parts(microbatch)) {
        if (part.length < part.row_length) chains += part.length + part.pad;
      }
      alive += tokens;
      worst.microbatch_tokens = std::max(worst.microbatch_tokens, tokens);
      worst.alive_tokens = std::max(worst.alive_tokens, alive);
      worst.chain_tokens = std::max(worst.chain_tokens, chains);
    } else if (action.kind == ActionKind::free) {
      alive -= tokens;
      if (alive == 0) chains = 0;
    }
  }
  return worst;
}

MemoryEstimate LearnedPeak::predict(std::span<const JobFootprint> jobs, std::span<const JobFootprint> running,
                                    const PackingPolicy& policy) const {
  MemoryEstimate estimate = predict_memory(config_, jobs, policy, facts_);
  if (running.empty() || policy != policy_) return estimate;
  const WorstCase worst = worst_of_all(running, policy);
  double learned = 0;
  for (const JobFootprint& job : running) {
    const auto found = jobs_.find(job.job);
    if (found == jobs_.end() || found->second.fit.sample_count() < min_samples) return estimate;
    const Learned& samples = found->second;
    if (2 * samples.most_alive < worst.alive_tokens || 2 * samples.most_chain < worst.chain_tokens) return estimate;
    learned = std::max(learned, samples.fit.fit().predict_with_margin(static_cast<double>(worst.alive_tokens),
                                                                      static_cast<double>(worst.chain_tokens)));
  }
  const auto held = static_cast<int64_t>(std::ceil(learned * facts_.fragmentation));
  correct(estimate, held - bytes_of_rounds(predict_memory(config_, running, policy, facts_)));
  return estimate;
}

void LearnedPeak::observe(std::span<const int32_t> jobs, const PackingPolicy& policy, const WorstCase& alive,
                          int64_t bytes) {
  if (policy != policy_) jobs_.clear();
  policy_ = policy;
  for (const int32_t job : jobs) {
    Learned& learned = jobs_[job];
    learned.fit.add({static_cast<double>(alive.alive_tokens), static_cast<double>(alive.chain_tokens),
                     static_cast<double>(bytes)});
    learned.most_alive = std::max(learned.most_alive, alive.alive_tokens);
    learned.most_chain = std::max(learned.most_chain, alive.chain_tokens);
  }
}

MemoryFitResult LearnedPeak::fit_of(int32_t job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? MemoryFitResult{} : found->second.fit.fit();
}

size_t LearnedPeak::sample_count(int32_t job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : found->second.fit.sample_count();
}

}  // namespace cotune
