#pragma once

#include <cstdint>
#include <string>

#include "jobs/job.h"

namespace cotune {

/// Steps of linear warm-up: warmup_steps, or ⌈warmup_ratio · total_steps⌉.
int64_t warmup_steps(const TrainSpec& spec, int64_t total_steps);

/// The learning rate of optimizer step `step` (counts from 0) of total_steps, as transformers' schedulers have it
/// (whose `constant` has no warm-up; its `constant_with_warmup` is the one here):
///   warm-up   rate · step / warmup
///   constant  rate
///   linear    rate · (total − step) / (total − warmup)
///   cosine    rate · (1 + cos(π · (step − warmup) / (total − warmup))) / 2
double learning_rate(const TrainSpec& spec, int64_t step, int64_t total_steps);

/// What to tell of a job whose rate is never reached, because its warm-up takes all its steps or more; "" of others.
std::string warmup_warning(const TrainSpec& spec, int64_t total_steps);

}  // namespace cotune
