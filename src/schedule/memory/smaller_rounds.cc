#include "schedule/memory/smaller_rounds.h"

#include <algorithm>

#include "schedule/microbatch.h"

namespace cotune {

std::optional<PackingPolicy> smaller_rounds(PackingPolicy policy, Recompute recompute) {
  const int64_t smallest = policy.layout == Layout::chunked ? std::max(atom_tokens, policy.chunk_size) : atom_tokens;
  if (policy.token_budget / 2 >= smallest && policy.sharing != Sharing::batch_all) {
    policy.token_budget /= 2;
  } else if (!policy.recompute && recompute != Recompute::never) {
    policy.recompute = true;
  } else {
    return std::nullopt;
  }
  return policy;
}

std::optional<AdmissionRefusal> refuse_for_ever(int32_t job, int64_t limit_bytes, const PackingPolicy& policy,
                                                Recompute recompute,
                                                const std::function<MemoryEstimate(const PackingPolicy&)>& predict_alone) {
  MemoryEstimate alone;
  for (std::optional<PackingPolicy> step = policy; step; step = smaller_rounds(*step, recompute)) {
    alone = predict_alone(*step);
    if (alone.total() <= limit_bytes) return std::nullopt;
  }
  return AdmissionRefusal{job, alone.overflowing_term(limit_bytes), alone.total(), limit_bytes};
}

}  // namespace cotune
