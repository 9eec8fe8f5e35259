#!/usr/bin/env python3
"""Writes the real histograms of bench/plan/data/length_distributions.json: tokens per example of the demonstration's data
sets, and of whole modules of Python's standard library, by the tokenizer of the demonstration's model.

    .deps/venv/bin/python bench/plan/measure_lengths.py [--demo build/demo]    # after scripts/demo-data

Lengths are rounded up to multiples of 16; what is longer than 16,384 tokens counts as 16,384. The other parts of the
file stay as they are.
"""
import argparse
import collections
import json
import pathlib
import sysconfig

from transformers import AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILE = ROOT / "bench/plan/data/length_distributions.json"
STEP, LONGEST = 16, 16384


def text_of(record, tokenizer):
    if "messages" in record:
        return tokenizer.apply_chat_template(record["messages"], tokenize=False)
    return record["prompt"] + record["completion"]


def histogram(texts, tokenizer):
    counts = collections.Counter()
    for text in texts:
        tokens = len(tokenizer.encode(text, add_special_tokens=False)) + 1  # and the end of the text
        counts[min(LONGEST, -(-tokens // STEP) * STEP)] += 1
    return {str(length): counts[length] for length in sorted(counts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=pathlib.Path, default=ROOT / "build/demo", help="what scripts/demo-data fetched")
    demo = parser.parse_args().demo
    model = next((demo / "model").glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    measured = {}
    for name in ("code", "definitions", "jargon", "sentiment"):
        with open(demo / f"data/{name}.train.jsonl", encoding="utf-8") as lines:
            measured[name] = histogram((text_of(json.loads(line), tokenizer) for line in lines), tokenizer)
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts and "test" not in path.parts
               and "tests" not in path.parts and "dist-packages" not in path.parts]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in modules)
    measured["python-modules"] = histogram((text for text in texts if text.strip()), tokenizer)
    document = json.loads(FILE.read_text(encoding="utf-8"))
    for name, counts in measured.items():
        document["histograms"][name] = counts
    lines = json.dumps(document, indent=1, ensure_ascii=False)
    # One histogram a line.
    for name, counts in document["histograms"].items():
        lines = lines.replace(json.dumps(counts, indent=1).replace("\n", "\n  "), json.dumps(counts))
    FILE.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
