#!/usr/bin/env python3
"""Loads LoRA folders that cotune wrote in Hugging Face PEFT and computes their logits.

    python scripts/reference/adapter_reference.py --write build/test_engine   # folders and logits anew
    python scripts/reference/adapter_reference.py --check [FOLDER ...]        # PEFT still makes the committed logits

tests/engine/data/adapter/NAME holds adapter_config.json and adapter_model.safetensors, byte for byte what cotune writes
(tests/engine/saved_adapter_test.cc), and logits.safetensors with

    input_ids   [2, tokens]           i64
    logits      [2, tokens, vocab]    f32, computed by PEFT in f64 and rounded once

on the tiny model that `base_model_name_or_path` names (tests/model_weights/data). PEFT must take the folder as it is:
every tensor of the file has a place and every LoRA parameter is in the file. Made with torch 2.11, transformers 5.23,
peft 0.21.2.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/engine/data/adapter"
TOKENS = 19


def peft_logits(folder, input_ids):
    """Logits of PEFT's model, and a check that PEFT read the whole file."""
    family = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    base = AutoModelForCausalLM.from_pretrained(ROOT / "tests/model_weights/data" / family, dtype=torch.float64)
    model = PeftModel.from_pretrained(base, folder).double().eval()
    saved, taken = load_file(folder / "adapter_model.safetensors"), get_peft_model_state_dict(model, save_embedding_layers=False)
    if set(saved) != set(taken):
        sys.exit(f"{folder}: PEFT knows other tensors: {sorted(set(saved) ^ set(taken))}")
    for name, value in saved.items():
        if not torch.equal(taken[name].float(), value):
            sys.exit(f"{folder}: PEFT has other values for {name}")
    with torch.no_grad():
        return model(input_ids=input_ids).logits


def new_input_ids(folder):
    family = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    vocabulary = json.loads((ROOT / "tests/model_weights/data" / family / "config.json").read_text())["vocab_size"]
    generator = torch.Generator().manual_seed(len(folder.name))
    return torch.randint(3, vocabulary, (2, TOKENS), generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", metavar="TEST_ENGINE", help="the built test program")
    action.add_argument("--check", action="store_true")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, help="default: all of tests/engine/data/adapter")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.write:
        subprocess.run([options.write, "--gtest_filter=*SavedAdapter.HasTheBytes*"], check=True,
                       env=dict(os.environ, COTUNE_WRITE_ADAPTERS=str(DATA)))
    for folder in options.folders or sorted(path for path in DATA.iterdir() if path.is_dir()):
        reference = folder / "logits.safetensors"
        if options.write:
            ids = new_input_ids(folder)
            save_file({"input_ids": ids, "logits": peft_logits(folder, ids).float().contiguous()}, reference)
            print(f"{folder.name}: written")
            continue
        committed = load_file(reference)
        logits = peft_logits(folder, committed["input_ids"])
        apart = ((logits - committed["logits"].double()).abs().max() / logits.abs().max()).item()
        print(f"{folder.name}: relative difference {apart:.1e}")
        if apart > 1e-6:
            sys.exit(f"{folder}: PEFT makes other logits now")


if __name__ == "__main__":
    main()
