/// Cuts the rows of many groups into blocks for threads to take. Groups of the same rows (the projections of
/// one operator add to one row of its input's gradient) stay together, so that one thread adds them in the
/// order given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

/// Groups by their rows: run i is the groups order[begins[i]] to order[begins[i + 1]], all of the same rows.
struct RowRuns {
  std::vector<size_t> order, begins;

  size_t count() const { return begins.size() - 1; }
};

/// rows_of(group) of `count` groups: equal or disjoint.
template <typename RowsOf>
RowRuns runs_of_rows(size_t count, RowsOf rows_of) {
  RowRuns runs;
  runs.order.resize(count);
  std::iota(runs.order.begin(), runs.order.end(), size_t{0});
  std::stable_sort(runs.order.begin(), runs.order.end(),
                   [&](size_t a, size_t b) { return rows_of(a).begin < rows_of(b).begin; });
  for (size_t i = 0; i < count; ++i) {
    const RowRange rows = rows_of(runs.order[i]);
    if (i > 0 && rows == rows_of(runs.order[i - 1])) continue;
    COTUNE_CHECK(i == 0 || rows_of(runs.order[i - 1]).end <= rows.begin,
                 "groups that share some rows and not all");
    runs.begins.push_back(i);
  }
  runs.begins.push_back(count);
  return runs;
}

/// Rows [begin, end) of run `run`.
struct RowBlock {
  size_t run = 0;
  int64_t begin = 0, end = 0;
};

/// Every run's rows in blocks of at most `height`, each run's from its first row on.
template <typename RowsOf>
std::vector<RowBlock> blocks_of_rows(const RowRuns& runs, int64_t height, RowsOf rows_of) {
  std::vector<RowBlock> blocks;
  for (size_t run = 0; run < runs.count(); ++run) {
    const RowRange rows = rows_of(runs.order[runs.begins[run]]);
    for (int64_t begin = rows.begin; begin < rows.end; begin += height) {
      blocks.push_back({run, begin, std::min(begin + height, rows.end)});
    }
  }
  return blocks;
}

}  // namespace cotune::kernels
