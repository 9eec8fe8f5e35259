/// The most tokens that plans can have alive, before any is made: what memory is predicted by.
#pragma once

#include <cstdint>
#include <span>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// The largest microbatch, the most tokens alive at once and the longest chain that plan_step can make of batches of
/// these jobs, whatever their row lengths up to longest_row and whatever the hybrid tasks: all jobs fused is the worst.
/// Tokens are rounded up to multiples of 64 per microbatch.
struct WorstCase {
  int64_t microbatch_tokens = 0;
  int64_t alive_tokens = 0;
  int64_t chain_tokens = 0;  ///< 0: no row becomes a chain
  bool operator==(const WorstCase&) const = default;
};

/// Of one leading job (the job whose chain it is) among all of them; see plan_step.
///   atoms of a row    A = ⌈R / c⌉, c tokens an atom (atom_tokens; chunked: whole chunks), R the longest row (rounded up
///                     to whole chunks)
///   chain length      ragged, chunked: ⌈A / ⌊budget/c⌋⌉; padded: 1 + ⌈(A − 1) / ⌊budget/c⌋⌉ (riders widen the last atom)
///   alive tokens      chain length · budget, at most everything there is
WorstCase worst_case(std::span<const JobFootprint> jobs, size_t leading, const PackingPolicy& policy);

/// The worst of all leading jobs (worst_case), where ranks may divide the model. A token counts for the share of the model's layers that a
/// rank holds it in, in the unit of alive_tokens.h: of ranks in one process their sum, which is at most what predict_memory counts; of
/// processes that of the one with most layers.
WorstCase worst_case_on_ranks(const ModelConfig& config, std::span<const JobFootprint> jobs, const PackingPolicy& policy,
                              const MemoryFacts& facts);

/// Tokens of one job's whole batch, pads included, in a microbatch whose longest row is `width`.
int64_t batch_tokens(const JobFootprint& job, const PackingPolicy& policy, int64_t width);
/// Whether jobs share microbatches.
bool fuses(const PackingPolicy& policy);
int64_t longest_row(std::span<const JobFootprint> jobs);
/// Where the longest part of a row ends in it, at most, pads included: in whole chunks; under layout padded the last part of a row that is cut
/// may be as wide as the longest part of another.
int64_t longest_part_end(std::span<const JobFootprint> jobs, const PackingPolicy& policy);
/// Tokens of a round.
int64_t round_tokens(std::span<const JobFootprint> jobs, const PackingPolicy& policy);
/// worst_case, with what all ranks of a pipeline have at once, as if each had the whole model. everything: round_tokens.
WorstCase lead_on_ranks(std::span<const JobFootprint> jobs, size_t leading, int64_t everything, const PackingPolicy& policy,
                        const MemoryFacts& facts);

}  // namespace cotune
