/// Launches of the row kernels: GpuKernels' functions of the same names (device/gpu_kernels.h says what each computes), on
/// a stream. Pointers are of the device. Nothing waits; memory must stay until the stream has passed the launch. Results
/// may lie where an input of the same shape lies (dx over dy or residual, d_gate_up over gate_up, y over dy), for every
/// element is written by the thread that read it. Rows read by 16 bytes where pointers and sizes allow, else by elements:
/// equal bits. Throw std::runtime_error with CUDA's text where a launch is refused.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "device/gpu_kernels.h"

namespace cotune::cuda {

// norm.cu
void launch_rms_norm(cudaStream_t stream, GpuType x_type, const void* x, int64_t rows, int64_t columns, const float* weight, float eps,
                     GpuType type, void* y, float* inverse_rms, void* kept);
void launch_rms_norm_again(cudaStream_t stream, GpuType type, const void* x, int64_t rows, int64_t columns,
                           const float* weight, const float* inverse_rms, void* y);
void launch_rms_norm_backward(cudaStream_t stream, GpuType type, const void* dy, const void* x, int64_t rows,
                              int64_t columns, const float* weight, const float* inverse_rms, const void* residual,
                              void* dx);

// rotary.cu
void launch_rotate(cudaStream_t stream, GpuType type, void* x, int64_t rows, int64_t stride, int64_t heads,
                   int64_t head_dim, const int32_t* positions, const float* cosine, const float* sine,
                   int64_t table_rows, int direction);

// swiglu.cu
void launch_swiglu(cudaStream_t stream, GpuType type, const void* gate_up, int64_t rows, int64_t width, void* y);
void launch_swiglu_backward(cudaStream_t stream, GpuType type, const void* dy, const void* gate_up, int64_t rows,
                            int64_t width, void* d_gate_up, void* y);

/// cross_entropy.cu. A row whose label is negative has loss 0 and gradient 0; a label beyond the columns makes both NaN.
void launch_softmax_cross_entropy(cudaStream_t stream, GpuType type, const void* logits, int64_t rows, int64_t columns,
                                  const int32_t* labels, const float* row_scale, float* losses, void* gradient,
                                  int64_t* first_choice);

/// dropout.cu. The groups are read before it returns.
void launch_dropout(cudaStream_t stream, GpuType type, std::span<const GpuDropoutGroup> groups, GpuMaskRows mask_rows,
                    const void* x, int64_t x_stride, int64_t columns, void* y);

}  // namespace cotune::cuda
