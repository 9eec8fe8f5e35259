/// Optimiser steps on f32 parameters, one fused pass each, and the reduction that gradient clipping needs. On every processor: on
/// vectors under f32_isa() other than none, else one element at a time. No result depends on the number of threads.
#pragma once

#include <cstdint>

namespace cotune::kernels {

struct AdamwSettings {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// One step of AdamW (Loshchilov & Hutter 2019) with the order of operations of torch.optim.AdamW;
/// g = gradient · gradient_multiplier, step counts from 1:
///   p *= 1 − lr·wd;  m += (1 − β1)(g − m);  v = β2 v + (1 − β2) g²;
///   p −= lr / (1 − β1^step) · m / (sqrt(v) / sqrt(1 − β2^step) + eps)
/// All arrays [count] f32. Returns whether every new p, m and v is finite (they are written either way).
bool adamw_step(const AdamwSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
                const float* gradient, float* parameter, float* first_moment, float* second_moment);

struct SgdSettings {
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;
};

/// One step of torch.optim.SGD without dampening and Nesterov's momentum; g = gradient · gradient_multiplier, step counts from 1:
///   g += wd·p;  with momentum: b = g at step 1, else momentum·b + g;  g = b;
///   p −= lr·g
/// momentum_buffer may be null when momentum is 0. Returns whether every new p and b is finite.
bool sgd_step(const SgdSettings& settings, int64_t step, float gradient_multiplier, int64_t count,
              const float* gradient, float* parameter, float* momentum_buffer);

/// Σ gradient² in f64, in an order that depends on count alone. Infinite or NaN exactly when some element is.
double sum_of_squares(const float* gradient, int64_t count);

}  // namespace cotune::kernels
