"""cotune's random numbers (src/base/random.h) in torch, on any device: so that PEFT trains the model that cotune makes of
`weights: random`, from the adapters that cotune's jobs begin with, and neither is ever written to disk.

A value is a pure function of a key and an index; integers are 64 bits and wrap, as torch's int64 do.
"""
import math

import torch

MASK = (1 << 64) - 1
BLOCK = 1 << 24  # values drawn at a time


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def shifted(x, bits):
    """x >> bits without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x):
    """mix64, of a tensor of int64."""
    x = x + signed(0x9E3779B97F4A7C15)
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def mix_number(x):
    return mix(torch.tensor([signed(x & MASK)])).item() & MASK


def mix_key(key, coordinate):
    return mix_number(key ^ mix_number(coordinate))


def key_of(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return mix_number(value)


def fill_uniform(tensor, key, center, reach):
    """tensor[i] = center + reach·(2·uniform(key, i) − 1), rounded to f32 and then to the tensor's dtype."""
    flat = tensor.view(-1)
    for begin in range(0, flat.numel(), BLOCK):
        end = min(flat.numel(), begin + BLOCK)
        index = torch.arange(begin, end, device=tensor.device)
        uniform = shifted(mix(mix(index) ^ signed(key)), 11).to(torch.float64) * 2.0**-53
        flat[begin:end] = (center + reach * (2 * uniform - 1)).to(torch.float32)


@torch.no_grad()
def fill_model(model, seed):
    """The weights of src/model/weights/random_weights.cc, by their Hugging Face names."""
    for name, tensor in model.named_parameters():
        vector = tensor.dim() == 1
        reach = 0.1 if vector else math.sqrt(3.0 / tensor.shape[-1])
        fill_uniform(tensor, mix_key(seed, key_of(name)), 1 if vector and not name.endswith(".bias") else 0, reach)


@torch.no_grad()
def fill_adapter(model, seed):
    """The values that a LoRA job of this seed begins with (src/adapter/lora.cc), in a PEFT model: A uniform, B zero."""
    for name, tensor in model.named_parameters():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").split(".lora_A.")[0]
            fill_uniform(tensor, mix_key(mix_number(seed), key_of(module)), 0, 1 / math.sqrt(tensor.shape[-1]))
        elif ".lora_B." in name:
            tensor.zero_()
