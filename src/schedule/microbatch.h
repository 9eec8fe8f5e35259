/// What goes through the model together: atoms of one or more jobs, cut into segments of consecutive tokens.
/// Plain values; the engine and the planner read the same ones.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/job.h"

namespace cotune {

/// The largest atom, and the grid on which long rows are cut. A constant of the numerics, not a tuning knob: adapter
/// gradients are summed inside an atom first and atom by atom after, so a job's bits depend on this number and on
/// nothing else of how its batch is packed.
inline constexpr int64_t atom_tokens = 256;

/// Attention gives a row equal bits however it is cut at multiples of this (kernels/attention.h), and so whichever of its atoms
/// share a microbatch.
inline constexpr int64_t row_cut_tokens = 64;

/// A run of consecutive tokens of one row (example) of a job's batch.
struct Segment {
  int32_t row = 0;         ///< index of the example in its job's batch
  int64_t position = 0;    ///< tokens of the row before this segment
  int64_t length = 0;      ///< real tokens
  int64_t pad = 0;         ///< pad tokens that follow them (layouts padded and chunked); computed, in the head too, never learned from
  int64_t row_length = 0;  ///< real tokens of the whole row
  bool operator==(const Segment&) const = default;
};

/// A few segments of one job: the unit of packing and of gradient accumulation. `index` counts the atoms of the job's
/// batch; gradients are added in descending index (so that the chunks of a chain, whose backward runs in reverse, and
/// whole rows follow one rule).
struct Atom {
  int32_t job = 0;
  int32_t index = 0;
  std::vector<Segment> segments;

  int64_t token_count() const {  ///< real and pad tokens
    int64_t count = 0;
    for (const Segment& segment : segments) count += segment.length + segment.pad;
    return count;
  }
  bool operator==(const Atom&) const = default;
};

/// Atoms that go through the model together. Atoms of one job are adjacent, in ascending index. Rows of the
/// [tokens, hidden] activations follow the order of atoms and segments; the pads of a segment follow its real tokens.
///
/// A row may have several segments in one microbatch (a row longer than an atom; the chunks of layout chunked). They
/// are then adjacent and contiguous, over the atoms' borders too, with pads after the last of them only: row_parts()
/// gives them as one run. A row with segments in more than one microbatch is a chain.
struct Microbatch {
  std::vector<Atom> atoms;

  int64_t token_count() const {
    int64_t count = 0;
    for (const Atom& atom : atoms) count += atom.token_count();
    return count;
  }
  bool operator==(const Microbatch&) const = default;
};

/// One job's batch of one step, as lengths: all that planning needs. At least one row, every row at least one token.
struct BatchShape {
  int32_t job = 0;
  int64_t step = 0;
  std::vector<int64_t> row_lengths;  ///< real tokens of each example, in batch order
  int64_t lowest_layer = 0;          ///< the lowest layer with an adapter of this job: recomputation stops there
  bool operator==(const BatchShape&) const = default;
};

/// How a batch is cut into atoms. Constant over a run: it depends on the layout, never on neighbours, sharing or budget.
struct AtomRule {
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;            ///< layout chunked
  int64_t capacity = atom_tokens;     ///< tests alone set another value
  bool operator==(const AtomRule&) const = default;
};

/// Cuts a job's batch into atoms. Depends on this batch and the rule alone.
///
/// ragged   rows in batch order, each cut at multiples of the capacity from its start; the pieces go into the current
///          atom while it holds at most `capacity` tokens, else into a new one.
/// padded   the same, where an atom's size is its segment count times its longest segment: what it takes when padded.
///          Pads come later (they depend on the microbatch): the segments returned have none.
/// chunked  MuxTune §3.5: rows, longest first, go first-fit into packed rows of the longest length rounded up to whole
///          chunks; packed rows are cut into chunks of `chunk_size` (a segment never crosses a chunk's border) and the
///          last chunk of each is padded. Whole chunks go into atoms as pieces go above; a chunk larger than
///          the capacity is an atom of its own. Where these whole chunks are a multiple of row_cut_tokens, a row lies in a packed row
///          such that atoms cut it at such multiples alone, for a job's bits not to follow who shares its microbatches.
/// The segments of one row lie in ascending position over ascending atoms. An atom whose first segment has position > 0
/// continues the last row of the atom before.
std::vector<Atom> cut_into_atoms(const BatchShape& batch, const AtomRule& rule = {});

/// All segments of one row in one microbatch.
struct RowPart {
  int32_t job = 0;
  int32_t row = 0;
  int64_t position = 0;      ///< of its first token in the row
  int64_t length = 0;        ///< real tokens
  int64_t pad = 0;
  int64_t row_length = 0;
  int64_t first_token = 0;   ///< index of its first token among the microbatch's tokens
  int32_t last_atom = 0;     ///< index in Microbatch::atoms of its last segment's atom
  int32_t last_segment = 0;  ///< index of its last segment in that atom
  bool operator==(const RowPart&) const = default;
};

/// Whether it is the last chunk of its row, or all of it.
inline bool ends_row(const RowPart& part) { return part.position + part.length == part.row_length; }

/// The row parts of a microbatch, in the order of its tokens.
std::vector<RowPart> row_parts(const Microbatch& microbatch);

}  // namespace cotune
