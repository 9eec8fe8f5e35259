#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/microbatch.h"

namespace cotune {

/// One example as the engine sees it.
struct BatchRow {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;  ///< learned[i]: token i is a target, predicted from the tokens before it; learned[0] is not read
  uint64_t key = 0;              ///< of the example, for dropout: equal wherever the example is
};

/// One job's examples of one step.
struct Batch {
  int64_t step = 0;
  std::vector<BatchRow> rows;

  /// Tokens with a label: what the job's loss is averaged over.
  int64_t labelled_count() const {
    int64_t count = 0;
    for (const BatchRow& row : rows) {
      for (size_t i = 1; i < row.learned.size(); ++i) count += row.learned[i] != 0;
    }
    return count;
  }

  /// Some of its rows.
  Batch share(std::span<const int32_t> of_rows) const {
    Batch part{.step = step, .rows = {}};
    for (const int32_t row : of_rows) part.rows.push_back(rows[static_cast<size_t>(row)]);
    return part;
  }

  BatchShape shape(int32_t job, int64_t lowest_layer) const {
    BatchShape shape{job, step, {}, lowest_layer};
    for (const BatchRow& row : rows) shape.row_lengths.push_back(static_cast<int64_t>(row.tokens.size()));
    return shape;
  }
};

}  // namespace cotune
