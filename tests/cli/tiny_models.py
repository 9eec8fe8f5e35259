"""Tiny real models with a tokenizer, for tests of the command line: every ASCII character is one token, its code the id."""
import array
import json
import math
import pathlib
import random
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/model_weights/data"
TEMPLATE = ("{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def byte_level(byte):
    """GPT-2's printable stand-in for a byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in shown else 256 + sum(other not in shown for other in range(byte)))


def write_tokenizer(target, template=TEMPLATE):
    byte_level_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": byte_level_step, "post_processor": None, "decoder": byte_level_step,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {byte_level(byte): byte for byte in range(128)}, "merges": []}}
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    if template is not None:
        (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def make_special(model, letter):
    """The model's tokenizer takes the letter for a special token from here on."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"id": ord(letter), "content": letter, "special": True, "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def closed_by(letter):
    """The template with a letter behind what the assistant says."""
    return TEMPLATE.replace("{{ message.content }}", "{{ message.content }}{{ '" + letter + "' if message.role == 'assistant' else '' }}")


def copy_model(target, family="smollm2", template=TEMPLATE):
    """Copies a committed model of random weights with 128 tokens and gives it the tokenizer. template: None for none."""
    target.mkdir()
    for file in (MODELS / family).iterdir():
        if file.name != "logits.safetensors":
            shutil.copy(file, target / file.name)
    write_tokenizer(target, template)
    return target


def write_model(target, layers=1, heads=2, kv_heads=2, head=8, inner=48, vocabulary=128, positions=512):
    """A model of this shape with random weights and no tokenizer."""
    target.mkdir()
    hidden = heads * head
    shapes = {"model.embed_tokens": (vocabulary, hidden), "model.norm": (hidden,)}
    for layer in range(layers):
        for name, *shape in (("input_layernorm", hidden), ("post_attention_layernorm", hidden), ("self_attn.q_proj", hidden, hidden),
                             ("self_attn.k_proj", kv_heads * head, hidden), ("self_attn.v_proj", kv_heads * head, hidden),
                             ("self_attn.o_proj", hidden, hidden), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                             ("mlp.down_proj", hidden, inner)):
            shapes[f"model.layers.{layer}.{name}"] = shape
    generator, header, values = random.Random(5), {}, array.array("f")
    for name, shape in shapes.items():
        begin = 4 * len(values)
        values.extend(1.0 if len(shape) == 1 else generator.gauss(0, 0.1) for _ in range(math.prod(shape)))
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(values)]}
    text = json.dumps(header).encode()
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    (target / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": vocabulary, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": positions, "rope_theta": 10000.0, "tie_word_embeddings": True}))
    return target


def text_of(tokens):
    return "".join(map(chr, tokens))
