#include "kernels/product.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"

namespace cotune::kernels {
namespace {

/// A block of rows of x and a group of panels of B, for one block of k, stay in the second-level cache
/// together: bytes of either. Decides speed alone; sums are cut by k_block.
int64_t cache_block_bytes() {
  static const int64_t bytes =
      std::clamp<int64_t>(::sysconf(_SC_LEVEL2_CACHE_SIZE) * 3 / 10, 150 << 10, 1 << 20);
  return bytes;
}

struct RowTile {
  int64_t row;
  int height;
  bool residual;
  int64_t first_term, term_count;
};

/// Where the rows of y are cut: never across the border of a term or of the rows with a residual.
struct RowPlan {
  std::vector<int64_t> borders;
  std::vector<RowTile> tiles;
  std::vector<TileTerm> terms;  // tile by tile

  void build(int64_t rows, const ProductOptions& options, const MatrixKernels& kernels);

 private:
  struct LeftRows {
    const char* data;
    int64_t stride;  // bytes
  };
  static LeftRows left_rows(const LowRankTerm& term, const MatrixKernels& kernels, char*& scratch);
  std::vector<LeftRows> term_rows_;
};

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

bool covers(const RowRange& range, int64_t begin, int64_t end) {
  return range.begin <= begin && end <= range.end;
}

void RowPlan::build(int64_t rows, const ProductOptions& options, const MatrixKernels& kernels) {
  borders.assign({0, rows});
  tiles.clear();
  terms.clear();
  for (const LowRankTerm& term : options.terms) {
    borders.push_back(term.rows.begin);
    borders.push_back(term.rows.end);
  }
  for (const RowRange& range : options.residual_rows) {
    borders.push_back(range.begin);
    borders.push_back(range.end);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
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
  for (size_t segment = 0; segment + 1 < borders.size(); ++segment) {
    const int64_t begin = borders[segment];
    const int64_t end = borders[segment + 1];
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

void check(const MatrixKernels& kernels, const PackedMatrix& b, int64_t rows, const ProductOptions& options) {
  const bool in_parts = kernels.in_parts;
  COTUNE_CHECK(in_parts == (b.parts() > 0), "a matrix packed for other kernels, in {} parts", b.parts());
  for (const LowRankTerm& term : options.terms) {
    COTUNE_CHECK(term.rows.begin >= 0 && term.rows.begin <= term.rows.end && term.rows.end <= rows,
                 "term rows {} to {} of {}", term.rows.begin, term.rows.end, rows);
    COTUNE_CHECK(term.b != nullptr && term.b->dtype() == b.dtype() && in_parts == (term.b->parts() > 0),
                 "a term needs a matrix packed as the product's is");
    COTUNE_CHECK(term.column_begin % PackedMatrix::panel_columns == 0 &&
                     term.column_end == term.column_begin + term.b->n() && term.column_end <= b.n(),
                 "term columns {} to {} of {}, matrix with {} columns", term.column_begin, term.column_end,
                 b.n(), term.b->n());
  }
  for (const RowRange& range : options.residual_rows) {
    COTUNE_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= rows,
                 "residual rows {} to {} of {}", range.begin, range.end, rows);
    COTUNE_CHECK(options.residual != nullptr || range.count() == 0, "residual rows without a residual");
  }
}

/// How the threads share strips of rows and panels of columns.
struct Grid {
  int64_t row_parts = 1;
  int64_t column_parts = 1;
};

Grid choose_grid(int64_t threads, int64_t strips, int64_t panels, bool copies) {
  Grid best;
  double best_cost = 0;
  for (int64_t columns = 1; columns <= std::min(threads, panels); ++columns) {
    const int64_t rows = std::min(threads / columns, strips);
    const auto strips_each = static_cast<double>((strips + rows - 1) / rows);
    const auto panels_each = static_cast<double>((panels + columns - 1) / columns);
    // Products, then the share of bringing a strip's rows and a panel's columns near, in units of strip ×
    // panel.
    const double cost = strips_each * panels_each + strips_each * (copies ? 0.5 : 0.1) + panels_each * 0.3;
    if (columns == 1 || cost < best_cost) {
      best = {rows, columns};
      best_cost = cost;
    }
  }
  return best;
}

struct Call {
  const MatrixKernels& kernels;
  const PackedMatrix& b;
  const LeftOperand& left;
  const RowPlan& plan;
  const ProductOptions& options;
  char* y;
  int64_t y_stride;  // bytes
};

int64_t y_bytes(DType dtype, const ProductOptions& options) {
  return bytes_of(options.wide ? DType::f32 : dtype);
}

/// One thread's rectangle: tiles × panels.
void multiply_part(const Call& call, RowRange tiles, RowRange panels) {
  const MatrixKernels& kernels = call.kernels;
  const int64_t element = bytes_of(kernels.dtype), y_element = y_bytes(kernels.dtype, call.options);
  const int64_t depth = call.b.padded_k();
  // Zero depth still makes one block, which writes the terms, the bias and the residual.
  const int64_t k_blocks = std::max<int64_t>((depth + kernels.k_block - 1) / kernels.k_block, 1);
  const int64_t k_block = (depth / kernels.depth_unit + k_blocks - 1) / k_blocks * kernels.depth_unit;
  const int64_t column_bytes = PackedMatrix::panel_columns * y_element;
  const int64_t tile_bytes = std::max<int64_t>(kernels.tile_rows * k_block * kernels.left_element_bytes, 1);
  const int64_t block_tiles = std::max<int64_t>(cache_block_bytes() / tile_bytes, 2) / 2 * 2;
  const int64_t group_panels =
      std::max<int64_t>(cache_block_bytes() / std::max<int64_t>(k_block * call.b.depth_bytes(), 1), 1);
  const int64_t partial_floats = 2 * kernels.tile_rows * PackedMatrix::panel_columns;  // per strip and panel
  ThreadScratch& scratch = ThreadScratch::mine();
  float* partial = nullptr;
  if (k_blocks > 1) {
    const int64_t strips = std::min(block_tiles, tiles.count());
    partial = reinterpret_cast<float*>(
        scratch.get(ThreadScratch::partial,
                    strips * group_panels * partial_floats * static_cast<int64_t>(sizeof(float))));
  }
  // What is read once is copied when it is: deep rows would take much more than the caches have.
  const bool copies_columns = call.left.copies_columns() && k_blocks > 1 && panels.count() <= group_panels;
  const int64_t left_stride = copies_columns ? call.left.column_stride(k_block) : call.left.stride();
  char* copy = nullptr;
  if (call.left.copies()) {
    copy = scratch.get(ThreadScratch::left, std::min(block_tiles, tiles.count()) * kernels.tile_rows * left_stride);
  }
  for (int64_t block = tiles.begin; block < tiles.end; block += block_tiles) {
    const int64_t block_end = std::min(block + block_tiles, tiles.end);
    const int64_t first_row = call.plan.tiles[static_cast<size_t>(block)].row;
    const RowTile& last = call.plan.tiles[static_cast<size_t>(block_end - 1)];
    const int64_t row_end = last.row + last.height;
    if (copy != nullptr && !copies_columns) {
      for (int64_t row = first_row; row < row_end; ++row) call.left.copy_row(row, copy + (row - first_row) * left_stride);
    }
    for (int64_t group = panels.begin; group < panels.end; group += group_panels) {
      for (int64_t k = 0; k_blocks == 1 ? k == 0 : k < depth; k += std::max<int64_t>(k_block, 1)) {
        Strip strip;
        strip.a_stride = left_stride;
        strip.k = std::min(k_block, depth - k);
        if (copies_columns) {
          for (int64_t row = first_row; row < row_end; ++row) {
            call.left.copy_columns(row, k, strip.k, copy + (row - first_row) * left_stride);
          }
        }
        strip.b = static_cast<const char*>(call.b.panel(group)) + k * call.b.depth_bytes();
        strip.b_parts = call.b.parts();
        strip.panel_bytes = call.b.panel_bytes();
        strip.first_panel = group;
        strip.panel_count = std::min(group_panels, panels.end - group);
        strip.columns = call.b.n() - group * PackedMatrix::panel_columns;
        strip.first = k == 0;
        strip.last = k + k_block >= depth;
        strip.y_stride = call.y_stride;
        strip.wide = call.options.wide;
        strip.residual_stride = call.options.residual_stride * y_element;
        if (call.options.bias != nullptr)
          strip.bias = static_cast<const char*>(call.options.bias) + group * PackedMatrix::panel_columns * element;
        for (int64_t t = block; t < block_end; t += kernels.tiles_per_strip) {
          strip.tile_count = static_cast<int>(std::min<int64_t>(kernels.tiles_per_strip, block_end - t));
          strip.tiles[1] = {};
          for (int side = 0; side < strip.tile_count; ++side) {
            const RowTile& rows = call.plan.tiles[static_cast<size_t>(t + side)];
            Tile& tile = strip.tiles[side];
            tile.a = copy != nullptr ? copy + (rows.row - first_row) * left_stride : call.left.in_place(rows.row);
            if (!copies_columns) tile.a += k * kernels.left_element_bytes;
            tile.y = call.y + rows.row * call.y_stride + group * column_bytes;
            tile.residual = nullptr;
            if (rows.residual) {
              tile.residual = static_cast<const char*>(call.options.residual) +
                              rows.row * strip.residual_stride + group * column_bytes;
            }
            tile.terms = call.plan.terms.data() + rows.first_term;
            tile.term_count = static_cast<int>(rows.term_count);
            tile.height = rows.height;
          }
          if (partial != nullptr)
            strip.partial = partial + (t - block) / kernels.tiles_per_strip * group_panels * partial_floats;
          kernels.multiply(strip);
        }
      }
    }
  }
}

}  // namespace

void product(Isa isa, const void* x, int64_t x_stride, int64_t rows, const PackedMatrix& b, void* y,
             int64_t y_stride, const ProductOptions& options) {
  const MatrixKernels& kernels = matrix_kernels(isa, b.dtype());
  check(kernels, b, rows, options);
  if (rows == 0 || b.n() == 0) return;
  thread_local RowPlan plan;
  plan.build(rows, options, kernels);
  const LeftOperand left(x, x_stride, b.k(), kernels);
  const Call call{kernels, b, left, plan, options, static_cast<char*>(y), y_stride * y_bytes(b.dtype(), options)};
  const auto tiles = static_cast<int64_t>(plan.tiles.size());
  const int64_t strips = (tiles + kernels.tiles_per_strip - 1) / kernels.tiles_per_strip;
  const Grid grid = choose_grid(omp_get_max_threads(), strips, b.panel_count(), left.copies());
  const int64_t parts = grid.row_parts * grid.column_parts;
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    kernels.begin();
    for (int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
      const RowRange strip_share = share(strips, part / grid.column_parts, grid.row_parts);
      const RowRange tile_share = {strip_share.begin * kernels.tiles_per_strip,
                                   std::min(strip_share.end * kernels.tiles_per_strip, tiles)};
      multiply_part(call, tile_share, share(b.panel_count(), part % grid.column_parts, grid.column_parts));
    }
    kernels.end();
  }
}

}  // namespace cotune::kernels
