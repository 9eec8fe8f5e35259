"""Tiny real models with a tokenizer, for tests of the command line: every ASCII character is one token, its code the id."""
import json
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/model_weights/data"
TEMPLATE = ("{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def byte_level(byte):
    """GPT-2's printable stand-in for a byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in shown else 256 + sum(other not in shown for other in range(byte)))


def copy_model(target, family="smollm2", template=TEMPLATE):
    """Copies a committed model of random weights with 128 tokens and gives it the tokenizer. template: None for none."""
    target.mkdir()
    for file in (MODELS / family).iterdir():
        if file.name != "logits.safetensors":
            shutil.copy(file, target / file.name)
    byte_level_step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": byte_level_step, "post_processor": None, "decoder": byte_level_step,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {byte_level(byte): byte for byte in range(128)}, "merges": []}}
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    if template is not None:
        (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return target


def text_of(tokens):
    return "".join(map(chr, tokens))
