#include "cuda/cuda_kernels.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>

#include "cuda/low_rank.h"
#include "cuda/method_kernels.h"
#include "cuda/optimizer.h"
#include "cuda/row_kernels.h"

namespace cotune {
namespace {

class CudaKernels final : public GpuKernels {
 public:
  explicit CudaKernels(c10::DeviceIndex device) : device_(device) {}

  void rms_norm(GpuType x_type, const void* x, int64_t rows, int64_t columns, const float* weight, float eps, GpuType type, void* y,
                float* inverse_rms, void* kept) override {
    cuda::launch_rms_norm(stream(), x_type, x, rows, columns, weight, eps, type, y, inverse_rms, kept);
  }
  void rms_norm_again(GpuType type, const void* x, int64_t rows, int64_t columns, const float* weight,
                      const float* inverse_rms, void* y) override {
    cuda::launch_rms_norm_again(stream(), type, x, rows, columns, weight, inverse_rms, y);
  }
  void rms_norm_backward(GpuType type, const void* dy, const void* x, int64_t rows, int64_t columns,
                         const float* weight, const float* inverse_rms, const void* residual, void* dx) override {
    cuda::launch_rms_norm_backward(stream(), type, dy, x, rows, columns, weight, inverse_rms, residual, dx);
  }
  void rotate(GpuType type, void* x, int64_t rows, int64_t stride, int64_t heads, int64_t head_dim,
              const int32_t* positions, const float* cosine, const float* sine, int64_t table_rows,
              int direction) override {
    cuda::launch_rotate(stream(), type, x, rows, stride, heads, head_dim, positions, cosine, sine, table_rows,
                        direction);
  }
  void swiglu(GpuType type, const void* gate_up, int64_t rows, int64_t width, void* y) override {
    cuda::launch_swiglu(stream(), type, gate_up, rows, width, y);
  }
  void swiglu_backward(GpuType type, const void* dy, const void* gate_up, int64_t rows, int64_t width,
                       void* d_gate_up, void* y) override {
    cuda::launch_swiglu_backward(stream(), type, dy, gate_up, rows, width, d_gate_up, y);
  }
  void softmax_cross_entropy(GpuType type, const void* logits, int64_t rows, int64_t columns, const int32_t* labels,
                             const float* row_scale, float* losses, void* gradient, int64_t* first_choice) override {
    cuda::launch_softmax_cross_entropy(stream(), type, logits, rows, columns, labels, row_scale, losses, gradient,
                                       first_choice);
  }
  void dropout(GpuType type, std::span<const GpuDropoutGroup> groups, GpuMaskRows mask_rows, const void* x,
               int64_t x_stride, int64_t columns, void* y) override {
    cuda::launch_dropout(stream(), type, groups, mask_rows, x, x_stride, columns, y);
  }
  void shrink(std::span<const GpuShrink> groups, const void* x, int64_t x_stride, int64_t width) override {
    cuda::launch_shrink(stream(), groups, x, x_stride, width);
  }
  void expand(std::span<const GpuExpandTerm> terms, const GpuExpandStart& start, GpuMaskRows mask_rows, void* y,
              int64_t y_stride, int64_t rows, int64_t columns) override {
    cuda::launch_expand(stream(), terms, start, mask_rows, y, y_stride, rows, columns);
  }
  void outer_products(std::span<const GpuOuter> groups, const void* right, int64_t right_stride, int64_t width,
                      const GpuMemory& memory) override {
    cuda::launch_outer_products(stream(), groups, right, right_stride, width, memory);
  }
  void column_sums(GpuType type, std::span<const GpuColumnSum> sums) override {
    cuda::launch_column_sums(stream(), type, sums);
  }
  void activate(GpuType type, std::span<const GpuActivation> groups) override {
    cuda::launch_activate(stream(), type, groups);
  }
  void activate_backward(GpuType type, std::span<const GpuActivation> groups) override {
    cuda::launch_activate_backward(stream(), type, groups);
  }
  void sparse_products(GpuType type, std::span<const GpuSparseProduct> groups,
                       const GpuSparseOperands& operands) override {
    cuda::launch_sparse_products(stream(), type, groups, operands);
  }
  void sparse_value_gradients(GpuType type, std::span<const GpuSparseGradient> groups,
                              const GpuSparseGradientOperands& operands) override {
    cuda::launch_sparse_value_gradients(stream(), type, groups, operands);
  }
  void adamw(std::span<const GpuParameter> parameters, const GpuAdamw& settings, const bool* sound,
             const double* multiplier) override {
    cuda::launch_adamw(stream(), parameters, settings, sound, multiplier);
  }
  void square_sums(std::span<const GpuArray> arrays, double* sums) override {
    cuda::launch_square_sums(stream(), arrays, sums);
  }

 private:
  /// The thread's current one on the kernels' device, which is made the thread's: a thread that nobody has told begins with the first.
  cudaStream_t stream() const {
    c10::cuda::set_device(device_);
    return c10::cuda::getCurrentCUDAStream(device_).stream();
  }

  c10::DeviceIndex device_;
};

}  // namespace

GpuKernels& cuda_kernels(int index) {
  static std::mutex mutex;
  static std::map<int, CudaKernels> by_device;
  const std::lock_guard lock(mutex);
  return by_device.try_emplace(index, static_cast<c10::DeviceIndex>(index)).first->second;
}

}  // namespace cotune
