#include "kernels/row_plan.h"

#include <algorithm>

#include "kernels/matrix_blocks.h"

namespace cotune::kernels {
namespace {

bool covers(const RowRange& range, int64_t begin, int64_t end) {
  return range.begin <= begin && end <= range.end;
}

}  // namespace

/// The rows of a term's left operand as the kernels read them, converted into `scratch` where they ask for
/// it.
RowPlan::LeftRows RowPlan::left_rows(const LowRankTerm& term, const MatrixKernels& kernels, char*& scratch) {
  const auto* s = static_cast<const char*>(term.s);
  const int64_t stride = term.s_stride * bytes_of(kernels.dtype);
  if (kernels.convert_left == nullptr) return {s, stride};
  const LeftRows rows = {scratch, term.b->padded_k() * kernels.left_element_bytes};
  for (int64_t i = 0; i < term.rows.count(); ++i) {
    kernels.convert_left(s + i * stride, term.b->padded_k(), scratch);
    scratch += rows.stride;
  }
  return rows;
}

void RowPlan::build(int64_t rows, const ProductOptions& options, const MatrixKernels& kernels) {
  borders_.assign({0, rows});
  tiles.clear();
  terms.clear();
  for (const LowRankTerm& term : options.terms) {
    borders_.push_back(term.rows.begin);
    borders_.push_back(term.rows.end);
  }
  for (const RowRange& range : options.residual_rows) {
    borders_.push_back(range.begin);
    borders_.push_back(range.end);
  }
  std::sort(borders_.begin(), borders_.end());
  borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  int64_t converted_bytes = 0;
  if (kernels.convert_left != nullptr) {
    for (const LowRankTerm& term : options.terms)
      converted_bytes += term.rows.count() * term.b->padded_k() * kernels.left_element_bytes;
  }
  char* scratch =
      converted_bytes == 0 ? nullptr : ThreadScratch::mine().get(ThreadScratch::terms, converted_bytes);
  std::vector<LeftRows>& left = term_rows_;
  left.clear();
  for (const LowRankTerm& term : options.terms) left.push_back(left_rows(term, kernels, scratch));
  for (size_t segment = 0; segment + 1 < borders_.size(); ++segment) {
    const int64_t begin = borders_[segment];
    const int64_t end = borders_[segment + 1];
    const bool residual = std::any_of(options.residual_rows.begin(), options.residual_rows.end(),
                                      [&](const RowRange& range) { return covers(range, begin, end); });
    const int64_t count = tile_count(end - begin, kernels.tile_rows);
    const auto first_tile = static_cast<int64_t>(tiles.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = begin + tile_begin(end - begin, count, i);
      const int64_t next = begin + tile_begin(end - begin, count, i + 1);
      tiles.push_back({row, static_cast<int>(next - row), residual, 0, 0});
    }
    int64_t active = 0;
    const auto first_term = static_cast<int64_t>(terms.size());
    for (size_t t = 0; t < options.terms.size(); ++t) {
      const LowRankTerm& term = options.terms[t];
      if (!covers(term.rows, begin, end) || term.column_end == term.column_begin || term.b->padded_k() == 0)
        continue;
      ++active;
      const int64_t first_panel = term.column_begin / PackedMatrix::panel_columns;
      terms.push_back({.s = left[t].data + (begin - term.rows.begin) * left[t].stride,
                       .s_stride = left[t].stride,
                       .k = term.b->padded_k(),
                       .panels = static_cast<const char*>(term.b->panel(0)),
                       .panel_bytes = term.b->panel_bytes(),
                       .parts = term.b->parts(),
                       .panel_begin = first_panel,
                       .panel_end = first_panel + term.b->panel_count()});
    }
    for (int64_t i = 0; i < count; ++i) {
      RowTile& tile = tiles[static_cast<size_t>(first_tile + i)];
      tile.first_term = first_term + i * active;
      tile.term_count = active;
      for (int64_t t = 0; t < active && i > 0; ++t) {
        TileTerm term = terms[static_cast<size_t>(first_term + t)];
        term.s += (tile.row - begin) * term.s_stride;
        terms.push_back(term);
      }
    }
  }
}

}  // namespace cotune::kernels
