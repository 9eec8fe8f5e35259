/// The pipeline orders that a plan names.
#pragma once

#include <array>
#include <string_view>

#include "jobs/enum_names.h"

namespace cotune {

/// Who computes what and when inside a replica (schedule/pipeline).
enum class PipelineOrder {
  gpipe,        ///< all forwards of a hybrid task's step, then all its backwards
  one_f_one_b,  ///< 1F1B with a flush after every hybrid task's step
  automatic,    ///< choose_order: the best of several by simulation, within the device's memory
  interleaved,  ///< interleaved 1F1B where a rank holds several runs of layers (plan/plan.h), else as automatic
  split,        ///< as automatic; steps of few hybrid tasks are split into more microbatches
};

template <>
inline constexpr std::array<std::string_view, 5> enum_names<PipelineOrder>{"gpipe", "1f1b", "auto", "interleaved", "split"};

}  // namespace cotune
