/// Rotary position embedding (Su et al. 2021) in Hugging Face's rotate-half convention:
///   y[i]        = x[i] · cos[p, i] − x[i + d/2] · sin[p, i]
///   y[i + d/2]  = x[i + d/2] · cos[p, i] + x[i] · sin[p, i]          0 ≤ i < d/2,  d = head_dim,  p = position
/// The backward pass is the rotation by the opposite angle.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

enum class RopeDirection { forward, backward };

/// Rotates the leading `heads` heads of every row of x [tokens, stride] in place (query heads, then key heads).
/// positions [tokens]; cosine and sine [max_position, head_dim / 2] f32 (any frequency scaling is already in them).
/// head_dim even. Computed in f32, rounded once.
void rotate_in_place(DType dtype, void* x, int64_t tokens, int64_t stride, int64_t heads, int64_t head_dim,
                     const int32_t* positions, const float* cosine, const float* sine, RopeDirection direction);

}  // namespace cotune::kernels
