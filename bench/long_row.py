#!/usr/bin/env python3
"""Memory of one long row: trains LoRA of rank 16 on all seven projections with one row, and counts bytes. No timing.

    python3 bench/long_row.py --model MODEL [--tokens N] [--steps N] [--recompute always|auto|never]
                              [--dtype bfloat16|float32] [--cotune build/cotune]

Prints the peak of tensors alive beside the model's weights, and the process's peak beside them; the goal for
SmolLM2-135M and 8,192 tokens in bf16 is 1.5 GiB above the weights. Python's standard library only.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import workloads

GOAL_BYTES = 3 << 29


def train(cotune, model, tokens=8192, steps=1, recompute="always", dtype="bfloat16"):
    """Trains the row. What stands in summary.json, and `tensors` and `process`: their peaks above the model's weights, in bytes."""
    generator = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        ids = [generator.randrange(100, 5000) for _ in range(tokens)]
        with open(os.path.join(folder, "row.jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
        jobs_file, run = os.path.join(folder, "jobs.yaml"), os.path.join(folder, "run")
        with open(jobs_file, "w", encoding="utf-8") as file:
            file.write(f"cotune: 1\nmodel: {{path: {json.dumps(os.path.abspath(model))}, dtype: {dtype}}}\n"
                       f"run: {{recompute: {recompute}}}\njobs:\n  - name: long\n"
                       f"    data: {{train: row.jsonl, format: tokens}}\n    adapter: {json.dumps(workloads.LORA)}\n"
                       f"    train: {{batch_size: 1, steps: {steps}}}\n")
        subprocess.run([cotune, "train", jobs_file, "--output-dir", run, "--json"], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(run, "summary.json"), encoding="utf-8") as file:
            summary = json.load(file)
    weights = summary["peak_bytes"]["weights"]
    return {**summary, "tensors": summary["peak_live_bytes"] - weights, "process": summary["peak_rss_bytes"] - weights}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--recompute", choices=["always", "auto", "never"], default="always")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    taken = train(options.cotune, options.model, options.tokens, options.steps, options.recompute, options.dtype)
    mib = 2 ** 20
    print(f"one row of {options.tokens} tokens, {options.dtype}, recompute {options.recompute}: loss {taken['losses']['long'][-1]:.4f}")
    print(f"weights {taken['peak_bytes']['weights'] / mib:.0f} MiB; tensors above them {taken['tensors'] / mib:.0f} MiB; "
          f"process above them {taken['process'] / mib:.0f} MiB (goal: {GOAL_BYTES // mib} MiB)")
    return 0 if max(taken["tensors"], taken["process"]) <= GOAL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
