#pragma once

#include "adapter/adapter.h"

namespace cotune {

/// LoRA (Hu et al. 2021): y += scale · dropout(x)·Aᵀ·B, scale = alpha/r, or alpha/√r with rsLoRA (Kalajdzievski 2023).
/// A [r, in] starts uniform in ±1/√in (PEFT's kaiming_uniform_(a=√5)), B [r, out] at zero. LoRA+ (Hayou et al. 2024):
/// B learns at lora_plus_ratio times the rate of A.
///
/// In a tensor-parallel group: where the frozen product divides its outputs (q, k, v, gate, up), A is whole and B is cut; s is
/// everywhere the same, g = scale·dy·Bᵀ is a summand of the whole one, and with it what is added to dx and to A's gradient.
/// Where the product divides its inputs (o, down), A is cut and B is whole: s is a summand, with it what is added to y and to B's
/// gradient. Both ride on the operator's own all-reduce.
std::unique_ptr<Adapter> make_lora(const ModelConfig& config, AdapterSetup setup);

/// BatchLoRA (mLoRA §3.3.1): one grouped shrink per operator, the expansion inside the frozen product's accumulators
/// (forward: s·B into y; backward: g·A into dx), grouped gradients: dB += sᵀ·dy, dA += gᵀ·x with s = scale·x·Aᵀ,
/// g = scale·dy·Bᵀ. Keeps s.
const Method& lora_method();

}  // namespace cotune
