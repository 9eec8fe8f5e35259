/// A profile of a device that does not exist: every operator takes known times.
#pragma once

#include "base/random.h"
#include "plan/cost/operator_terms.h"
#include "schedule/profile_grid.h"

namespace cotune {

/// Coefficients that differ from operator to operator and term to term, in seconds of something like a CPU.
inline double true_coefficient(size_t key, size_t term, const std::string& name) {
  const double unit = name == "1" || name == "microbatches" ? 1e-5 : name.find("·in") != std::string::npos ? 1e-11 : 1e-8;
  return unit * (0.5 + uniform(17, key * 64 + term));
}

/// Every call takes the sum of its terms times those, times 1 ± noise.
inline Profile synthetic_profile(const ModelConfig& config, double noise) {
  Profile profile;
  profile.fingerprint = {"a device", "none", "nothing", model_shape_text(config), "bfloat16", 2, 1};
  profile.layer_count = 3;
  profile.process_bytes = 300 << 20;
  profile.shapes = canonical_shapes(config.context_length);
  ModelConfig measured = config;
  measured.layer_count = profile.layer_count;
  for (size_t shape = 0; shape < profile.shapes.size(); ++shape) {
    size_t key_index = 0;
    for (const auto& [key, terms] : step_terms(measured, planned_step(measured, profile.shapes[shape]))) {
      const std::vector<std::string> names = operator_term_names(key);
      double seconds = 0;
      const size_t base_key = std::hash<std::string>{}(key) % 1000;
      for (size_t i = 0; i < names.size(); ++i) seconds += true_coefficient(base_key, i, names[i]) * terms.sums[i];
      seconds *= 1 + noise * (2 * uniform(5, shape * 100 + key_index++) - 1);
      const auto calls = static_cast<double>(terms.calls);
      profile.operators[key].push_back({static_cast<int64_t>(shape), terms.calls, seconds / calls, noise, 5});
    }
  }
  return profile;
}

}  // namespace cotune
