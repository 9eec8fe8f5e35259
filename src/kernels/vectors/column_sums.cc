#include "kernels/column_sums.h"

#include <vector>

#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t block_columns = 64;

COTUNE_VECTORS_BEGIN

template <typename T>
void add_sum(const ColumnSum& sum, int64_t begin, int64_t end) {
  const T* right = static_cast<const T*>(sum.right);
  for (int64_t c = begin; c < end; c += lane_count) {
    const FirstLanes lanes = first_lanes(end - c);
    Vector total = no_values();
    for (int64_t t = 0; t < sum.rows; ++t)
      total = total + load(right + t * sum.stride + c, lanes);
    store(sum.gradient + c, load(sum.gradient + c, lanes) + total, lanes);
  }
}

COTUNE_VECTORS_END

/// Columns from `column` on of the sums [begin, end), which are of one gradient.
struct Block {
  size_t begin, end;
  int64_t column;
};

}  // namespace

void column_sums(DType dtype, std::span<const ColumnSum> sums) {
  std::vector<Block> blocks;
  for (size_t begin = 0, end = 0; begin < sums.size(); begin = end) {
    while (end < sums.size() && sums[end].gradient == sums[begin].gradient) ++end;
    for (int64_t column = 0; column < sums[begin].columns; column += block_columns)
      blocks.push_back({begin, end, column});
  }
  const auto count = int64_t(blocks.size());
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(static) if (count > 1)
    for (int64_t b = 0; b < count; ++b) {
      const Block& block = blocks[size_t(b)];
      for (size_t i = block.begin; i < block.end; ++i) {
        add_sum<T>(sums[i], block.column, std::min(block.column + block_columns, sums[i].columns));
      }
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
