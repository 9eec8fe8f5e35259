/// What launches do: a grid along x (rows can exceed what y and z allow), choices made on the host
/// turned into template arguments, refusals turned into exceptions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

inline constexpr int warp_size = 32;
inline constexpr int part_bytes = 16;  ///< one load or store of a thread

/// Elements of a part: what one thread takes of a row at a time.
template <typename T>
inline constexpr int part_size = part_bytes / static_cast<int>(sizeof(T));

[[noreturn]] inline void refuse(const char* kernel, const std::string& why) {
  throw std::runtime_error("CUDA kernel " + std::string(kernel) + ": " + why);
}

/// After a launch.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) refuse(kernel, cudaGetErrorString(error));
}

/// Launches with blocks along x. `blocks` is at least 1.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream,
            Arguments... arguments) {
  if (blocks > INT32_MAX) refuse(name, std::to_string(blocks) + " blocks, more than a grid holds");
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(arguments...);
  check_launch(name);
}

/// Which of the entries, that each have consecutive blocks from first_block on, has this block.
template <typename Entry>
__device__ inline int entry_of_block(const Entry* entries, int count) {
  const int block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (which + 1 < count && entries[which + 1].first_block <= block) ++which;
  return which;
}

/// Columns of a row as an int that can be added to without care.
inline int column_count(const char* name, int64_t columns) {
  if (columns < 0 || columns > (int64_t{1} << 30)) refuse(name, std::to_string(columns) + " columns");
  return static_cast<int>(columns);
}

inline int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

/// Threads for `parts` parts: whole warps, a function of the row's size alone.
inline int threads_for(int64_t parts, int most) {
  const int64_t wanted = divide_up(parts, warp_size) * warp_size;
  return static_cast<int>(wanted < warp_size ? warp_size : wanted > most ? most : wanted);
}

/// Blocks for kernels without sums along a row: each takes up to `threads` parts of one row, one a thread.
struct PartGrid {
  int threads = 0;
  unsigned blocks_per_row = 0;
  PartGrid(int64_t parts_per_row, int most_threads) : threads(threads_for(parts_per_row, most_threads)) {
    const int64_t blocks = divide_up(parts_per_row, threads);
    blocks_per_row = blocks < 1 ? 1u : static_cast<unsigned>(blocks);
  }
};

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % part_bytes == 0; }
/// Whether rows `stride` elements apart can be read by parts from their first column on.
template <typename T>
bool whole_parts(int64_t stride) {
  return stride % part_size<T> == 0;
}

/// Calls f(an element of the type).
template <typename F>
void with_type(GpuType type, F f) {
  if (type == GpuType::bf16) {
    f(__nv_bfloat16{});
  } else {
    f(float{});
  }
}

/// Calls f(std::true_type or std::false_type).
template <typename F>
void with_flag(bool flag, F f) {
  if (flag) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

}  // namespace cotune::cuda
