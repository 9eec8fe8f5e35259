#include "schedule/memory/worst_case.h"

#include <algorithm>

#include "schedule/memory/memory_shapes.h"
#include "schedule/memory/replica_memory.h"

namespace cotune {
namespace {

/// Where microbatches run side by side the ranks see them as one; those of a chain stay alone.
WorstCase in_clocks(WorstCase lead, int64_t everything, const PackingPolicy& policy, const MemoryFacts& facts) {
  if (policy.recompute) return lead;
  lead.microbatch_tokens = std::max(lead.microbatch_tokens, std::min(facts.clock_microbatches * lead.microbatch_tokens, everything));
  lead.alive_tokens = std::max(lead.alive_tokens, lead.microbatch_tokens);
  return lead;
}

/// Tokens alive on all ranks together; `everything`: of a round.
int64_t alive_on_ranks(const WorstCase& lead, int64_t everything, const MemoryFacts& facts) {
  if (facts.rank_order == RankOrder::gpipe) return std::max(lead.alive_tokens, everything);
  if (facts.stages() == 1) return lead.alive_tokens;
  // Interleaved 1F1B: rank 0 of p with v stages takes 2(p - 1) + (v - 1)p + 1 forwards of one stage ahead, less than 2p microbatches.
  if (facts.interleaves) return std::max(lead.alive_tokens, std::min(2 * facts.stages() * lead.alive_tokens, everything));
  const int64_t at_once = facts.rank_order == RankOrder::one_f_one_b ? lead.alive_tokens : lead.microbatch_tokens;
  return std::max(lead.alive_tokens, std::min(facts.stages() * at_once, everything));
}

}  // namespace

/// Tokens of one job's whole batch, pads included, in a microbatch whose longest row is `width`.
int64_t batch_tokens(const JobFootprint& job, const PackingPolicy& policy, int64_t width) {
  switch (policy.layout) {
    case Layout::ragged:
      return job.row_count * job.longest_row;
    case Layout::padded:
      return job.row_count * width;
    case Layout::chunked:
      return job.row_count * round_up(job.longest_row, policy.chunk_size);
  }
  return 0;
}

bool fuses(const PackingPolicy& policy) {
  return policy.sharing == Sharing::hybrid || policy.sharing == Sharing::batch_all;
}

int64_t longest_row(std::span<const JobFootprint> jobs) {
  int64_t longest = 0;
  for (const JobFootprint& job : jobs) longest = std::max(longest, job.longest_row);
  return longest;
}

int64_t longest_part_end(std::span<const JobFootprint> jobs, const PackingPolicy& policy) {
  const int64_t longest = longest_row(jobs);
  if (policy.layout == Layout::chunked) return round_up(longest, policy.chunk_size);
  return policy.layout == Layout::padded && longest > atom_tokens ? longest + std::min(longest, policy.token_budget) : longest;
}

/// Tokens of a round.
int64_t round_tokens(std::span<const JobFootprint> jobs, const PackingPolicy& policy) {
  const int64_t widest = fuses(policy) ? longest_row(jobs) : 0;
  int64_t tokens = 0;
  for (const JobFootprint& job : jobs) tokens += batch_tokens(job, policy, std::max(widest, job.longest_row));
  return round_up(tokens, row_grid);
}

/// worst_case, with what all ranks of a pipeline have at once, as if each had the whole model. everything: round_tokens.
WorstCase lead_on_ranks(std::span<const JobFootprint> jobs, size_t leading, int64_t everything, const PackingPolicy& policy,
                        const MemoryFacts& facts) {
  WorstCase lead = in_clocks(worst_case(jobs, leading, policy), everything, policy, facts);
  lead.alive_tokens = alive_on_ranks(lead, everything, facts);
  lead.chain_tokens *= facts.stages();
  return lead;
}

WorstCase worst_case(std::span<const JobFootprint> jobs, size_t leading, const PackingPolicy& policy) {
  const JobFootprint& lead = jobs[leading];
  int64_t everything = 0;
  if (fuses(policy)) {
    for (const JobFootprint& job : jobs) everything += batch_tokens(job, policy, longest_row(jobs));
  } else {
    everything = batch_tokens(lead, policy, lead.longest_row);
  }
  if (policy.sharing == Sharing::batch_all) {
    const int64_t tokens = round_up(everything, row_grid);
    return {.microbatch_tokens = tokens, .alive_tokens = tokens};
  }

  int64_t capacity = atom_tokens;
  int64_t row = lead.longest_row;
  if (policy.layout == Layout::chunked) {
    capacity = std::max<int64_t>(1, atom_tokens / policy.chunk_size) * policy.chunk_size;
    row = round_up(row, policy.chunk_size);
  }
  // A budget below an atom's capacity still takes any single atom that plan_step accepts.
  const int64_t atoms_at_once = std::max<int64_t>(1, policy.token_budget / capacity);
  const int64_t atoms = divide_up(row, capacity);
  const int64_t length = policy.layout == Layout::padded && atoms > 1 ? 1 + divide_up(atoms - 1, atoms_at_once)
                                                                       : divide_up(atoms, atoms_at_once);
  WorstCase worst;
  worst.microbatch_tokens = round_up(std::min(policy.token_budget, everything), row_grid);
  // Layout padded pads every part of a row to the longest in its own microbatch: the row's pads may come `length` times.
  const int64_t with_pads = policy.layout == Layout::padded ? length * everything : everything;
  worst.alive_tokens =
      std::min(length * round_up(policy.token_budget, row_grid), with_pads + length * (row_grid - 1));
  worst.chain_tokens = length > 1 ? row : 0;
  return worst;
}

WorstCase worst_case_on_ranks(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                              const MemoryFacts& facts) {
  const int64_t everything = round_tokens(jobs, policy);
  if (!facts.replicas.empty()) return worst_case_of_replicas(config, jobs, policy, facts, everything);
  WorstCase worst;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WorstCase lead = lead_on_ranks(jobs, i, everything, policy, facts);
    worst.microbatch_tokens = std::max(worst.microbatch_tokens, lead.microbatch_tokens);
    worst.alive_tokens = std::max(worst.alive_tokens, lead.alive_tokens);
    worst.chain_tokens = std::max(worst.chain_tokens, lead.chain_tokens);
  }
  if (facts.process_stages.empty()) return worst;
  const auto here = [&](int64_t tokens) { return divide_up(tokens * layers_here(config, facts), config.layer_count); };
  return {here(worst.microbatch_tokens), here(worst.alive_tokens), here(worst.chain_tokens)};
}

}  // namespace cotune
