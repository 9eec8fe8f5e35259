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
  bool recompute = false;       ///< keep the stream before each layer only and run each layer's forward again before its backward
  int64_t layer_count = 0;      ///< of the model; at least 1 where recompute is set, else not read
  /// Sharing hybrid: the jobs of each hybrid task, which share microbatches with each other and with no others, each job at
  /// most once; a job that stands in none is one by itself. Empty: all jobs are one.
  std::vector<std::vector<int32_t>> hybrid_tasks;
  /// What is packed together (a hybrid task, or a job by itself) is cut into so many microbatches at least, as far as its units allow, so that
  /// pipelines have work (the few-adapter split of LoRAPP, mLoRA §3.2.2). Ignored by batch_all.
  int64_t least_microbatches = 1;
  bool operator==(const PackingPolicy&) const = default;
};

struct StepPlan {
  PackingPolicy policy;
  std::vector<BatchShape> batches;     ///< the round's input, one per live job, in job order
  std::vector<Microbatch> microbatches;
  std::vector<Action> actions;         ///< of one rank with the whole model, in order; several have a RankPlan (pipeline/rank_plan.h)
  bool operator==(const StepPlan&) const = default;
};

/// Packs the round's batches into microbatches and orders the work.
///
/// Packing. A job's atoms are taken from the end of its list, so that successive microbatches hold descending runs of
/// them. What is taken at once is a *unit*: the atoms of one long row (with the short rows that share its last atom), or
/// one atom. A unit is never split over microbatches unless it exceeds the token budget by itself. A new microbatch
/// starts with the next unit of the job with most tokens left (ties: the earlier job), and takes, while any fits, the
/// next unit of the first job, in that same order, whose unit fits. A unit above the budget becomes a *chain*: its atoms,
/// from the end, fill as many microbatches as they need, and the room that remains in each is filled with units of other
/// jobs as above; no second chain joins them. So at most one microbatch is alive, or the microbatches of one chain.
///   separate   the jobs one after the other, each packed alone, its optimizer step before the next job
///   temporal   each job packed alone; the jobs take turns, one microbatch (or one chain's microbatches) a turn
///   hybrid     the hybrid tasks one after the other, the jobs of each packed together; jobs of none come last
///   batch_all  everything in one microbatch, whatever the budget
/// Where that gives fewer than least_microbatches (and there are units for more), those of several units keep within less than the budget: of
/// once to twice an even share the least that gives the fewest microbatches which suffice, or else an even share halved until it does.
/// No further rows become chains by that.
/// Tokens count with their pads. Layout padded then pads every row part that ends its row to the longest of its microbatch.
///
/// Order: a job's atoms go backward in descending index. A microbatch goes forward just before its backward, except
/// where it holds later chunks of a chain: the microbatches with the earlier chunks go forward first, and backward in
/// reverse. `free` follows a microbatch's backward at once (its keys and values go with it: whoever read them, the
/// later chunks, is through). A job's optimizer_step follows the free of its last atom's microbatch.
/// With recompute, a microbatch's backward is: backward(L, L), then for layers l = L-1 down to the lowest layer with an
/// adapter of its jobs: recompute(l, l+1), backward(l, l+1).
/// Throws UserError when a single atom exceeds the token budget (a budget below atom_tokens or below chunk_size).
StepPlan plan_step(std::span<const BatchShape> batches, const PackingPolicy& policy);

/// The same with atoms of at most `segment_tokens` tokens in place of atom_tokens: with an equal token budget, chains
/// of tiny chunks, one a microbatch; for tests of chaining. Layouts ragged and padded.
StepPlan plan_step_with_segments(std::span<const BatchShape> batches, const PackingPolicy& policy,
                                 int64_t segment_tokens);

}  // namespace cotune
