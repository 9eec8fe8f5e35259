#include "kernels/strip_product.h"

#include <algorithm>

namespace cotune::kernels {

void multiply_strip(const MatrixKernels& kernels, const LeftOperand& left, const PackedMatrix& b,
                    const StripProduct& rows) {
  const int64_t depth = b.padded_k();
  ThreadScratch& scratch = ThreadScratch::mine();
  Strip strip;
  strip.tile_count = rows.heights[1] > 0 ? 2 : 1;
  strip.a_stride = left.stride();
  strip.b_parts = b.parts();
  strip.panel_bytes = b.panel_bytes();
  strip.panel_count = b.panel_count();
  strip.columns = b.n();
  strip.zero_tail = rows.zero_tail;
  strip.scale = rows.scale;
  strip.y_stride = rows.y_stride;
  const char* x = left.in_place(rows.row);
  if (left.copies()) {
    const int64_t count = rows.heights[0] + rows.heights[1];
    char* copy = scratch.get(ThreadScratch::left, left.copy_bytes(count));
    for (int64_t i = 0; i < count; ++i) left.copy_row(rows.row + i, copy + i * left.stride());
    x = copy;
  }
  if (depth > kernels.k_block) {
    strip.partial = reinterpret_cast<float*>(scratch.get(
        ThreadScratch::partial,
        b.panel_count() * 2 * kernels.tile_rows * PackedMatrix::panel_columns * int64_t{sizeof(float)}));
  }
  for (int side = 0; side < strip.tile_count; ++side) {
    Tile& tile = strip.tiles[side];
    tile.height = rows.heights[side];
    tile.y = rows.y + side * rows.heights[0] * strip.y_stride;
  }
  int64_t k = 0;
  do {
    strip.k = std::min(kernels.k_block, depth - k);
    strip.first = k == 0;
    strip.last = k + strip.k == depth;
    strip.b = static_cast<const char*>(b.panel(0)) + k * b.depth_bytes();
    for (int side = 0; side < strip.tile_count; ++side) {
      strip.tiles[side].a = x + side * rows.heights[0] * left.stride() + k * kernels.left_element_bytes;
    }
    kernels.multiply(strip);
    k += strip.k;
  } while (k < depth);
}

}  // namespace cotune::kernels
