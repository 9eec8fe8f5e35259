#include "kernels/optimizer_steps.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/isa.h"
#include "kernels/optimizer_blocks.h"

namespace cotune::kernels {
namespace {

constexpr int64_t block_elements = 1 << 14;  // the unit of work, and of the fixed order of sums

const OptimizerBlocks& blocks_here() {
  if (f32_isa() == Isa::none) return optimizer_blocks_portable;
  return vectors_for_f32() == Vectors::avx2 ? avx2::optimizer_blocks : avx512::optimizer_blocks;
}

/// Calls body(begin, count, block) for fixed blocks, in parallel; returns whether any call returned true.
template <typename Body>
bool any_block(int64_t count, Body body) {
  const int64_t blocks = (count + block_elements - 1) / block_elements;
  int any = 0;
#pragma omp parallel for schedule(static) reduction(| : any) if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * block_elements;
    any |= body(begin, std::min(block_elements, count - begin), b) ? 1 : 0;
  }
  return any != 0;
}

}  // namespace

bool adamw_step(const AdamwSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
                const float* gradient, float* parameter, float* first_moment, float* second_moment) {
  COTUNE_CHECK(step >= 1, "step {}", step);
  const double correction1 = 1 - std::pow(settings.beta1, double(step));
  const double correction2 = 1 - std::pow(settings.beta2, double(step));
  const AdamwScalars scalars = {
      .multiplier = gradient_multiplier,
      .decay = float(1 - settings.lr * settings.weight_decay),
      .one_minus_beta1 = float(1 - settings.beta1),
      .beta2 = float(settings.beta2),
      .one_minus_beta2 = float(1 - settings.beta2),
      .root_correction2 = float(std::sqrt(correction2)),
      .eps = float(settings.eps),
      .negative_step_size = float(-settings.lr / correction1),
  };
  const OptimizerBlocks& blocks = blocks_here();
  return !any_block(count, [&](int64_t begin, int64_t n, int64_t) {
    return blocks.adamw(scalars, n, gradient + begin, parameter + begin, first_moment + begin, second_moment + begin);
  });
}

bool sgd_step(const SgdSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
              const float* gradient, float* parameter, float* momentum_buffer) {
  COTUNE_CHECK(step >= 1, "step {}", step);
  COTUNE_CHECK(settings.momentum == 0 || momentum_buffer != nullptr);
  const SgdScalars scalars = {
      .multiplier = gradient_multiplier,
      .lr = float(settings.lr),
      .momentum = float(settings.momentum),
      .weight_decay = float(settings.weight_decay),
      .first = step == 1,
  };
  const OptimizerBlocks& blocks = blocks_here();
  return !any_block(count, [&](int64_t begin, int64_t n, int64_t) {
    return blocks.sgd(scalars, n, gradient + begin, parameter + begin,
                     momentum_buffer == nullptr ? nullptr : momentum_buffer + begin);
  });
}

double sum_of_squares(const float* gradient, int64_t count) {
  std::vector<double> partial((count + block_elements - 1) / block_elements);
  const OptimizerBlocks& blocks = blocks_here();
  any_block(count, [&](int64_t begin, int64_t n, int64_t block) {
    partial[block] = blocks.squares(gradient + begin, n);
    return false;
  });
  double total = 0;
  for (const double p : partial) total += p;
  return total;
}

}  // namespace cotune::kernels
