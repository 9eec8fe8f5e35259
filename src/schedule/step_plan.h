/// One round of training as data: which rows go through the model together and in which order. A pure function of the
/// policies and the round's row lengths; the engine interprets it and decides nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/job.h"
#include "schedule/action.h"
#include "schedule/microbatch.h"

namespace cotune {

/// What shapes a StepPlan besides the lengths.
struct PackingPolicy {
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  int64_t token_budget = 1024;  ///< tokens of one microbatch (batch_all ignores it, as the systems it stands for do)
  int64_t chunk_size = 64;      ///< layout chunked: tokens of a chunk
  bool recompute = false;       ///< keep layer inputs only and run each layer's forward again before its backward
  bool operator==(const PackingPolicy&) const = default;
};

struct StepPlan {
  PackingPolicy policy;
  std::vector<BatchShape> batches;     ///< the round's input, one per live job, in job order
  std::vector<Microbatch> microbatches;
  std::vector<Action> actions;         ///< of the one rank there is so far, in order
  bool operator==(const StepPlan&) const = default;
};

/// Packs the round's batches into microbatches and orders the work.
///
/// Order: a job's atoms go backward in descending index. A microbatch goes forward just before its backward, except
/// where it holds later chunks of a chain: the microbatches with the earlier chunks go forward first, and backward in
/// reverse. A job's optimizer_step follows the backward of its last atom.
/// Throws UserError when a single atom exceeds the token budget.
StepPlan plan_step(std::span<const BatchShape> batches, const PackingPolicy& policy);

/// Cuts every row at multiples of `segment_tokens` whatever the atoms: chains of tiny chunks, for tests of chaining.
StepPlan plan_step_with_segments(std::span<const BatchShape> batches, const PackingPolicy& policy,
                                 int64_t segment_tokens);

/// Proves what the engine relies on; throws InternalError naming the first violation: every token of every batch is in
/// exactly one segment; forward before backward, each once; a chain's chunks forward in order and backward in strict
/// reverse, its activations alive in between; gradients of a job in descending atom order; one optimizer_step per job
/// after its last backward; recompute directly before the backward of the same layer; everything freed once.
void verify(const StepPlan& plan, int64_t layer_count);

/// Tokens that go through the model, by what they are. real + pad = processed.
struct TokenCounts {
  int64_t real = 0;
  int64_t pad_to_row = 0;    ///< padded to the job's own longest row (MuxTune bills these to the user)
  int64_t pad_to_mix = 0;    ///< padded to the longest row of the microbatch
  int64_t pad_to_chunk = 0;  ///< padded to whole chunks
  int64_t processed() const { return real + pad_to_row + pad_to_mix + pad_to_chunk; }
  bool operator==(const TokenCounts&) const = default;
};

/// Counts per job index in the plan's batches (MuxTune §3.5's metric).
std::vector<TokenCounts> count_tokens(const StepPlan& plan);

}  // namespace cotune
