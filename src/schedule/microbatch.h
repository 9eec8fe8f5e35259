/// What goes through the model together: atoms of one or more jobs, cut into segments of consecutive tokens.
/// Plain values; the engine and the planner read the same ones.
#pragma once

#include <cstdint>
#include <vector>

namespace cotune {

/// The largest atom, and the grid on which long rows are cut. A constant of the numerics, not a tuning knob: adapter
/// gradients are summed inside an atom first and atom by atom after, so a job's bits depend on this number and on
/// nothing else of how its batch is packed.
inline constexpr int64_t atom_tokens = 256;

/// A run of consecutive tokens of one row (example) of a job's batch.
struct Segment {
  int32_t row = 0;         ///< index of the example in its job's batch
  int64_t position = 0;    ///< tokens of the row before this segment
  int64_t length = 0;      ///< real tokens
  int64_t pad = 0;         ///< pad tokens that follow them (layouts padded and chunked); computed, never labelled
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
/// [tokens, hidden] activations follow the order of atoms and segments.
struct Microbatch {
  std::vector<Atom> atoms;

  int64_t token_count() const {
    int64_t count = 0;
    for (const Atom& atom : atoms) count += atom.token_count();
    return count;
  }
  bool operator==(const Microbatch&) const = default;
};

/// One job's batch of one step, as lengths: all that planning needs.
struct BatchShape {
  int32_t job = 0;
  int64_t step = 0;
  std::vector<int64_t> row_lengths;  ///< real tokens of each example, in batch order
  bool operator==(const BatchShape&) const = default;
};

/// Cuts a job's batch into atoms: rows in batch order, each cut at multiples of atom_tokens from its start, packed
/// first-come into atoms of at most atom_tokens. Depends on this batch alone.
std::vector<Atom> cut_into_atoms(const BatchShape& batch);

}  // namespace cotune
