#include "train/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/counted.h"

namespace cotune {

int64_t warmup_steps(const TrainSpec& spec, int64_t total_steps) {
  if (spec.warmup_steps > 0) return spec.warmup_steps;
  return static_cast<int64_t>(std::ceil(spec.warmup_ratio * static_cast<double>(total_steps)));
}

double learning_rate(const TrainSpec& spec, int64_t step, int64_t total_steps) {
  const int64_t warmup = warmup_steps(spec, total_steps);
  if (step < warmup) return spec.learning_rate * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, warmup));
  const auto rest = static_cast<double>(std::max<int64_t>(1, total_steps - warmup));
  switch (spec.schedule) {
    case ScheduleKind::constant: return spec.learning_rate;
    case ScheduleKind::linear:
      return spec.learning_rate * std::max(0.0, static_cast<double>(total_steps - step) / rest);
    case ScheduleKind::cosine: {
      const double progress = static_cast<double>(step - warmup) / rest;
      return spec.learning_rate * std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
    }
  }
  return spec.learning_rate;
}

std::string warmup_warning(const TrainSpec& spec, int64_t total_steps) {
  const int64_t warmup = warmup_steps(spec, total_steps);
  if (warmup == 0 || warmup < total_steps) return "";
  return fmt::format("its rate comes to {:g} of {:g} at most: its warm-up takes {}, and it has {}", learning_rate(spec, total_steps - 1, total_steps),
                     spec.learning_rate, counted(warmup, "step"), total_steps);
}

}  // namespace cotune
