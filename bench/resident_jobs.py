#!/usr/bin/env python3
"""What each further job costs while it trains beside others: counted bytes, no timing.

    python3 bench/resident_jobs.py --model MODEL [--jobs N] [--dtype bfloat16|float32] [--cotune build/cotune]

Trains one step of 1, 2, … N equal jobs (LoRA of rank 16 on all seven projections, AdamW, 8 rows of 128 tokens, which
fill a microbatch of 1,024 by themselves) and prints the peak of tensors alive, what the last job added to it, and what
its adapter, gradients and moments take. The goal is a difference of at most 10%. Python's standard library only.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import workloads

GOAL = 0.10
RESIDENT = ("adapters", "gradients", "optimizer")


def measure(cotune, model, dtype, job_count, folder):
    """Peak bytes alive, and bytes of adapters, gradients and moments, of one step of job_count jobs."""
    jobs = [{"name": f"job{index:02d}", "longest": 128, "batch_size": 8, "full": True, "labelled": 1.0,
             "adapter": workloads.LORA, "more_steps": 0} for index in range(job_count)]
    lines = ["cotune: 1", "model:", f"  path: {json.dumps(os.path.abspath(model))}", f"  dtype: {dtype}", "defaults:",
             "  train: {steps: 1, shuffle: none, learning_rate: 2.0e-4}", "jobs:"]
    for job in jobs:
        rows = os.path.join(folder, job["name"] + ".jsonl")
        with open(rows, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in workloads.rows_of(job, 1))
        lines += [f"  - name: {job['name']}", f"    data: {json.dumps({'train': rows, 'format': 'tokens'})}",
                  f"    adapter: {json.dumps(job['adapter'])}", "    train: {batch_size: 8}"]
    jobs_file, run = os.path.join(folder, "jobs.yaml"), os.path.join(folder, "run")
    with open(jobs_file, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    subprocess.run([cotune, "train", jobs_file, "--output-dir", run, "--overwrite", "--json"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(os.path.join(run, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    return summary["peak_live_bytes"], sum(summary["peak_bytes"][kind] for kind in RESIDENT)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    mib = 2 ** 20
    print("| jobs | peak alive, MiB | the last job added, MiB | its adapter, gradients, moments, MiB | difference |")
    print("|---|---|---|---|---|")
    worst, before = 0.0, None
    for count in range(1, options.jobs + 1):
        with tempfile.TemporaryDirectory() as folder:
            peak, resident = measure(options.cotune, options.model, options.dtype, count, folder)
        row = [str(count), f"{peak / mib:.1f}", "–", f"{resident / count / mib:.1f}", "–"]
        if before is not None:
            added, own = peak - before[0], resident - before[1]
            worst = max(worst, abs(added - own) / own)
            row[2:] = [f"{added / mib:.1f}", f"{own / mib:.1f}", f"{100 * (added - own) / own:+.1f}%"]
        print("| " + " | ".join(row) + " |", flush=True)
        before = (peak, resident)
    print(f"largest difference: {100 * worst:.1f}% (goal: at most {100 * GOAL:.0f}%)")
    return 0 if worst <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
