#pragma once

#include "adapter/adapter.h"

namespace cotune {

/// LoRA (Hu et al. 2021): y += scale · dropout(x)·Aᵀ·B, scale = alpha/r, or alpha/√r with rsLoRA (Kalajdzievski 2023).
/// A [r, in] starts uniform in ±1/√in (PEFT's kaiming_uniform_(a=√5)), B [r, out] at zero. LoRA+ (Hayou et al. 2024):
/// B learns at lora_plus_ratio times the rate of A.
std::unique_ptr<Adapter> make_lora(const ModelConfig& config, AdapterSetup setup);

/// BatchLoRA (mLoRA §3.3.1): one grouped shrink per operator, the expansion inside the frozen product's accumulators
/// (forward: s·B into y; backward: g·A into dx), grouped gradients: dB += sᵀ·dy, dA += gᵀ·x with s = scale·x·Aᵀ,
/// g = scale·dy·Bᵀ. Keeps s.
const Method& lora_method();

}  // namespace cotune
