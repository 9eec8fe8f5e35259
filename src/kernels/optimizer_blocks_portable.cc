#include <array>
#include <cmath>

#include "kernels/optimizer_blocks.h"

// Processors with FMA take std::fma as one instruction.
#define COTUNE_WITH_FMA __attribute__((target_clones("fma", "default")))

namespace cotune::kernels {
namespace {

COTUNE_WITH_FMA bool adamw_block(const AdamwScalars& s, int64_t count, const float* gradient, float* parameter, float* first, float* second) {
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.multiplier;
    const float m = std::fma(s.one_minus_beta1, g - first[i], first[i]);
    const float v = std::fma(s.one_minus_beta2 * g, g, second[i] * s.beta2);
    const float p = parameter[i] * s.decay + s.negative_step_size * m / (std::sqrt(v) / s.root_correction2 + s.eps);
    bad |= !std::isfinite(p) || !std::isfinite(m) || !std::isfinite(v);
    parameter[i] = p;
    first[i] = m;
    second[i] = v;
  }
  return bad;
}

COTUNE_WITH_FMA bool sgd_block(const SgdScalars& s, int64_t count, const float* gradient, float* parameter, float* momentum_buffer) {
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) {
    float g = std::fma(s.weight_decay, parameter[i], gradient[i] * s.multiplier);
    if (s.momentum != 0) {
      if (!s.first) g = std::fma(momentum_buffer[i], s.momentum, g);
      bad |= !std::isfinite(g);
      momentum_buffer[i] = g;
    }
    const float p = std::fma(-s.lr, g, parameter[i]);
    bad |= !std::isfinite(p);
    parameter[i] = p;
  }
  return bad;
}

COTUNE_WITH_FMA double squares_block(const float* values, int64_t count) {
  std::array<double, 16> sums{};
  for (int64_t i = 0; i < count; ++i) {
    const double value = values[i];
    double& sum = sums[static_cast<size_t>(i % 16)];
    sum = std::fma(value, value, sum);
  }
  for (size_t i = 0; i < 8; ++i) sums[i] += sums[i + 8];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

const OptimizerBlocks optimizer_blocks_portable = {.adamw = adamw_block, .sgd = sgd_block, .squares = squares_block};

}  // namespace cotune::kernels
