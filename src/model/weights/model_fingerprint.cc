#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/file.h"
#include "model/weights/model_files.h"

namespace cotune {

std::string model_fingerprint(const ModelFiles& model) {
  const ModelConfig& config = model.config;
  const RopeScaling& rope = config.rope_scaling;
  const std::string shape = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {}", config.family, config.layer_count, config.hidden_size,
      config.intermediate_size, config.head_count, config.kv_head_count, config.head_dim, config.vocabulary_size,
      config.rms_norm_epsilon, config.rope_theta, config.tied_embeddings, config.qkv_bias, config.activation);
  const std::string rotary =
      fmt::format("{} {} {} {} {} {}", static_cast<int>(rope.kind), rope.factor, rope.low_freq_factor,
                  rope.high_freq_factor, rope.original_context, fmt::join(rope.divisors, " "));
  return checksum(shape + "\n" + rotary + "\n" + model.weights->content_hash());
}

}  // namespace cotune
