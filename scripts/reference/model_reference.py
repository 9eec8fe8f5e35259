#!/usr/bin/env python3
"""Writes the tiny reference models of tests/model_weights/data and their logits, computed by transformers.

    python scripts/reference/model_reference.py [--tests tests]

Per model: config.json and model.safetensors (f32) as transformers saves them, and logits.safetensors with

    input_ids   [2, tokens]           i64
    logits      [2, tokens, vocab]    f32, computed in f64 from the f32 weights and rounded once
    inverse_frequencies [head_dim/2]  f64, rotary frequencies as transformers computes them (in f32)

The gguf_* models also have model.gguf: the same weights as llama.cpp's converter writes them; those of QUANTISED have it alone, and
logits of the weights as the Python package `gguf` dequantises them. And tests/formats/data/gguf_blocks.safetensors: quantised blocks
with their values as that package dequantises them. Equal package versions give equal files (torch 2.11, transformers 5.23, gguf 0.19).
"""

import argparse
import json
import pathlib

import gguf
import numpy
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

SMALL_QWEN2 = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=96, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
    use_sliding_window=False, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, **SPECIAL)

# The order of sizes is: hidden, intermediate, layers, query heads, key-value heads, vocabulary.
MODELS = {
    "llama2": LlamaConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=160, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(PLAIN_ROPE), **SPECIAL),
    "llama3": LlamaConfig(
        hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, max_position_embeddings=1024, rms_norm_eps=1e-5, tie_word_embeddings=False,
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
        hidden_size=72, intermediate_size=80, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=128, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, **SPECIAL),
    # Small enough to be committed twice: as safetensors and as the GGUF file of the same weights.
    "gguf_llama": LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 32}, **SPECIAL),
    "gguf_qwen2": Qwen2Config(**SMALL_QWEN2),
    # Quantised. Rows of whole K-quants have multiples of 256 values.
    "gguf_k_quants": LlamaConfig(
        hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1,
        vocab_size=64, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(PLAIN_ROPE), **SPECIAL),
    "gguf_short_blocks": Qwen2Config(**SMALL_QWEN2),
}
# The types of their matrices: of each projection, in all layers or by layer, of the embedding and the head.
QUANTISED = {
    "gguf_k_quants": {"embed_tokens": "Q4_K", "q_proj": "Q4_K", "k_proj": "Q5_K", "v_proj": "Q6_K", "o_proj": "Q3_K",
                      "gate_proj": "Q2_K", "up_proj": "Q5_K", "down_proj": "Q6_K", "lm_head": "Q6_K"},
    "gguf_short_blocks": {"embed_tokens": "Q5_1", "0.self_attn.q_proj": "Q5_0", "1.self_attn.q_proj": "Q5_1", "k_proj": "Q5_1",
                          "v_proj": "Q8_0", "0.self_attn.o_proj": "Q4_0", "1.self_attn.o_proj": "F16", "gate_proj": "Q5_0",
                          "up_proj": "Q4_1", "0.mlp.down_proj": "Q5_1", "1.mlp.down_proj": "BF16"},
}
# Where blocks of K-quants have f16 scales, and the mean of the numbers that the first one multiplies by what the second one does.
K_SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
K_MEANS = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
TOKENS = 24
SHARDED = "llama3"                # written as two safetensors files and an index
OLD_STYLE = ("llama2", "llama3")  # config.json as transformers 4 wrote it


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
    blocks = quantise(model, QUANTISED[name], seed) if name in QUANTISED else {}
    folder.mkdir(parents=True, exist_ok=True)
    if not blocks:
        model.save_pretrained(folder, max_shard_size="160KB" if name == SHARDED else "1GB")
    inverse = model.model.rotary_emb.inv_freq.double().numpy()
    ids = torch.randint(3, config.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(seed + 1))
    if name.startswith("gguf_"):
        write_gguf(model, config, inverse, folder / "model.gguf", blocks)
    wide = model.double()
    with torch.no_grad():
        logits = wide(input_ids=ids).logits.float().numpy()
    save_file({"input_ids": ids.numpy(), "logits": logits, "inverse_frequencies": inverse},
              folder / "logits.safetensors")
    if name in OLD_STYLE:
        write_config_in_the_old_style(folder)


def random_blocks(rng, kind, count):
    """The package reads K-quants and does not write them: any bytes are blocks, where the f16 scales among them are finite."""
    return rng.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[getattr(gguf.GGMLQuantizationType, kind)][1]), dtype=numpy.uint8)


def set_scales(blocks, kind, scales):
    for place, scale in zip(K_SCALES[kind], scales, strict=True):
        blocks[:, place:place + 2] = scale.astype(numpy.float16).view(numpy.uint8)


def dequantise(blocks, kind):
    return numpy.ascontiguousarray(gguf.quants.dequantize(blocks, getattr(gguf.GGMLQuantizationType, kind))).astype(numpy.float32)


def quantised(values, kind, rng):
    """Rows of blocks of the values, or of K-quants of others that are as large."""
    if kind not in K_SCALES:
        return numpy.ascontiguousarray(gguf.quants.quantize(values, getattr(gguf.GGMLQuantizationType, kind))).view(numpy.uint8)
    blocks = random_blocks(rng, kind, values.size // 256)
    scales = [rng.uniform(0.5, 1.5, (len(blocks), 1)) * factor for factor in (1, K_MEANS.get(kind))[:len(K_SCALES[kind])]]
    set_scales(blocks, kind, scales)
    shrink = values.std() / dequantise(blocks, kind).std()
    set_scales(blocks, kind, [scale * shrink for scale in scales])
    return blocks.reshape(len(values), -1)


def quantise(model, kinds, seed):
    """Gives the model's matrices the values of quantised ones; {name: (blocks, type)}."""
    rng, result = numpy.random.default_rng(seed), {}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        kind, = (kind for part, kind in kinds.items() if name.endswith(f"{part}.weight"))
        blocks = quantised(parameter.detach().numpy(), kind, rng)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(dequantise(blocks, kind)))
        result[name] = (blocks, kind)
    return result


def permute(weight, head_count):
    """The order of rows in llama-architecture GGUF files (llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute)."""
    return weight.reshape(head_count, 2, weight.shape[0] // head_count // 2, *weight.shape[1:]).swapaxes(
        1, 2).reshape(weight.shape)


def write_gguf(model, config, inverse, path, blocks):
    """The same weights, in F32 where there are no blocks of them, named and ordered as llama.cpp's converter does."""
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if architecture == "qwen2" else "llama-bpe")
    special, further = ["<pad>", "<s>", "<|im_end|>"], ["\u0120", "\u010a", "!\"", "#$"]  # space, end of line, what merges make
    count = config.vocab_size - len(special) - len(further)
    tokens = special + [chr(33 + index) for index in range(count)] + further
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (config.vocab_size - 3))
    writer.add_token_merges(["! \"", "# $"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(architecture == "llama")
    writer.add_chat_template("{{ messages[0].content }}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, parameter in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        values, kind = blocks.get(name, (parameter.numpy(), "F32"))
        if architecture == "llama" and name.endswith("q_proj.weight"):
            values = permute(values, config.num_attention_heads)
        if architecture == "llama" and name.endswith("k_proj.weight"):
            values = permute(values, config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), numpy.ascontiguousarray(values),
                          raw_dtype=getattr(gguf.GGMLQuantizationType, kind))
    if config.rope_parameters["rope_type"] == "llama3":
        size = config.hidden_size // config.num_attention_heads
        plain = config.rope_parameters["rope_theta"] ** (-numpy.arange(0, size, 2) / size)
        writer.add_tensor("rope_freqs.weight", (plain / inverse).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf_blocks(path):
    rng = numpy.random.default_rng(7)
    values = (rng.standard_normal((4, 96)) * numpy.array([[0.01], [1.0], [30.0], [0.0]])).astype(numpy.float32)
    out = {"values": values}
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        which = getattr(gguf.GGMLQuantizationType, kind)
        blocks = gguf.quants.quantize(values, which)
        out[f"{kind}.blocks"] = numpy.frombuffer(numpy.ascontiguousarray(blocks).tobytes(), dtype=numpy.uint8).copy()
        out[f"{kind}.values"] = dequantise(blocks, kind)
    for kind, places in K_SCALES.items():
        blocks = random_blocks(rng, kind, 12)
        set_scales(blocks, kind, [rng.standard_normal((12, 1)) for _ in places])
        out[f"{kind}.blocks"] = blocks.reshape(-1).copy()
        out[f"{kind}.values"] = dequantise(blocks, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(out, path)


def write_rotary_cases(path):
    """Inverse rotary frequencies of published models, as transformers computes them (in f32)."""
    cases = []
    for head_dim, parameters in (
            (64, {"rope_type": "default", "rope_theta": 100000.0}),
            (128, {"rope_type": "default", "rope_theta": 1000000.0}),
            (128, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
            (128, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
            (64, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})):
        config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, num_hidden_layers=1, vocab_size=8,
                             intermediate_size=8, max_position_embeddings=131072, rope_parameters=dict(parameters))
        rotary = LlamaRotaryEmbedding(config)
        cases.append({"head_dim": head_dim, "rope_parameters": parameters,
                      "inverse_frequencies": rotary.inv_freq.double().tolist()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(cases, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--tests", type=pathlib.Path, default=root / "tests", help="the folder of tests to write to")
    tests = parser.parse_args().tests
    for seed, (name, config) in enumerate(MODELS.items()):
        write_model(name, config, tests / "model_weights/data" / name, seed + 1)
    write_rotary_cases(tests / "model_config/data/rotary.json")
    write_gguf_blocks(tests / "formats/data/gguf_blocks.safetensors")


if __name__ == "__main__":
    main()
