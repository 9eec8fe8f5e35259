#include "kernels/cross_entropy.h"

#include <cmath>

#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

struct RowSums {
  float maximum;
  float sum;  ///< Σ exp(z − maximum)
};

COTUNE_VECTORS_BEGIN

template <typename T>
float row_maximum(const T* logits, int64_t vocabulary) {
  const Vector lowest = splat(-INFINITY);
  Vector highest[2] = {lowest, lowest};
  for_lanes(vocabulary, [&](int64_t c, auto lanes) {
    Vector& h = highest[(c / lane_count) & 1];
    h = blend(lanes, larger(h, load(logits + c, lanes)), h);
  });
  return lane_maximum(larger(highest[0], highest[1]));
}

inline Vector exponential(Vector z, Vector maximum) {
  return exp2<float>((z - maximum) * splat(log2_of_e));
}

template <typename T>
RowSums row_sums(const T* logits, int64_t vocabulary) {
  const float maximum = row_maximum(logits, vocabulary);
  const Vector shift = splat(maximum);
  Vector sums[4] = {no_values(), no_values(), no_values(), no_values()};
  int64_t c = 0;
  for (; c + 64 <= vocabulary; c += 64) {
    for (int i = 0; i < 4; ++i) sums[i] = sums[i] + exponential(load(logits + c + i * 16), shift);
  }
  for_lanes(vocabulary - c, [&](int64_t at, auto lanes) {
    sums[0] = sums[0] + keep(lanes, exponential(load(logits + c + at, lanes), shift));
  });
  return {maximum, lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3]))};
}

/// gradient = exp(z − maximum) · factor. The exponentials are computed again: keeping them would cost more.
template <typename Z, typename G>
void gradient_row(const Z* logits, int64_t vocabulary, float maximum, float factor, G* gradient) {
  const Vector shift = splat(maximum), f = splat(factor);
  for_lanes(vocabulary, [&](int64_t c, auto lanes) {
    store(gradient + c, exponential(load(logits + c, lanes), shift) * f, lanes);
  });
}

inline float round_to(float value, float) { return value; }
inline uint16_t round_to(float value, uint16_t) {
  uint16_t words[16];
  store(words, splat(value));
  return words[0];
}

COTUNE_VECTORS_END

float widen(float value) { return value; }
float widen(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

template <typename Z>
float loss_of(const RowSums& sums, Z logit) {
  return float(std::log(double(sums.sum)) + double(sums.maximum) - double(widen(logit)));
}

template <typename Z, typename G>
void loss_and_gradient(const Z* logits, int64_t vocabulary, int32_t label, float scale, float* loss, G* gradient) {
  if (label < 0) {
    *loss = 0;
    std::fill_n(gradient, vocabulary, G(0));
    return;
  }
  const RowSums sums = row_sums(logits, vocabulary);
  const Z label_logit = logits[label];
  *loss = loss_of(sums, label_logit);
  gradient_row(logits, vocabulary, sums.maximum, scale / sums.sum, gradient);
  const double probability = std::exp(double(widen(label_logit)) - double(sums.maximum)) / double(sums.sum);
  gradient[label] = round_to(float((probability - 1) * double(scale)), G{});
}

}  // namespace

void softmax_cross_entropy(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows,
                           int64_t vocabulary, const int32_t* labels, const float* row_scale, float* loss,
                           DType gradient_dtype, void* gradient, int64_t gradient_stride) {
  with_element(logits_dtype, [&](auto logit) {
    with_element(gradient_dtype, [&](auto element) {
      using Z = decltype(logit);
      using G = decltype(element);
#pragma omp parallel for schedule(static) if (rows > 1)
      for (int64_t r = 0; r < rows; ++r) {
        loss_and_gradient(static_cast<const Z*>(logits) + r * logits_stride, vocabulary, labels[r], row_scale[r],
                          loss + r, static_cast<G*>(gradient) + r * gradient_stride);
      }
    });
  });
}

void softmax_cross_entropy_loss(DType logits_dtype, const void* logits, int64_t logits_stride, int64_t rows,
                                int64_t vocabulary, const int32_t* labels, float* loss) {
  with_element(logits_dtype, [&](auto logit) {
    using Z = decltype(logit);
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t r = 0; r < rows; ++r) {
      const Z* row = static_cast<const Z*>(logits) + r * logits_stride;
      loss[r] = labels[r] < 0 ? 0.f : loss_of(row_sums(row, vocabulary), row[labels[r]]);
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
