#include "kernels/product.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"
#include "kernels/row_plan.h"

namespace cotune::kernels {
namespace {

/// A block of rows of x and a group of panels of B, for one block of k, stay in the second-level cache
/// together: bytes of either. Decides speed alone; sums are cut by k_block.
int64_t cache_block_bytes() {
  static const int64_t bytes =
      std::clamp<int64_t>(::sysconf(_SC_LEVEL2_CACHE_SIZE) * 3 / 10, 150 << 10, 1 << 20);
  return bytes;
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

/// How a thread cuts its rectangle of tiles and panels, so that what it reads again is near. Decides speed alone.
struct Blocking {
  int64_t k_blocks = 1, k_block = 0;
  int64_t tiles = 0;   ///< of a block of rows; with a group's panels, for one block of k, in the second-level cache
  int64_t panels = 0;  ///< of a group
  /// Panels that a block of k of the rows meets before the next one: a group where the rows stay near in their whole depth, else as many
  /// as have sums that do, for then the rows would come from afar for every group.
  int64_t set_panels = 0;
};

Blocking choose_blocking(const MatrixKernels& kernels, const PackedMatrix& b, int64_t tiles) {
  Blocking cut;
  const int64_t depth = b.padded_k(), near = cache_block_bytes();
  // Zero depth still makes one block, which writes the terms, the bias and the residual.
  cut.k_blocks = std::max<int64_t>((depth + kernels.k_block - 1) / kernels.k_block, 1);
  cut.k_block = (depth / kernels.depth_unit + cut.k_blocks - 1) / cut.k_blocks * kernels.depth_unit;
  const int64_t tile_bytes = std::max<int64_t>(kernels.tile_rows * cut.k_block * kernels.left_element_bytes, 1);
  cut.tiles = std::min(std::max<int64_t>(near / tile_bytes, 2) / 2 * 2, tiles);
  cut.panels = std::max<int64_t>(near / std::max<int64_t>(cut.k_block * b.depth_bytes(), 1), 1);
  cut.set_panels = cut.panels;
  if (cut.tiles * tile_bytes * cut.k_blocks > 2 * near) {
    const int64_t sums = cut.tiles * kernels.tile_rows * PackedMatrix::panel_columns * static_cast<int64_t>(sizeof(float));
    cut.set_panels = std::max(near / sums / cut.panels * cut.panels, cut.panels);
  }
  return cut;
}

/// One thread's rectangle: tiles × panels.
class PartProduct {
 public:
  PartProduct(const Call& call, RowRange tiles, RowRange panels)
      : call_(call), tiles_(tiles), panels_(panels), cut_(choose_blocking(call.kernels, call.b, tiles.count())) {
    const MatrixKernels& kernels = call.kernels;
    ThreadScratch& scratch = ThreadScratch::mine();
    partial_panels_ = std::min(cut_.set_panels, panels.count());
    if (cut_.k_blocks > 1) {
      const int64_t strips = (cut_.tiles + kernels.tiles_per_strip - 1) / kernels.tiles_per_strip;
      partial_ = reinterpret_cast<float*>(
          scratch.get(ThreadScratch::partial, strips * partial_panels_ * partial_floats() * static_cast<int64_t>(sizeof(float))));
    }
    // What is read once is copied when it is: deep rows would take much more than the caches have.
    copies_columns_ = call.left.copies_columns() && cut_.k_blocks > 1 && panels.count() <= cut_.set_panels;
    left_stride_ = copies_columns_ ? call.left.column_stride(cut_.k_block) : call.left.stride();
    if (call.left.copies()) copy_ = scratch.get(ThreadScratch::left, cut_.tiles * kernels.tile_rows * left_stride_);
  }

  void run() {
    for (int64_t tile = tiles_.begin; tile < tiles_.end; tile += cut_.tiles) {
      const RowRange block = {tile, std::min(tile + cut_.tiles, tiles_.end)};
      if (copy_ != nullptr && !copies_columns_) {
        for_rows(block, [&](int64_t row, int64_t index) { call_.left.copy_row(row, copy_ + index * left_stride_); });
      }
      for (int64_t set = panels_.begin; set < panels_.end; set += cut_.set_panels) {
        multiply_set(block, {set, std::min(set + cut_.set_panels, panels_.end)});
      }
    }
  }

 private:
  int64_t partial_floats() const { return 2 * call_.kernels.tile_rows * PackedMatrix::panel_columns; }  // per strip and panel
  const RowTile& tile(int64_t index) const { return call_.plan.tiles[static_cast<size_t>(index)]; }

  /// use(row, index within the block)
  template <typename Use>
  void for_rows(RowRange block, Use use) const {
    const int64_t first = tile(block.begin).row, end = tile(block.end - 1).row + tile(block.end - 1).height;
    for (int64_t row = first; row < end; ++row) use(row, row - first);
  }

  void multiply_set(RowRange block, RowRange set) {
    const int64_t depth = call_.b.padded_k();
    for (int64_t index = 0; index < cut_.k_blocks; ++index) {
      const int64_t k = index * cut_.k_block, count = std::min(cut_.k_block, depth - k);
      if (copies_columns_) {
        for_rows(block, [&](int64_t row, int64_t at) { call_.left.copy_columns(row, k, count, copy_ + at * left_stride_); });
      }
      for (int64_t group = set.begin; group < set.end; group += cut_.panels) {
        multiply_group(block, {group, std::min(group + cut_.panels, set.end)}, k, count, set.begin);
      }
    }
  }

  const char* panel(int64_t index, int64_t k) const { return static_cast<const char*>(call_.b.panel(index)) + k * call_.b.depth_bytes(); }

  /// The panels, at the first k of their block, that are read after these; null: none.
  const char* after(RowRange block, RowRange group, int64_t k, int64_t set) const {
    const int64_t set_end = std::min(set + cut_.set_panels, panels_.end);
    if (group.end < set_end) return panel(group.end, k);
    if (k + cut_.k_block < call_.b.padded_k()) return panel(set, k + cut_.k_block);
    if (set_end < panels_.end) return panel(set_end, 0);
    return block.end < tiles_.end ? panel(panels_.begin, 0) : nullptr;
  }

  void multiply_group(RowRange block, RowRange group, int64_t k, int64_t count, int64_t set) {
    const MatrixKernels& kernels = call_.kernels;
    const int64_t y_element = y_bytes(kernels.dtype, call_.options), column_bytes = PackedMatrix::panel_columns * y_element;
    Strip strip;
    strip.a_stride = left_stride_;
    strip.k = count;
    strip.b = panel(group.begin, k);
    strip.b_parts = call_.b.parts();
    strip.panel_bytes = call_.b.panel_bytes();
    strip.first_panel = group.begin;
    strip.panel_count = group.count();
    strip.columns = call_.b.n() - group.begin * PackedMatrix::panel_columns;
    strip.first = k == 0;
    strip.last = k + count >= call_.b.padded_k();
    strip.y_stride = call_.y_stride;
    strip.wide = call_.options.wide;
    strip.residual_stride = call_.options.residual_stride * y_element;
    if (call_.options.bias != nullptr) {
      strip.bias = static_cast<const char*>(call_.options.bias) + group.begin * PackedMatrix::panel_columns * bytes_of(kernels.dtype);
    }
    const char* next = after(block, group, k, set);
    const int64_t strips = (block.count() + kernels.tiles_per_strip - 1) / kernels.tiles_per_strip;
    if (next != nullptr) strip.ahead_bytes = (count * call_.b.depth_bytes() + strips - 1) / strips;
    const int64_t first_row = tile(block.begin).row;
    for (int64_t s = 0; s < strips; ++s) {
      const int64_t t = block.begin + s * kernels.tiles_per_strip;
      strip.tile_count = static_cast<int>(std::min<int64_t>(kernels.tiles_per_strip, block.end - t));
      strip.tiles[1] = {};
      for (int side = 0; side < strip.tile_count; ++side) {
        const RowTile& rows = tile(t + side);
        Tile& target = strip.tiles[side];
        target.a = copy_ != nullptr ? copy_ + (rows.row - first_row) * left_stride_ : call_.left.in_place(rows.row);
        if (!copies_columns_) target.a += k * kernels.left_element_bytes;
        target.y = call_.y + rows.row * call_.y_stride + group.begin * column_bytes;
        target.residual = nullptr;
        if (rows.residual) {
          target.residual = static_cast<const char*>(call_.options.residual) + rows.row * strip.residual_stride + group.begin * column_bytes;
        }
        target.terms = call_.plan.terms.data() + rows.first_term;
        target.term_count = static_cast<int>(rows.term_count);
        target.height = rows.height;
      }
      if (partial_ != nullptr) strip.partial = partial_ + (s * partial_panels_ + group.begin - set) * partial_floats();
      if (next != nullptr) strip.ahead = next + s * strip.ahead_bytes;
      kernels.multiply(strip);
    }
  }

  const Call& call_;
  RowRange tiles_, panels_;
  Blocking cut_;
  int64_t partial_panels_ = 0;
  float* partial_ = nullptr;
  bool copies_columns_ = false;
  int64_t left_stride_ = 0;  // bytes
  char* copy_ = nullptr;
};

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
      PartProduct(call, tile_share, share(b.panel_count(), part % grid.column_parts, grid.column_parts)).run();
    }
    kernels.end();
  }
}

}  // namespace cotune::kernels
