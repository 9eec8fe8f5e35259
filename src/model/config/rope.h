/// Rotary position embedding (Su et al. 2021) in the rotate-half form of transformers: position p turns the
/// pair (x[i], x[i + head_dim/2]) by the angle p · inverse_frequency[i].
#pragma once

#include <optional>
#include <vector>

#include "model/config/model_config.h"

namespace cotune {

/// [head_dim / 2], f64:  f_i = rope_theta^(−2i / head_dim), then by config.rope_scaling:
///   linear   f_i / factor
///   table    f_i / divisors[i]
///   llama3   with wavelength w = 2π / f_i and context c = original_context:
///            w < c / high_freq_factor: f_i;   w > c / low_freq_factor: f_i / factor;
///            between: (1 − s) · f_i / factor + s · f_i,  s = (c / w − low) / (high − low)
/// (transformers, modeling_rope_utils.py.)
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

/// The scaling that a config.json can name: config.rope_scaling itself, or of a table the one whose frequencies are the table's to f32
/// precision: none, linear, or llama3 with the low_freq_factor 1 and high_freq_factor 4 of Llama 3.1 to 3.3 (of which llama.cpp's converter
/// makes such tables) and a power of two as original context. Nothing where there is none.
std::optional<RopeScaling> named_rope_scaling(const ModelConfig& config);

}  // namespace cotune
