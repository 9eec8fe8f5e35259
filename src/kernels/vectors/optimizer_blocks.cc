#include "kernels/optimizer_blocks.h"
#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

COTUNE_VECTORS_BEGIN

bool adamw_block(const AdamwScalars& s, int64_t count, const float* gradient, float* parameter, float* first,
                 float* second) {
  const Vector root_correction2 = splat(s.root_correction2), eps = splat(s.eps);
  Lanes bad = no_lanes();
  for_lanes(count, [&](int64_t i, auto lanes) {
    const Vector g = load(gradient + i, lanes) * splat(s.multiplier);
    Vector p = load(parameter + i, lanes) * splat(s.decay);
    Vector m = load(first + i, lanes);
    m = multiply_add(splat(s.one_minus_beta1), g - m, m);
    Vector v = load(second + i, lanes) * splat(s.beta2);
    v = multiply_add(splat(s.one_minus_beta2) * g, g, v);
    const Vector denominator = square_root(v) / root_correction2 + eps;
    p = p + splat(s.negative_step_size) * m / denominator;
    bad = Lanes(bad | within(Lanes(not_finite(p) | not_finite(m) | not_finite(v)), lanes));
    store(parameter + i, p, lanes);
    store(first + i, m, lanes);
    store(second + i, v, lanes);
  });
  return any(bad);
}

bool sgd_block(const SgdScalars& s, int64_t count, const float* gradient, float* parameter, float* momentum_buffer) {
  const Vector momentum = splat(s.momentum);
  Lanes bad = no_lanes();
  for_lanes(count, [&](int64_t i, auto lanes) {
    const Vector p = load(parameter + i, lanes);
    Vector g = load(gradient + i, lanes) * splat(s.multiplier);
    g = multiply_add(splat(s.weight_decay), p, g);
    if (s.momentum != 0) {
      if (!s.first) g = multiply_add(load(momentum_buffer + i, lanes), momentum, g);
      store(momentum_buffer + i, g, lanes);
      bad = Lanes(bad | within(not_finite(g), lanes));
    }
    const Vector next = subtract_product(p, splat(s.lr), g);
    bad = Lanes(bad | within(not_finite(next), lanes));
    store(parameter + i, next, lanes);
  });
  return any(bad);
}

double squares_block(const float* values, int64_t count) {
  SquareSums sums = no_squares();
  for_lanes(count, [&](int64_t i, auto lanes) { add_squares(load(values + i, lanes), sums); });
  double pairs[8];
  store_halves_added(sums, pairs);
  return ((pairs[0] + pairs[1]) + (pairs[2] + pairs[3])) + ((pairs[4] + pairs[5]) + (pairs[6] + pairs[7]));
}

COTUNE_VECTORS_END

}  // namespace

const OptimizerBlocks optimizer_blocks = {.adamw = adamw_block, .sgd = sgd_block, .squares = squares_block};

}  // namespace cotune::kernels::COTUNE_VECTORS
