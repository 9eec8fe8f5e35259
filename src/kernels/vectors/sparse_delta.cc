#include "kernels/sparse_delta.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "kernels/row_blocks.h"
#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

constexpr int64_t token_block = 64;

/// A thread's block of tokens, transposed: [features][64] f32. Kept between calls.
struct Transposed {
  std::vector<float> memory;
  float* reserve(int64_t features) {
    if (int64_t(memory.size()) < features * token_block) memory.resize(features * token_block);
    return memory.data();
  }
};

COTUNE_VECTORS_BEGIN

/// to[f][t] = from[t][f] for features [begin, end); tokens from `count` on are zero.
template <typename T>
void transpose_block(const T* from, int64_t stride, int64_t count, int64_t begin, int64_t end, float* to) {
  for (int64_t f = begin; f < end; f += 16) {
    const FirstLanes lanes = first_lanes(end - f);
    for (int64_t t = 0; t < token_block; t += 16) {
      Words words[16];
      for (int64_t r = 0; r < 16; ++r) {
        words[r] = t + r < count ? as_words(load(from + (t + r) * stride + f, lanes)) : no_words();
      }
      transpose(words);
      const int64_t rows = std::min<int64_t>(16, end - f);
      for (int64_t r = 0; r < rows; ++r) store_words(to + (f + r) * token_block + t, words[r]);
    }
  }
}

/// to[t][f + r] += from[r][t] for r < columns ≤ 16, rounded to T.
template <typename T>
void add_transposed(const float* from, int64_t columns, int64_t count, T* to, int64_t stride) {
  const FirstLanes lanes = first_lanes(columns);
  for (int64_t t = 0; t < count; t += 16) {
    Words words[16];
    for (int64_t r = 0; r < 16; ++r) {
      words[r] = r < columns ? load_words(from + r * token_block + t) : no_words();
    }
    transpose(words);
    const int64_t rows = std::min<int64_t>(16, count - t);
    for (int64_t r = 0; r < rows; ++r) {
      T* row = to + (t + r) * stride;
      store(row, load(row, lanes) + as_vector(words[r]), lanes);
    }
  }
}

template <typename T, typename Y>
void forward_block(const SparseDelta& delta, const float* values, const T* x, int64_t x_stride, int64_t count, Y* y,
                   int64_t y_stride, Transposed& scratch) {
  float* x_columns = scratch.reserve(delta.inputs);
  transpose_block(x, x_stride, count, 0, delta.inputs, x_columns);
  alignas(64) float sums[16 * token_block];
  for (int64_t j = 0; j < delta.outputs; j += 16) {
    const int64_t columns = std::min<int64_t>(16, delta.outputs - j);
    if (delta.column_offsets[j] == delta.column_offsets[j + columns]) continue;
    for (int64_t c = 0; c < columns; ++c) {
      Vector sum[4] = {no_values(), no_values(), no_values(), no_values()};
      for (int64_t e = delta.column_offsets[j + c]; e < delta.column_offsets[j + c + 1]; ++e) {
        const float* column = x_columns + int64_t(delta.row_indices[e]) * token_block;
        const Vector value = splat(values[e]);
        for (int i = 0; i < 4; ++i) sum[i] = multiply_add(value, load(column + i * 16), sum[i]);
      }
      for (int i = 0; i < 4; ++i) store(sums + c * token_block + i * 16, sum[i]);
    }
    add_transposed(sums, columns, count, y + j, y_stride);
  }
}

template <typename T>
void input_gradient_block(const SparseDelta& delta, const float* values, const T* dy, int64_t dy_stride, int64_t count,
                          T* dx, int64_t dx_stride, Transposed& dy_scratch, Transposed& dx_scratch) {
  float* dy_columns = dy_scratch.reserve(delta.outputs);
  float* dx_columns = dx_scratch.reserve(delta.inputs);
  transpose_block(dy, dy_stride, count, 0, delta.outputs, dy_columns);
  std::fill_n(dx_columns, delta.inputs * token_block, 0.f);
  for (int64_t j = 0; j < delta.outputs; ++j) {
    Vector column[4];
    for (int i = 0; i < 4; ++i) column[i] = load(dy_columns + j * token_block + i * 16);
    for (int64_t e = delta.column_offsets[j]; e < delta.column_offsets[j + 1]; ++e) {
      float* sums = dx_columns + int64_t(delta.row_indices[e]) * token_block;
      const Vector value = splat(values[e]);
      for (int i = 0; i < 4; ++i) {
        store(sums + i * 16, multiply_add(value, column[i], load(sums + i * 16)));
      }
    }
  }
  for (int64_t f = 0; f < delta.inputs; f += 16) {
    add_transposed(dx_columns + f * token_block, std::min<int64_t>(16, delta.inputs - f), count, dx + f, dx_stride);
  }
}

/// Adds one token block's part to the entries of columns [begin, end).
void value_gradient_columns(const SparseDelta& delta, int64_t begin, int64_t end, const float* x_columns,
                            const float* dy_columns, float* value_gradients) {
  for (int64_t j = begin; j < end; ++j) {
    Vector column[4];
    for (int i = 0; i < 4; ++i) column[i] = load(dy_columns + j * token_block + i * 16);
    for (int64_t e = delta.column_offsets[j]; e < delta.column_offsets[j + 1]; ++e) {
      const float* x = x_columns + int64_t(delta.row_indices[e]) * token_block;
      Vector sum = column[0] * load(x);
      for (int i = 1; i < 4; ++i) sum = multiply_add(column[i], load(x + i * 16), sum);
      value_gradients[e] += lane_sum(sum);
    }
  }
}

COTUNE_VECTORS_END

/// The columns of one of `parts` equal shares of the entries.
int64_t first_column(const SparseDelta& delta, int64_t part, int64_t parts) {
  if (part == parts) return delta.outputs;
  const int64_t entry = delta.column_offsets[delta.outputs] * part / parts;
  return std::upper_bound(delta.column_offsets, delta.column_offsets + delta.outputs + 1, entry) -
         delta.column_offsets - 1;
}

}  // namespace

void sparse_delta_forward(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands) {
  std::vector<RowBlock> blocks;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int64_t begin = groups[g].rows.begin; begin < groups[g].rows.end; begin += token_block) {
      blocks.push_back({g, begin, std::min(begin + token_block, groups[g].rows.end)});
    }
  }
  const auto count = int64_t(blocks.size());
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int64_t b = 0; b < count; ++b) {
      static thread_local Transposed scratch;
      const RowBlock& block = blocks[size_t(b)];
      const SparseRows& group = groups[block.run];
      const T* x = static_cast<const T*>(operands.from) + block.begin * operands.from_stride + group.from_column;
      const int64_t first = block.begin * operands.to_stride + group.to_column;
      const auto add_to = [&](auto* y) {
        forward_block(group.delta, group.values, x, operands.from_stride, block.end - block.begin, y + first, operands.to_stride, scratch);
      };
      operands.wide ? add_to(static_cast<float*>(operands.to)) : add_to(static_cast<T*>(operands.to));
    }
  });
}

void sparse_delta_input_gradient(DType dtype, std::span<const SparseRows> groups, const SparseOperands& operands) {
  const auto rows_of = [&](size_t group) { return groups[group].rows; };
  const RowRuns runs = runs_of_rows(groups.size(), rows_of);
  const std::vector<RowBlock> blocks = blocks_of_rows(runs, token_block, rows_of);
  const auto count = int64_t(blocks.size());
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int64_t b = 0; b < count; ++b) {
      static thread_local Transposed from_scratch, to_scratch;
      const RowBlock& block = blocks[size_t(b)];
      for (size_t i = runs.begins[block.run]; i < runs.begins[block.run + 1]; ++i) {
        const SparseRows& group = groups[runs.order[i]];
        input_gradient_block(group.delta, group.values,
                             static_cast<const T*>(operands.from) + block.begin * operands.from_stride + group.from_column,
                             operands.from_stride, block.end - block.begin,
                             static_cast<T*>(operands.to) + block.begin * operands.to_stride + group.to_column,
                             operands.to_stride, from_scratch, to_scratch);
      }
    }
  });
}

void sparse_delta_value_gradient(DType dtype, std::span<const SparseValueGradient> groups, const void* x, int64_t x_stride,
                                 const void* dy, int64_t dy_stride) {
  int64_t inputs = 0, outputs = 0;
  for (const SparseValueGradient& group : groups) {
    inputs = std::max(inputs, group.delta.inputs);
    outputs = std::max(outputs, group.delta.outputs);
  }
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    static thread_local Transposed x_scratch, dy_scratch;
    float* x_columns = x_scratch.reserve(inputs);
    float* dy_columns = dy_scratch.reserve(outputs);
#pragma omp parallel
    for (const SparseValueGradient& group : groups) {
      const SparseDelta& delta = group.delta;
      const int64_t x_stripes = (delta.inputs + 15) / 16, stripes = x_stripes + (delta.outputs + 15) / 16;
      for (int64_t begin = group.rows.begin; begin < group.rows.end; begin += token_block) {
        const int64_t count = std::min(token_block, group.rows.end - begin);
#pragma omp for schedule(static)
        for (int64_t s = 0; s < stripes; ++s) {
          const bool of_x = s < x_stripes;
          const int64_t feature = (of_x ? s : s - x_stripes) * 16;
          const int64_t end = std::min(feature + 16, of_x ? delta.inputs : delta.outputs);
          const T* rows = of_x ? static_cast<const T*>(x) + begin * x_stride
                               : static_cast<const T*>(dy) + begin * dy_stride + group.dy_column;
          transpose_block(rows, of_x ? x_stride : dy_stride, count, feature, end, of_x ? x_columns : dy_columns);
        }
        const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
        value_gradient_columns(delta, first_column(delta, part, parts), first_column(delta, part + 1, parts), x_columns,
                               dy_columns, group.gradient);
#pragma omp barrier
      }
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
