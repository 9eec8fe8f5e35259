/// Element types of activations and gradients in the kernels. bf16 is stored as the upper half of an f32, in uint16_t.
#pragma once

#include <cstdint>

namespace cotune::kernels {

enum class Dtype { bf16, f32 };

constexpr int64_t bytes_of(Dtype dtype) { return dtype == Dtype::bf16 ? 2 : 4; }

}  // namespace cotune::kernels
