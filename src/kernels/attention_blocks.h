/// Attention over blocks, for any way of computing the products. Included by the attention kernels only.
///
/// Everything is held transposed, [keys][queries] and [head_dim][queries]: queries are lanes. A `Products` type gives
///   Element             uint16_t or float
///   summed_multiple     the summed dimension is padded with zeros to a multiple of this many elements
///   multiply(operands)  c [m][n] (+)= Σ over groups and words of a · b; m and n multiples of 16
#pragma once

#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/attention_scratch.h"
#include "kernels/attention_softmax.h"

namespace cotune::kernels {
namespace {

struct ProductOperands {
  const uint32_t* a;  ///< [m][lda] words
  int64_t lda;
  const uint32_t* b;  ///< [words][ldb]
  int64_t ldb;
  float* c;  ///< [m][ldc]
  int64_t ldc;
  int64_t m;
  int64_t n;
  int64_t words;       ///< summed per group
  bool accumulate;     ///< add to c, exactly: loaded, then one multiply-add after the other
  int64_t groups = 1;  ///< pairs of operands summed one after the other, at these distances in words
  int64_t a_step = 0;
  int64_t b_step = 0;
};

COTUNE_VECTORS_BEGIN

/// What both directions know about a task.
template <typename Products>
struct TaskView {
  using T = typename Products::Element;
  static constexpr int64_t query_words = attention_query_block / elements_per_word<T>;
  static constexpr int64_t key_words = attention_key_block / elements_per_word<T>;

  const AttentionCall& call;
  const AttentionSegment& segment;
  int64_t group;       ///< query heads per key/value head
  int64_t first_head;  ///< of the group
  int64_t head_dim;
  int64_t words;  ///< of a head
  AttentionWords sizes;
  int64_t row_end;  ///< tokens of the row so far: position + query_count

  TaskView(const AttentionCall& c, const AttentionTask& task)
      : call(c),
        segment(c.segments[task.segment]),
        group(c.shape.heads / c.shape.kv_heads),
        first_head(task.kv_head * group),
        head_dim(c.shape.head_dim),
        words(head_dim / elements_per_word<T>),
        sizes(attention_words(elements_per_word<T>, c.shape)),
        row_end(segment.position + segment.query_count) {}

  /// Words to sum over a head: all of sizes.padded only where the products need it.
  int64_t summed_words() const {
    return round_up(head_dim, Products::summed_multiple) / elements_per_word<T>;
  }

  /// The 32 queries of a block in a matrix of this call, at a column.
  RowsView<T> queries(const void* base, int64_t stride, int64_t block, int64_t column) const {
    const int64_t start = block * attention_query_block;
    return {static_cast<const T*>(base) + column, stride, segment.query_begin + start - segment.position,
            std::max<int64_t>(0, segment.position - start),
            std::min<int64_t>(attention_query_block, row_end - start)};
  }

  /// The keys or values from a block on.
  RowsView<T> keys(const void* base, int64_t kv_head, int64_t block) const {
    const int64_t start = block * attention_key_block;
    return {static_cast<const T*>(base) + kv_head * head_dim, segment.kv_stride, start, 0, row_end - start};
  }

  /// Keys of a block that some query of the query block sees, padded.
  int64_t key_count(int64_t query_block, int64_t key_block) const {
    const int64_t start = key_block * attention_key_block;
    const int64_t seen = std::min((query_block + 1) * attention_query_block, row_end) - start;
    return std::min(attention_key_block, round_up(seen, Products::summed_multiple));
  }

  CausalMask mask(int64_t query_block, int64_t key_block) const {
    return {key_block * attention_key_block - query_block * attention_query_block};
  }
  static bool masked(int64_t query_block, int64_t key_block, int64_t key_count) {
    return key_block * attention_key_block + key_count > query_block * attention_query_block + 1;
  }
  static int64_t key_blocks_seen(int64_t query_block) {
    return query_block * attention_query_block / attention_key_block + 1;
  }
};

template <typename Products>
void attention_forward_task(const AttentionCall& call, const AttentionTask& task, uint32_t* scratch) {
  using T = typename Products::Element;
  using View = TaskView<Products>;
  const View view(call, task);
  const AttentionWords& sizes = view.sizes;
  const int64_t head_dim = view.head_dim, padded = sizes.padded;
  const int64_t key_blocks = task.key_blocks.end;
  const int64_t block_words = sizes.key_rows, value_words = sizes.key_columns;
  constexpr int64_t strip = attention_query_block;

  Workspace workspace(scratch);
  uint32_t* k_rows = workspace.take(key_blocks * block_words);
  uint32_t* v_columns = workspace.take(key_blocks * value_words);
  uint32_t* q_transposed = workspace.take(sizes.query_rows);
  float* scores = workspace.take_floats(sizes.scores);
  uint32_t* probabilities = workspace.take(sizes.scores);
  float* out = workspace.take_floats(sizes.query_sums);
  for (int64_t b = 0; b < key_blocks; ++b) {
    pack_rows(view.keys(view.segment.k, task.kv_head, b), attention_key_block, view.words, padded,
              k_rows + b * block_words);
    pack_paired_transposed(view.keys(view.segment.v, task.kv_head, b), View::key_words, head_dim,
                           v_columns + b * value_words);
  }

  const float to_log2 = call.shape.scale * log2_of_e;
  for (int64_t query_block = task.query_blocks.begin; query_block < task.query_blocks.end; ++query_block) {
    for (int64_t head = view.first_head; head < view.first_head + view.group; ++head) {
      const RowsView<T> queries = view.queries(call.q, call.q_stride, query_block, head * head_dim);
      pack_transposed(queries, strip, view.words, padded, q_transposed);
      SoftmaxState state;
      std::fill_n(state.maximum, strip, -std::numeric_limits<float>::infinity());
      std::fill_n(state.sum, strip, 0.f);
      for (int64_t b = 0; b < View::key_blocks_seen(query_block); ++b) {
        const int64_t key_count = view.key_count(query_block, b);
        Products::multiply({k_rows + b * block_words, padded, q_transposed, strip, scores, strip, key_count, strip,
                            view.summed_words(), false});
        softmax_block<T>(scores, key_count, to_log2, View::masked(query_block, b, key_count),
                         view.mask(query_block, b), state, b == 0 ? nullptr : out, head_dim, probabilities);
        Products::multiply({v_columns + b * value_words, View::key_words, probabilities, strip, out, strip, head_dim,
                            strip, key_count / elements_per_word<T>, b != 0});
      }
      alignas(64) float inverse_sum[strip];
      for (int64_t i = 0; i < strip; ++i) inverse_sum[i] = 1.f / state.sum[i];
      const RowsView<T> target = view.queries(call.out, call.out_stride, query_block, 0);
      store_transposed(out, head_dim, inverse_sum, target, static_cast<T*>(call.out) + head * head_dim);
      for (int64_t i = target.begin; i < target.end; ++i) {
        call.lse[(target.first + i) * call.shape.heads + head] =
            float((double(state.maximum[i]) + std::log2(double(state.sum[i]))) * 0.69314718055994531);
      }
    }
  }
}

/// Packed queries of one head and query block, for the backward pass.
struct QueryOperands {
  uint32_t* q_transposed;
  uint32_t* dout_transposed;
  uint32_t* q_paired;
  uint32_t* dout_paired;
  float* dq;     ///< [head_dim][32]
  float* lse;    ///< [32], units of log2; infinite where there is no query
  float* delta;  ///< [32], times scale
};

template <typename Products>
void pack_queries(const TaskView<Products>& view, int64_t query_block, int64_t head, bool kv_gradient,
                  const QueryOperands& to) {
  using T = typename Products::Element;
  const AttentionCall& call = view.call;
  const int64_t column = head * view.head_dim;
  constexpr int64_t strip = attention_query_block;
  const RowsView<T> q = view.queries(call.q, call.q_stride, query_block, column);
  const RowsView<T> dout = view.queries(call.dout, call.dout_stride, query_block, column);
  const RowsView<T> out = view.queries(call.out, call.out_stride, query_block, column);
  pack_transposed(q, strip, view.words, view.sizes.padded, to.q_transposed);
  pack_transposed(dout, strip, view.words, view.sizes.padded, to.dout_transposed);
  if (kv_gradient) {
    pack_paired(q, view.query_words, view.head_dim, to.q_paired);
    pack_paired(dout, view.query_words, view.head_dim, to.dout_paired);
  }
  for (int64_t i = 0; i < strip; ++i) {
    to.lse[i] = std::numeric_limits<float>::infinity();
    to.delta[i] = 0;
    if (!q.has(i)) continue;
    Vector sum = no_values();
    for (int64_t c = 0; c < view.head_dim; c += 16) sum = multiply_add(load(dout.row(i) + c), load(out.row(i) + c), sum);
    to.delta[i] = lane_sum(sum) * call.shape.scale;
    to.lse[i] = call.lse[(q.first + i) * call.shape.heads + head] * log2_of_e;
  }
}

/// Accumulators [keys][head_dim] of a task's key blocks: zero, or what later chunks of the chain left.
template <typename Products>
void load_accumulator(const TaskView<Products>& view, const AttentionTask& task, const float* source, float* to) {
  const int64_t begin = task.key_blocks.begin * attention_key_block, end = task.key_blocks.end * attention_key_block;
  const int64_t stride = view.call.shape.kv_heads * view.head_dim;
  for (int64_t key = begin; key < end; ++key, to += view.head_dim) {
    if (source == nullptr || key >= view.row_end) {
      std::fill_n(to, view.head_dim, 0.f);
    } else {
      std::copy_n(source + key * stride + task.kv_head * view.head_dim, view.head_dim, to);
    }
  }
}

template <typename Products>
void store_accumulator(const TaskView<Products>& view, const AttentionTask& task, const float* from, float* accumulator,
                       void* whole, int64_t whole_stride) {
  using T = typename Products::Element;
  const int64_t begin = task.key_blocks.begin * attention_key_block;
  const int64_t end = std::min(task.key_blocks.end * attention_key_block, view.row_end);
  const int64_t column = task.kv_head * view.head_dim;
  for (int64_t key = begin; key < end; ++key, from += view.head_dim) {
    if (accumulator != nullptr) {
      std::copy_n(from, view.head_dim, accumulator + key * view.call.shape.kv_heads * view.head_dim + column);
    } else {
      T* row = static_cast<T*>(whole) + key * whole_stride + column;
      for (int64_t c = 0; c < view.head_dim; c += 16) store(row + c, load(from + c));
    }
  }
}

template <typename Products>
void attention_backward_task(const AttentionCall& call, const AttentionTask& task, uint32_t* scratch) {
  using T = typename Products::Element;
  using View = TaskView<Products>;
  const View view(call, task);
  const AttentionWords& sizes = view.sizes;
  const int64_t head_dim = view.head_dim, padded = sizes.padded, group = view.group;
  constexpr int64_t strip = attention_query_block;
  const int64_t first_key_block = task.key_blocks.begin;
  const int64_t key_blocks = task.key_blocks.end - first_key_block;
  const int64_t row_words = sizes.key_rows, column_words = sizes.key_columns;
  const int64_t accumulator_words = sizes.accumulator, operand_words = sizes.scores;
  const int64_t query_words = sizes.query_rows, paired_words = sizes.query_pairs, head_words = sizes.query_head;

  Workspace workspace(scratch);
  uint32_t* k_rows = workspace.take(key_blocks * row_words);
  uint32_t* v_rows = workspace.take(key_blocks * row_words);
  uint32_t* k_columns = workspace.take(key_blocks * column_words);
  float* dk = workspace.take_floats(key_blocks * accumulator_words);
  float* dv = workspace.take_floats(key_blocks * accumulator_words);
  float* scores = workspace.take_floats(operand_words);
  float* dp = workspace.take_floats(operand_words);
  uint32_t* ds_pairs = workspace.take(operand_words);
  uint32_t* p_rows = workspace.take(group * operand_words);
  uint32_t* ds_rows = workspace.take(group * operand_words);
  uint32_t* heads = workspace.take(group * head_words);
  const auto operands_of = [&](int64_t h) -> QueryOperands {
    uint32_t* at = heads + h * head_words;
    float* floats = reinterpret_cast<float*>(at + 2 * query_words + 2 * paired_words);
    return {at,     at + query_words,          at + 2 * query_words,             at + 2 * query_words + paired_words,
            floats, floats + head_dim * strip, floats + head_dim * strip + strip};
  };

  for (int64_t b = 0; b < key_blocks; ++b) {
    const RowsView<T> keys = view.keys(view.segment.k, task.kv_head, first_key_block + b);
    const RowsView<T> values = view.keys(view.segment.v, task.kv_head, first_key_block + b);
    pack_rows(keys, attention_key_block, view.words, padded, k_rows + b * row_words);
    pack_rows(values, attention_key_block, view.words, padded, v_rows + b * row_words);
    if (task.query_gradient) pack_paired_transposed(keys, View::key_words, head_dim, k_columns + b * column_words);
  }
  const AttentionKvGradient& gradient = call.gradients[task.segment];
  if (task.kv_gradient) {
    load_accumulator(view, task, gradient.dk_accumulator, dk);
    load_accumulator(view, task, gradient.dv_accumulator, dv);
  }

  for (int64_t query_block = task.query_blocks.end - 1; query_block >= task.query_blocks.begin; --query_block) {
    for (int64_t h = 0; h < group; ++h) {
      pack_queries(view, query_block, view.first_head + h, task.kv_gradient, operands_of(h));
    }
    const int64_t seen_end = std::min(task.key_blocks.end, View::key_blocks_seen(query_block));
    for (int64_t b = first_key_block; b < seen_end; ++b) {
      const int64_t key_count = view.key_count(query_block, b), slot = b - first_key_block;
      for (int64_t h = 0; h < group; ++h) {
        const QueryOperands queries = operands_of(h);
        Products::multiply({k_rows + slot * row_words, padded, queries.q_transposed, strip, scores, strip, key_count,
                            strip, view.summed_words(), false});
        Products::multiply({v_rows + slot * row_words, padded, queries.dout_transposed, strip, dp, strip, key_count,
                            strip, view.summed_words(), false});
        const BackwardOperands to = {task.kv_gradient ? p_rows + h * operand_words : nullptr,
                                     task.kv_gradient ? ds_rows + h * operand_words : nullptr,
                                     task.query_gradient ? ds_pairs : nullptr};
        softmax_backward_block<T>(scores, dp, key_count, call.shape.scale, View::masked(query_block, b, key_count),
                                  view.mask(query_block, b), queries.lse, queries.delta, to);
        if (task.query_gradient) {
          Products::multiply({k_columns + slot * column_words, View::key_words, ds_pairs, strip, queries.dq, strip,
                              head_dim, strip, key_count / elements_per_word<T>, b != 0});
        }
      }
      if (task.kv_gradient) {
        const QueryOperands queries = operands_of(0);
        Products::multiply({p_rows, View::query_words, queries.dout_paired, head_dim, dv + slot * accumulator_words,
                            head_dim, key_count, head_dim, View::query_words, true, group, operand_words, head_words});
        Products::multiply({ds_rows, View::query_words, queries.q_paired, head_dim, dk + slot * accumulator_words,
                            head_dim, key_count, head_dim, View::query_words, true, group, operand_words, head_words});
      }
    }
    if (task.query_gradient) {
      alignas(64) float ones[strip];
      std::fill_n(ones, strip, 1.f);
      for (int64_t h = 0; h < group; ++h) {
        const RowsView<T> target = view.queries(call.dq, call.dq_stride, query_block, 0);
        store_transposed(operands_of(h).dq, head_dim, ones, target,
                         static_cast<T*>(call.dq) + (view.first_head + h) * head_dim);
      }
    }
  }

  if (task.kv_gradient) {
    store_accumulator(view, task, dk, gradient.dk_accumulator, gradient.dk, gradient.stride);
    store_accumulator(view, task, dv, gradient.dv_accumulator, gradient.dv, gradient.stride);
  }
}

COTUNE_VECTORS_END

inline void nothing() {}

/// Those that multiply so; enter and leave as in AttentionKernels.
template <typename Products>
const AttentionKernels& attention_by(void (*enter)() = nothing, void (*leave)() = nothing) {
  static const AttentionKernels kernels = {enter, leave, attention_forward_task<Products>,
                                           attention_backward_task<Products>, elements_per_word<typename Products::Element>};
  return kernels;
}

}  // namespace
}  // namespace cotune::kernels
