/// Held-out rows go through the model in blocks, one after the other: an evaluation takes no memory of its sets' size.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/job_round.h"

namespace cotune {

/// Rows that follow each other, or how many may at most.
struct HeldOutBlock {
  int64_t tokens = 0, rows = 0;
};

/// Of all jobs of an evaluation together. Beside tensors that is about 10 MiB at once: copies of the rows, their places in the plan, and what
/// a round remembers of each learned token until its end (MicrobatchState::label_rows).
inline constexpr HeldOutBlock most_held_out_at_once{.tokens = int64_t{1} << 18, .rows = int64_t{1} << 13};

/// What an evaluation of a job has found, added up over its blocks in their order.
struct HeldOutResult {
  double loss_sum = 0;          ///< Σ −log p over labelled tokens
  int64_t labelled_tokens = 0;
  int64_t rows = 0, right_rows = 0;  ///< right: every learned token is the model's first choice
  bool emulated = false;        ///< nothing was computed: loss and accuracy are NaN

  void add(const JobRound& block) {
    for (const double row : block.row_loss_sums) loss_sum += row;  // in their order, whatever microbatches and blocks they came in
    labelled_tokens += block.labelled_tokens;
    rows += static_cast<int64_t>(block.row_predicted.size());
    for (const uint8_t is_right : block.row_predicted) right_rows += is_right;
    emulated = emulated || block.emulated;
  }
  double loss() const {
    if (emulated) return std::numeric_limits<double>::quiet_NaN();
    return labelled_tokens > 0 ? loss_sum / static_cast<double>(labelled_tokens) : 0;
  }
  double accuracy() const {
    if (emulated) return std::numeric_limits<double>::quiet_NaN();
    return rows > 0 ? static_cast<double>(right_rows) / static_cast<double>(rows) : 0;
  }
};

}  // namespace cotune
