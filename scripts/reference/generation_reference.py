#!/usr/bin/env python3
"""Writes tests/engine/data/generation.json: greedy continuations by Hugging Face transformers (and PEFT), in f64.

    python scripts/reference/generation_reference.py [--check]

Needs the packages of `scripts/install-dependencies --comparisons`. --check compares with the committed file and writes
nothing. Per tiny model of tests/model_weights/data: three prompts of different lengths and the 24 tokens that
`generate(do_sample=False, use_cache=True)` gives, without stop tokens; for the models of tests/engine/data/peft also
with each of their initial adapters. Weights are widened to f64 (the norms and rotary tables of transformers stay f32);
prompts are redrawn until the likeliest token leads by at least 1e-3 at every step, so that rounding decides nothing.
"""
import argparse
import json
import pathlib
import random
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/model_weights/data"
ADAPTERS = ROOT / "tests/engine/data/peft"
TARGET = ROOT / "tests/engine/data/generation.json"
FAMILIES = ["llama2", "llama3", "mistral", "qwen2", "smollm2"]
NEW_TOKENS = 24
MARGIN = 1e-3


def continuation(model, prompt):
    """The new tokens, or None where two tokens are nearly equally likely."""
    with torch.no_grad():
        out = model.generate(input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                             do_sample=False, use_cache=True, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0,
                             output_logits=True, return_dict_in_generate=True)
    for logits in out.logits:
        first, second = logits[0].topk(2).values.tolist()
        if first - second < MARGIN:
            return None
    return out.sequences[0, len(prompt):].tolist()


def cases(family):
    draw = random.Random(family)
    adapters = sorted(p.name for p in (ADAPTERS / family).glob("*")) if (ADAPTERS / family).is_dir() else []
    for adapter in [None, *adapters]:
        model = AutoModelForCausalLM.from_pretrained(MODELS / family, dtype=torch.float64, attn_implementation="sdpa")
        if adapter is not None:
            model = PeftModel.from_pretrained(model, ADAPTERS / family / adapter, autocast_adapter_dtype=False).double()
        model.eval()
        vocabulary = model.config.vocab_size
        for length in (1, 9, 40) if adapter is None else (17,):
            tokens = None
            while tokens is None:
                prompt = [draw.randrange(3, vocabulary) for _ in range(length)]
                tokens = continuation(model, prompt)
            yield {"model": family, "adapter": adapter, "prompt": prompt, "tokens": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    lines = ",\n".join(json.dumps(case) for family in FAMILIES for case in cases(family))
    text = f"[\n{lines}\n]\n"
    if not check:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET.relative_to(ROOT)} differs from what transformers generates now")


if __name__ == "__main__":
    main()
