/// The names under which users write the enumerations of job.h, and under which files keep them.
#pragma once

#include <array>
#include <string_view>

#include "jobs/job.h"

namespace cotune {

/// Names in the order of the enumeration.
template <typename Enum>
inline constexpr std::array<std::string_view, 0> enum_names{};

template <>
inline constexpr std::array<std::string_view, 3> enum_names<AdapterMethod>{"lora", "bottleneck", "diff_pruning"};
template <>
inline constexpr std::array<std::string_view, 4> enum_names<Activation>{"relu", "gelu", "silu", "tanh"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<OptimizerKind>{"adamw", "sgd"};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<ScheduleKind>{"constant", "linear", "cosine"};
template <>
inline constexpr std::array<std::string_view, 7> enum_names<DataFormat>{"auto", "messages", "sharegpt", "completion",
                                                                        "alpaca", "text", "tokens"};
template <>
inline constexpr std::array<std::string_view, 4> enum_names<Truncation>{"right", "left", "drop", "error"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<SpecialTokens>{"plain", "parsed"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<Shuffle>{"epoch", "none"};
template <>
inline constexpr std::array<std::string_view, 4> enum_names<Sharing>{"separate", "temporal", "batch-all", "hybrid"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<TaskFusion>{"predicted", "stages"};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<Layout>{"ragged", "chunked", "padded"};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<Recompute>{"auto", "never", "always"};
template <>
inline constexpr std::array<std::string_view, 6> enum_names<RankOrder>{"auto", "gpipe", "1f1b", "lorapp", "muxtune", "split"};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<Interleave>{"auto", "never", "always"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<LengthBucketing>{"dynamic", "fixed"};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<DispatchRule>{"balanced", "greedy", "even"};

template <>
inline constexpr std::array<std::string_view, 2> enum_names<SweepMetric>{"eval_loss", "eval_accuracy"};
template <>
inline constexpr std::array<std::string_view, 2> enum_names<HalvingMode>{"asynchronous", "synchronous"};

template <typename Enum>
constexpr std::string_view name_of(Enum value) {
  return enum_names<Enum>[static_cast<size_t>(value)];
}

}  // namespace cotune
