// y = start + Σ mask ⊙ (s·F) + bias. y is divided into pieces, rectangles whose rows and columns have the same terms; a block
// computes 128 rows × 128 columns of one. A lane's part of a row of y is 8 consecutive columns. Where terms have no masks
// and few ranks, each warp keeps its columns of their factors in registers.

#include <algorithm>
#include <vector>

#include "cuda/dropout_mask.cuh"
#include "cuda/launch.cuh"
#include "cuda/low_rank.h"
#include "cuda/tensor_core.cuh"

namespace cotune::cuda {
namespace {

constexpr int block_rows = 128, masked_rows = 64, warps = 4, warp_columns = 32, block_columns = warps * warp_columns;
constexpr int step_ranks = 16, most_held_steps = 4;
constexpr int most_terms = 128, most_pieces = 128;  // of a launch, which takes them as parameters (at most 32 KiB)

struct Term {
  const __nv_bfloat16* s;       ///< at the piece's first row
  const __nv_bfloat16* factor;  ///< at the piece's first column
  const float* bias;            ///< at the piece's first column; or nullptr
  int32_t s_stride, ranks, factor_stride;
  float mask_scale;
  uint64_t mask_key;
  uint32_t mask_threshold;
  int32_t first_feature;  ///< of the mask, at the piece's first column
};
struct Piece {
  int64_t row_begin;
  int32_t rows, column_begin, columns, first_term, terms, first_block;
  bool has_residual;
};
struct Start {
  bool keeps_y;
  const __nv_bfloat16* residual;
  int64_t residual_stride;
};
struct Call {
  int32_t piece_count = 0, term_count = 0, blocks = 0;
  Start start{};
  GpuMaskRows mask_rows;
  Piece pieces[most_pieces];
  Term terms[most_terms];
};
static_assert(sizeof(Call) < 24 * 1024);

__device__ inline void add_pairs(float (&values)[8], uint4 pairs) {
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  for (int i = 0; i < 4; ++i) {
    const float2 pair = to_floats(words[i]);
    values[2 * i] += pair.x;
    values[2 * i + 1] += pair.y;
  }
}

/// Ranks step … step + 15 of a factor as the columns' side of a product: [n] holds columns 8(g/2) + 2n + g%2 of the warp's
/// 32, so that a lane's results lie in 8 columns.
__device__ inline void load_factor(uint32_t (&values)[4][2], const Term& term, int step, int first_column, int columns) {
  const auto [g, t] = this_lane();
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int column = first_column + 8 * (g / 2) + 2 * n + g % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int rank = step + 8 * half + 2 * t;
      const auto value = [&](int r) {
        const bool there = r < term.ranks && column < columns;
        return there ? static_cast<uint32_t>(
                           __bfloat16_as_ushort(term.factor[static_cast<int64_t>(r) * term.factor_stride + column]))
                     : 0u;
      };
      values[n][half] = value(rank) | value(rank + 1) << 16;
    }
  }
}

/// 16 rows of s, ranks step … step + 15, as the rows' side.
__device__ inline void load_s(uint32_t (&values)[4], const __nv_bfloat16* s, int64_t stride, int ranks, int step,
                              int first_row, int rows) {
  const auto [g, t] = this_lane();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + 8 * (i % 2) + g, rank = step + 8 * (i / 2) + 2 * t;
    values[i] = load4_or_zero(s + row * stride + rank, row < rows && rank < ranks);
  }
}

/// What a lane's 8 columns of every row begin with: the biases of the terms.
__device__ inline void load_biases(float (&values)[8], const Call& call, const Piece& piece, int column) {
  for (int i = 0; i < piece.terms; ++i) {
    const float* bias = call.terms[piece.first_term + i].bias;
    if (bias == nullptr) continue;
#pragma unroll
    for (int c = 0; c < 8; ++c) values[c] += bias[column + c];
  }
}

/// Writes a lane's 8 columns of 16 rows: start + sums, with what y and the residual have there.
__device__ inline void write_rows(const float (&start)[8], const float (&sums)[4][4], const Call& call,
                                  const Piece& piece, int first_row, int column, __nv_bfloat16* y, int64_t y_stride) {
  const int g = this_lane().g;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half + g;
    if (row >= piece.rows) continue;
    float values[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) values[c] = start[c] + sums[c / 2][2 * half + c % 2];
    const int64_t whole_row = piece.row_begin + row, whole_column = piece.column_begin + column;
    __nv_bfloat16* to = y + whole_row * y_stride + whole_column;
    if (call.start.keeps_y) add_pairs(values, load16(to));
    if (piece.has_residual) {
      add_pairs(values, load16(call.start.residual + whole_row * call.start.residual_stride + whole_column));
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(to_pair(values[0], values[1]), to_pair(values[2], values[3]),
                                               to_pair(values[4], values[5]), to_pair(values[6], values[7]));
  }
}

/// The piece of a block, and where the block lies in it.
struct Place {
  const Piece* piece;
  int first_row, first_column;  ///< first_column: of the warp
};
__device__ inline Place place_of_block(const Call& call) {
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const Piece& piece = call.pieces[entry_of_block(call.pieces, call.piece_count)];
  const int across = (piece.columns + block_columns - 1) / block_columns, place = block - piece.first_block;
  return {&piece, place / across * block_rows, place % across * block_columns + warp * warp_columns};
}

/// Terms without masks, of `held` steps of 16 ranks together at most.
template <int held>
__global__ void __launch_bounds__(32 * warps)
    expand_held_kernel(const __grid_constant__ Call call, __nv_bfloat16* y, int64_t y_stride) {
  const int t = this_lane().t;
  const Place place = place_of_block(call);
  const Piece& piece = *place.piece;
  if (place.first_column >= piece.columns) return;
  const int column = place.first_column + 8 * t;  // of this lane's 8

  constexpr int slots = held > 0 ? held : 1;
  uint32_t factors[slots][4][2];
  const __nv_bfloat16* s[slots];
  int strides[slots], ranks[slots], steps[slots];
  int term_index = 0, next_step = 0;
#pragma unroll
  for (int h = 0; h < held; ++h) {
    ranks[h] = 0;
    if (term_index >= piece.terms) continue;
    const Term& term = call.terms[piece.first_term + term_index];
    s[h] = term.s;
    strides[h] = term.s_stride;
    ranks[h] = term.ranks;
    steps[h] = next_step;
    load_factor(factors[h], term, next_step, place.first_column, piece.columns);
    next_step += step_ranks;
    if (next_step >= term.ranks) {
      next_step = 0;
      ++term_index;
    }
  }
  float start[8] = {};
  if (column < piece.columns) load_biases(start, call, piece, column);
  const int last_row = min(place.first_row + block_rows, piece.rows);
#pragma unroll 2
  for (int first = place.first_row; first < last_row; first += 16) {
    __syncwarp();  // lanes beyond the columns have not written
    float sums[4][4] = {};
#pragma unroll
    for (int h = 0; h < held; ++h) {
      if (ranks[h] == 0) continue;
      uint32_t rows[4];
      load_s(rows, s[h], strides[h], ranks[h], steps[h], first, piece.rows);
#pragma unroll
      for (int n = 0; n < 4; ++n) multiply_add(sums[n], rows, factors[h][n][0], factors[h][n][1]);
    }
    if (column < piece.columns) write_rows(start, sums, call, piece, first, column, y, y_stride);
  }
}

/// The sums of one term for 64 rows × 32 columns: sums[m][n][..] of rows 16m + g (+ 8), columns 8t + 2n (+ 1).
__device__ inline void add_term(float (&sums)[4][4][4], const Term& term, int first_row, int rows, int first_column,
                                int columns) {
  for (int step = 0; step < term.ranks; step += step_ranks) {
    uint32_t factor[4][2];
    load_factor(factor, term, step, first_column, columns);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint32_t s[4];
      load_s(s, term.s, term.s_stride, term.ranks, step, first_row + 16 * m, rows);
#pragma unroll
      for (int n = 0; n < 4; ++n) multiply_add(sums[m][n], s, factor[n][0], factor[n][1]);
    }
  }
}

/// Adds mask ⊙ products of a term.
__device__ inline void add_masked(float (&sums)[4][4][4], const float (&products)[4][4][4], const Term& term,
                                  const Call& call, const Piece& piece, int first_row, int column) {
  const int g = this_lane().g;
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + g;
      if (row >= piece.rows) continue;
      const uint64_t row_key = mask_row_key(term.mask_key, call.mask_rows.example_keys[piece.row_begin + row],
                                            call.mask_rows.positions[piece.row_begin + row]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const auto feature = static_cast<uint32_t>(term.first_feature + column + 2 * n + c);
          const float mask = mask_keeps(row_key, term.mask_threshold, feature) ? term.mask_scale : 0.0f;
          // A product that is not finite stays so where the mask drops it: 0 · inf, as on the CPU.
          sums[m][n][2 * half + c] += products[m][n][2 * half + c] * mask;
        }
      }
    }
  }
}

/// Any terms.
__global__ void __launch_bounds__(32 * warps)
    expand_kernel(const __grid_constant__ Call call, __nv_bfloat16* y, int64_t y_stride) {
  const int t = this_lane().t;
  const Place place = place_of_block(call);
  const Piece& piece = *place.piece;
  if (place.first_column >= piece.columns) return;
  const int column = place.first_column + 8 * t;  // of this lane's 8
  for (int part = 0; part < block_rows / masked_rows; ++part) {
    const int first_row = place.first_row + part * masked_rows;
    if (first_row >= piece.rows) return;
    __syncwarp();  // lanes beyond the columns have not written
    float sums[4][4][4] = {};
    for (int i = 0; i < piece.terms; ++i) {
      const Term& term = call.terms[piece.first_term + i];
      if (term.mask_scale == 0) {  // in the order of the other kernel: equal bits
        add_term(sums, term, first_row, piece.rows, place.first_column, piece.columns);
        continue;
      }
      float products[4][4][4] = {};
      add_term(products, term, first_row, piece.rows, place.first_column, piece.columns);
      add_masked(sums, products, term, call, piece, first_row, column);
    }
    if (column >= piece.columns) continue;
    float start[8] = {};
    load_biases(start, call, piece, column);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      write_rows(start, sums[m], call, piece, first_row + 16 * m, column, y, y_stride);
    }
  }
}

/// Where rows or columns change what they have: ascending, from 0 to `end`.
std::vector<int64_t> edges(std::vector<int64_t> places, int64_t end) {
  places.push_back(0);
  places.push_back(end);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

bool holds(const GpuRows& outer, const GpuRows& inner) { return outer.begin <= inner.begin && inner.end <= outer.end; }

Term term_of(const GpuExpandTerm& given, const GpuRows& rows, int64_t column) {
  const int64_t skipped = column - given.column_begin;
  Term term{};
  term.s = static_cast<const __nv_bfloat16*>(given.s) + (rows.begin - given.rows.begin) * given.s_stride;
  term.factor = static_cast<const __nv_bfloat16*>(given.factor) + skipped;
  term.bias = given.bias == nullptr ? nullptr : given.bias + skipped;
  term.s_stride = static_cast<int32_t>(given.s_stride);
  term.ranks = static_cast<int32_t>(given.rank);
  term.factor_stride = static_cast<int32_t>(given.width);
  if (given.mask.probability > 0) {
    term.mask_scale = mask_scale(given.mask.probability);
    term.mask_threshold = mask_threshold(given.mask.probability);
    term.mask_key = given.mask.key;
    term.first_feature = static_cast<int32_t>(skipped);
  }
  return term;
}

class Launcher {
 public:
  Launcher(cudaStream_t stream, const GpuExpandStart& start, GpuMaskRows mask_rows, void* y, int64_t y_stride)
      : stream_(stream), y_(static_cast<__nv_bfloat16*>(y)), y_stride_(y_stride) {
    call_.start = {start.keeps_y, static_cast<const __nv_bfloat16*>(start.residual), start.residual_stride};
    call_.mask_rows = mask_rows;
  }

  void add(const GpuRows& rows, int64_t column, int64_t columns, bool has_residual, const std::vector<Term>& terms) {
    if (terms.size() > most_terms) refuse("expand", std::to_string(terms.size()) + " terms of the same rows and columns");
    if (call_.piece_count == most_pieces || call_.term_count + terms.size() > most_terms) launch();
    const int64_t blocks = divide_up(rows.count(), block_rows) * divide_up(columns, block_columns);
    call_.pieces[call_.piece_count++] = {rows.begin, static_cast<int32_t>(rows.count()), static_cast<int32_t>(column),
                                         static_cast<int32_t>(columns), call_.term_count,
                                         static_cast<int32_t>(terms.size()), call_.blocks, has_residual};
    int steps = 0;
    for (const Term& term : terms) {
      call_.terms[call_.term_count++] = term;
      masked_ = masked_ || term.mask_scale != 0;
      steps += static_cast<int>(divide_up(term.ranks, step_ranks));
    }
    most_steps_ = std::max(most_steps_, steps);
    call_.blocks += static_cast<int32_t>(blocks);
  }

  void launch() {
    if (call_.blocks > 0) {
      const dim3 grid(static_cast<unsigned>(call_.blocks)), block(32 * warps);
      const auto kernel = masked_ || most_steps_ > most_held_steps ? expand_kernel
                          : most_steps_ == 0                       ? expand_held_kernel<0>
                          : most_steps_ == 1                       ? expand_held_kernel<1>
                          : most_steps_ == 2                       ? expand_held_kernel<2>
                                                                   : expand_held_kernel<most_held_steps>;
      kernel<<<grid, block, 0, stream_>>>(call_, y_, y_stride_);
      check_launch("expand");
    }
    call_.piece_count = call_.term_count = call_.blocks = 0;
    masked_ = false;
    most_steps_ = 0;
  }

 private:
  cudaStream_t stream_;
  __nv_bfloat16* y_;
  int64_t y_stride_;
  Call call_;
  bool masked_ = false;
  int most_steps_ = 0;  ///< of a piece
};

}  // namespace

void launch_expand(cudaStream_t stream, std::span<const GpuExpandTerm> terms, const GpuExpandStart& start,
                   GpuMaskRows mask_rows, void* y, int64_t y_stride, int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0) return;
  std::vector<int64_t> row_places, column_places;
  for (const GpuExpandTerm& term : terms) {
    row_places.insert(row_places.end(), {term.rows.begin, term.rows.end});
    column_places.insert(column_places.end(), {term.column_begin, term.column_begin + term.width});
  }
  for (const GpuRows& residual : start.residual_rows) {
    row_places.insert(row_places.end(), {residual.begin, residual.end});
  }
  const std::vector<int64_t> row_edges = edges(std::move(row_places), rows);
  const std::vector<int64_t> column_edges = edges(std::move(column_places), columns);
  Launcher launcher(stream, start, mask_rows, y, y_stride);
  std::vector<Term> here;
  std::vector<const GpuExpandTerm*> of_rows;
  size_t next_residual = 0;
  for (size_t r = 0; r + 1 < row_edges.size(); ++r) {
    const GpuRows piece_rows{row_edges[r], row_edges[r + 1]};
    while (next_residual < start.residual_rows.size() && start.residual_rows[next_residual].end <= piece_rows.begin) {
      ++next_residual;
    }
    const bool has_residual = start.residual != nullptr && next_residual < start.residual_rows.size() &&
                              holds(start.residual_rows[next_residual], piece_rows);
    of_rows.clear();
    for (const GpuExpandTerm& term : terms) {
      if (holds(term.rows, piece_rows)) of_rows.push_back(&term);
    }
    for (size_t c = 0; c + 1 < column_edges.size(); ++c) {
      here.clear();
      for (const GpuExpandTerm* term : of_rows) {
        const bool covers = term->column_begin <= column_edges[c] && column_edges[c + 1] <= term->column_begin + term->width;
        if (covers) here.push_back(term_of(*term, piece_rows, column_edges[c]));
      }
      if (here.empty() && start.keeps_y && !has_residual) continue;
      launcher.add(piece_rows, column_edges[c], column_edges[c + 1] - column_edges[c], has_residual, here);
    }
  }
  launcher.launch();
}

}  // namespace cotune::cuda
