/// Inside the optimisers: what is done to a run of elements, on vectors where the processor has AVX2 and one by one elsewhere.
/// All follow the same order of operations, and round alike but for products that are added without a rounding in between.
#pragma once

#include <cstdint>

namespace cotune::kernels {

struct AdamwScalars {
  float multiplier, decay, one_minus_beta1, beta2, one_minus_beta2, root_correction2, eps, negative_step_size;
};

struct SgdScalars {
  float multiplier, lr, momentum, weight_decay;
  bool first;
};

struct OptimizerBlocks {
  /// One step of adamw_step and sgd_step (kernels/optimizer_steps.h); returns whether something written is not finite.
  bool (*adamw)(const AdamwScalars& scalars, int64_t count, const float* gradient, float* parameter, float* first, float* second);
  bool (*sgd)(const SgdScalars& scalars, int64_t count, const float* gradient, float* parameter, float* momentum_buffer);
  /// Σ value², in sixteen sums that are added pairwise at the end.
  double (*squares)(const float* values, int64_t count);
};

namespace avx2 {
extern const OptimizerBlocks optimizer_blocks;
}
namespace avx512 {
extern const OptimizerBlocks optimizer_blocks;
}
extern const OptimizerBlocks optimizer_blocks_portable;

}  // namespace cotune::kernels
