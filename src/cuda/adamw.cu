// One step of AdamW over the parameters of a job, each element read and written once.

#include <cmath>

#include "cuda/launch.cuh"
#include "cuda/optimizer.h"

namespace cotune::cuda {
namespace {

constexpr int threads = 256, block_values = 4 * threads;
constexpr int most_parameters = 256;  // of a launch, which takes them as parameters (at most 32 KiB)

struct Call {
  int32_t count = 0, blocks = 0;
  GpuParameter parameters[most_parameters];
  int32_t first_blocks[most_parameters];
};
static_assert(sizeof(Call) < 16 * 1024);

struct Rates {
  float keep, learning_rate, beta1, beta2, one_minus_beta1, one_minus_beta2, correction2_root, epsilon;
};

__global__ void __launch_bounds__(threads)
    adamw_kernel(const __grid_constant__ Call call, Rates rates, const bool* sound, const double* multiplier) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = call.count;  // the last parameter that begins at or before this block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (call.first_blocks[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const GpuParameter& p = call.parameters[low];
  const bool steps = *sound;
  const auto scale = static_cast<float>(*multiplier);
  const int64_t begin = static_cast<int64_t>(block - call.first_blocks[low]) * block_values;
  for (int k = 0; k < block_values / threads; ++k) {
    const int64_t i = begin + k * threads + static_cast<int>(threadIdx.x);
    if (i >= p.count) return;
    const float gradient = p.gradient[i] * scale;
    p.gradient[i] = 0;
    if (!steps) continue;
    const float first = p.first_moment[i] * rates.beta1 + gradient * rates.one_minus_beta1;
    const float second = p.second_moment[i] * rates.beta2 + gradient * gradient * rates.one_minus_beta2;
    p.first_moment[i] = first;
    p.second_moment[i] = second;
    const float denominator = sqrtf(second) / rates.correction2_root + rates.epsilon;
    p.value[i] = p.value[i] * rates.keep - rates.learning_rate * (first / denominator);
  }
}

}  // namespace

void launch_adamw(cudaStream_t stream, std::span<const GpuParameter> parameters, const GpuAdamw& settings,
                  const bool* sound, const double* multiplier) {
  const auto step = static_cast<double>(settings.step);
  const double correction1 = 1 - std::pow(settings.beta1, step), correction2 = 1 - std::pow(settings.beta2, step);
  const Rates rates{static_cast<float>(1 - settings.learning_rate * settings.weight_decay),
                    static_cast<float>(settings.learning_rate / correction1),
                    static_cast<float>(settings.beta1),
                    static_cast<float>(settings.beta2),
                    static_cast<float>(1 - settings.beta1),
                    static_cast<float>(1 - settings.beta2),
                    static_cast<float>(std::sqrt(correction2)),
                    static_cast<float>(settings.epsilon)};
  Call call;
  const auto flush = [&] {
    if (call.blocks == 0) return;
    adamw_kernel<<<static_cast<unsigned>(call.blocks), threads, 0, stream>>>(call, rates, sound, multiplier);
    check_launch("adamw");
    call.count = call.blocks = 0;
  };
  for (const GpuParameter& parameter : parameters) {
    if (parameter.count == 0) continue;
    if (call.count == most_parameters) flush();
    call.first_blocks[call.count] = call.blocks;
    call.parameters[call.count++] = parameter;
    call.blocks += static_cast<int32_t>(divide_up(parameter.count, block_values));
  }
  flush();
}

}  // namespace cotune::cuda
