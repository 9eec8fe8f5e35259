#include "model/config/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace cotune {
namespace {

constexpr int64_t longest_original_context = 1 << 20;  ///< that a table is held against

double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto context = static_cast<double>(scaling.original_context);
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// Whether f32 values of the two would be equal but for roundings.
bool are_close(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return std::abs(x - y) <= 1e-5 * std::abs(x); });
}

}  // namespace

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const int64_t count = config.head_dim / 2;
  COTUNE_CHECK(scaling.kind != RopeScaling::Kind::table ||
               static_cast<int64_t>(scaling.divisors.size()) == count);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < count; ++i) {
    const double frequency =
        std::pow(config.rope_theta, -2 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    switch (scaling.kind) {
      case RopeScaling::Kind::none:
        frequencies.push_back(frequency);
        break;
      case RopeScaling::Kind::linear:
        frequencies.push_back(frequency / scaling.factor);
        break;
      case RopeScaling::Kind::llama3:
        frequencies.push_back(llama3_frequency(frequency, scaling));
        break;
      case RopeScaling::Kind::table:
        frequencies.push_back(frequency / scaling.divisors[static_cast<size_t>(i)]);
        break;
    }
  }
  return frequencies;
}

std::optional<RopeScaling> named_rope_scaling(const ModelConfig& config) {
  using Kind = RopeScaling::Kind;
  if (config.rope_scaling.kind != Kind::table) return config.rope_scaling;
  const double factor = std::ranges::max(config.rope_scaling.divisors);
  std::vector<RopeScaling> candidates = {{}, {.kind = Kind::linear, .factor = factor}};
  for (int64_t context = 16; context <= longest_original_context; context *= 2) {
    candidates.push_back({.kind = Kind::llama3, .factor = factor, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = context});
  }
  const std::vector<double> wanted = rope_inverse_frequencies(config);
  ModelConfig named = config;
  for (const RopeScaling& candidate : candidates) {
    named.rope_scaling = candidate;
    if (are_close(rope_inverse_frequencies(named), wanted)) return candidate;
  }
  return std::nullopt;
}

}  // namespace cotune
