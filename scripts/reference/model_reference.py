#!/usr/bin/env python3
"""Writes the tiny reference models of tests/model_weights/data and their logits, computed by transformers.

    python scripts/reference/model_reference.py [--out tests/model_weights/data]

Per model: config.json and model.safetensors (f32) as transformers saves them, tokenizer.json with
tokenizer_config.json where the loader's handling of them is tested, and logits.safetensors with

    input_ids   [2, tokens]           i64
    logits      [2, tokens, vocab]    f32, computed in f64 from the f32 weights and rounded once
    inverse_frequencies [head_dim/2]  f64, rotary frequencies as transformers computes them (in f32)

plus gguf_blocks.safetensors in tests/formats/data: quantised blocks and their values as the Python package `gguf`
dequantises them. Deterministic: equal package versions give equal files (torch 2.11, transformers 5.23, gguf 0.17).
"""

import argparse
import json
import pathlib

import numpy
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# The order of sizes is: hidden, intermediate, layers, query heads, key-value heads, vocabulary.
MODELS = {
    "llama2": LlamaConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=160, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(PLAIN_ROPE), **SPECIAL),
    "llama3": LlamaConfig(
        hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=192, max_position_embeddings=1024, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        **{**SPECIAL, "eos_token_id": [2, 5]}),
    "mistral": MistralConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        sliding_window=None, rope_parameters=dict(PLAIN_ROPE), **SPECIAL),
    "qwen2": Qwen2Config(
        hidden_size=56, intermediate_size=104, num_hidden_layers=2, num_attention_heads=7, num_key_value_heads=1,
        vocab_size=224, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True,
        use_sliding_window=False, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **SPECIAL),
    "smollm2": LlamaConfig(
        hidden_size=72, intermediate_size=96, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=128, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, **SPECIAL),
}
TOKENS = 24


def random_weights(model, seed):
    """Weights large enough that every part of the network moves the logits; norms near one, biases not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * 1.2 / parameter.shape[-1] ** 0.5)


def write_config_in_the_old_style(folder):
    """config.json as transformers 4 wrote it: `rope_theta` and `rope_scaling` beside each other."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


def write_model(name, config, folder, seed):
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    random_weights(model, seed)
    model.save_pretrained(folder, max_shard_size="70KB" if name == "llama3" else "1GB")
    inverse = model.model.rotary_emb.inv_freq.double().numpy()
    ids = torch.randint(3, config.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(seed + 1))
    wide = model.double()
    # .double() rounds nothing but converts the rotary buffer too; it holds f32 values.
    with torch.no_grad():
        logits = wide(input_ids=ids).logits.float().numpy()
    save_file({"input_ids": ids.numpy(), "logits": logits, "inverse_frequencies": inverse},
              folder / "logits.safetensors")
    if name in ("llama2", "llama3"):
        write_config_in_the_old_style(folder)


def write_gguf_blocks(path):
    import gguf
    rng = numpy.random.default_rng(7)
    values = (rng.standard_normal((4, 96)) * numpy.array([[0.01], [1.0], [30.0], [0.0]])).astype(numpy.float32)
    out = {"values": values}
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        which = getattr(gguf.GGMLQuantizationType, kind)
        blocks = gguf.quants.quantize(values, which)
        out[f"{kind}.blocks"] = numpy.frombuffer(numpy.ascontiguousarray(blocks).tobytes(), dtype=numpy.uint8).copy()
        out[f"{kind}.values"] = numpy.ascontiguousarray(gguf.quants.dequantize(blocks, which)).astype(numpy.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(out, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/model_weights/data")
    parser.add_argument("--blocks", type=pathlib.Path, default=root / "tests/formats/data/gguf_blocks.safetensors")
    arguments = parser.parse_args()
    for seed, (name, config) in enumerate(MODELS.items()):
        write_model(name, config, arguments.out / name, seed + 1)
    write_gguf_blocks(arguments.blocks)


if __name__ == "__main__":
    main()
