// gradient[j] += Σ of column j of each atom. A block has 32 columns of one gradient: a lane a column, its 16 warps every 16th
// row; their sums are added up in the warps' order, and atoms one after another.

#include "cuda/launch.cuh"
#include "cuda/method_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

constexpr int warps = 16, block_columns = warp_size;
constexpr int most_targets = 256, most_atoms = 512;  // of a launch, which takes them as parameters (at most 32 KiB)

struct Atom {
  const void* rows;
  int64_t stride, count;
};
struct Target {
  float* gradient;
  int32_t columns, first_atom, atoms, first_block;
};
struct Call {
  int32_t target_count = 0, atom_count = 0;
  int64_t blocks = 0;
  Target targets[most_targets];
  Atom atoms[most_atoms];
};
static_assert(sizeof(Call) < 24 * 1024);

template <typename T>
__global__ void __launch_bounds__(warps* warp_size) column_sums_kernel(const __grid_constant__ Call call) {
  const int block = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  const Target& target = call.targets[entry_of_block(call.targets, call.target_count)];
  const int column = (block - target.first_block) * block_columns + lane;
  const bool has_column = column < target.columns;
  __shared__ float partial[warps][block_columns];
  float total = has_column && warp == 0 ? target.gradient[column] : 0.0f;
  for (int a = 0; a < target.atoms; ++a) {
    const Atom& atom = call.atoms[target.first_atom + a];
    float sum = 0;
    if (has_column) {
      const T* values = static_cast<const T*>(atom.rows) + column;
#pragma unroll 8
      for (int64_t row = warp; row < atom.count; row += warps) sum = __fadd_rn(sum, widened(values[row * atom.stride]));
    }
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
      float of_atom = partial[0][lane];
#pragma unroll
      for (int w = 1; w < warps; ++w) of_atom = __fadd_rn(of_atom, partial[w][lane]);
      total = __fadd_rn(total, of_atom);
    }
    __syncthreads();
  }
  if (has_column && warp == 0) target.gradient[column] = total;
}

void flush(cudaStream_t stream, GpuType type, Call& call) {
  if (call.blocks > 0) {
    with_type(type, [&](auto element) {
      launch("column_sums", column_sums_kernel<decltype(element)>, call.blocks, warps * warp_size, stream, call);
    });
  }
  call.target_count = call.atom_count = 0;
  call.blocks = 0;
}

}  // namespace

void launch_column_sums(cudaStream_t stream, GpuType type, std::span<const GpuColumnSum> sums) {
  Call call;
  const float* open = nullptr;  // the gradient of the last target of this launch
  for (const GpuColumnSum& sum : sums) {
    if (sum.rows == 0 || sum.columns == 0) continue;
    const int columns = column_count("column_sums", sum.columns);
    const int64_t blocks = divide_up(columns, block_columns);
    const bool same = open == sum.gradient;
    if (call.atom_count == most_atoms || (!same && (call.target_count == most_targets || call.blocks + blocks > INT32_MAX))) {
      flush(stream, type, call);
      open = nullptr;
    }
    if (open != sum.gradient) {
      call.targets[call.target_count++] = {sum.gradient, columns, call.atom_count, 0, static_cast<int32_t>(call.blocks)};
      call.blocks += blocks;
      open = sum.gradient;
    }
    ++call.targets[call.target_count - 1].atoms;
    call.atoms[call.atom_count++] = {sum.values, sum.stride, sum.rows};
  }
  flush(stream, type, call);
}

}  // namespace cotune::cuda
