#!/usr/bin/env python3
"""How idle a pipeline of ranks that compute is in its steady region: LoRAPP's promise (mLoRA §3.3), measured on cores.

    python3 bench/steady_idle.py --model MODEL [--ranks N] [--order NAME...] [--steps N] [--repetitions N] [--cotune build/cotune] [--no-docs]

Twice as many jobs as ranks (LoRAPP needs more than one a stage where links are slow), each of one microbatch of 384 tokens a step, with clipping;
--steps rounds without a flush. Each rank is a thread with a core of its own where there are as many. Idle is what share of the time ranks did not
compute, without the first and last two rounds; beyond load imbalance (1 - mean / largest busy time of a rank) is what no order could help.
Writes its part of docs/ranks.md. Python's standard library only.
"""
import argparse
import os
import statistics
import subprocess
import tempfile

import compare
import emulated
import page_part
import workloads

TOKENS = 384


def run(options, folder, order):
    """(idle share, what load imbalance explains of it) of all ranks in the steady region."""
    trace = os.path.join(folder, "trace.json")
    subprocess.run([options.cotune, "train", os.path.join(folder, "jobs.yaml"), "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json",
                    "--parallel", f"pp={options.ranks}", "--sharing", "temporal", "--token-budget", "512", "--pipeline-order", order,
                    "--rounds-at-once", str(options.steps), "--trace", trace, "--set", "defaults.train.max_grad_norm=1.0"],
                   check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    measured = emulated.stretches(trace)["measured"]
    return emulated.steady_idle(max(measured, key=lambda ranks: len(ranks[0])), 2 * options.ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--order", nargs="+", default=["lorapp", "auto"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cotune", default="build/cotune")
    page_part.add_options(parser, "docs/ranks.md")
    options = parser.parse_args()
    jobs = workloads.jobs_of((TOKENS,) * 2 * options.ranks, batch_size=1, full=True)
    lines, busy = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = workloads.write_workload(temporary, "one-microbatch", os.path.abspath(options.model), options.steps, "bfloat16", jobs, prepared=False)
        for order in options.order:
            rows = []
            for _ in range(options.repetitions):
                busy.append(compare.busy_cores())
                share, imbalance = run(options, folder, order)
                rows.append((share, imbalance, share - imbalance))
            beyond = [row[2] for row in rows]
            verdict = "≤ 5%" if statistics.median(beyond) <= 0.05 else "≤ 5%, **missed**"
            share, imbalance, _ = (statistics.median(column) for column in zip(*rows))
            lines.append(f"| {options.ranks} | {order} | {share:.1%} | {imbalance:.1%} | {statistics.median(beyond):.1%} ({min(beyond):.1%}–{max(beyond):.1%}; {verdict}) |")
    text = "\n".join([f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. {2 * options.ranks} jobs of one microbatch of "
                      f"{TOKENS} tokens, {options.steps} rounds, {options.repetitions} repetitions.", "",
                      "| ranks | order | idle | by load imbalance | beyond it |", "|---|---|---|---|---|", *lines])
    page_part.put(options, "steady-idle", text)


if __name__ == "__main__":
    main()
