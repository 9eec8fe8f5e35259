#!/usr/bin/env python3
"""Speed of a pipeline of ranks that are threads, beside one rank with all cores: the four jobs of bench/compare.py.

    python3 bench/ranks.py --model MODEL [--ranks N] [--steps N] [--repetitions N] [--token-budget N...] [--order NAME...]
                           [--parallel DEGREES...]

For each repetition it runs one rank, every order of the ranks and every other division (`dp=2`) right after each other, so that the machine's drift falls
on all alike; a ratio is the median of ratios of one repetition. Times are those of rounds after the first. Prints a
table: real tokens/s over one rank with the same token budget, and over the best budget of one rank; what share of the rounds
each rank computed; and the largest difference of a final loss from one rank's. Python's standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

import workloads


def write_jobs(folder, model, dtype, steps, jobs_wanted=None):
    """jobs_wanted: those of the workload four-jobs where it is left out."""
    jobs = []
    for job in jobs_wanted or workloads.WORKLOADS["four-jobs"]:
        with open(os.path.join(folder, job["name"] + ".jsonl"), "w", encoding="utf-8") as file:
            for row in workloads.rows_of(job, steps):
                file.write(json.dumps(row) + "\n")
        jobs.append({"name": job["name"], "data": {"train": job["name"] + ".jsonl", "format": "tokens"}, "adapter": job["adapter"],
                     "train": {**workloads.TRAIN, "batch_size": job["batch_size"], "steps": steps, "shuffle": "none"}})
    path = os.path.join(folder, "jobs.yaml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"cotune": 1, "model": {"path": os.path.abspath(model), "dtype": dtype}, "jobs": jobs}, file)
    return path


def run(options, folder, jobs_file, *arguments):
    subprocess.run([options.cotune, "train", jobs_file, "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json",
                    *arguments], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(os.path.join(folder, "run", "summary.json"), encoding="utf-8") as file:
        return json.load(file)


def last_losses(summary):
    return [losses[-1] for losses in summary["losses"].values()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--token-budget", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--parallel", nargs="*", default=[], help="divisions of as many ranks, such as dp=2")
    parser.add_argument("--order", nargs="*", default=["auto", "lorapp", "muxtune", "1f1b", "gpipe"])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    ratios, speeds, busy, apart = {}, {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        jobs_file = write_jobs(folder, options.model, options.dtype, options.steps)
        for _ in range(options.repetitions):
            alone = {budget: run(options, folder, jobs_file, f"--token-budget={budget}") for budget in options.token_budget}
            best = max(summary["tokens_per_second"] for summary in alone.values())
            for budget in options.token_budget:
                one = alone[budget]
                speeds.setdefault((budget, "one rank"), []).append(one["tokens_per_second"])
                ratios.setdefault((budget, "one rank"), []).append((1.0, one["tokens_per_second"] / best))
                divisions = {order: (f"--ranks={options.ranks}", f"--pipeline-order={order}") for order in options.order}
                divisions |= {parallel: (f"--parallel={parallel}",) for parallel in options.parallel}
                for name, arguments in divisions.items():
                    summary = run(options, folder, jobs_file, f"--token-budget={budget}", *arguments)
                    key = (budget, name)
                    speed = summary["tokens_per_second"]
                    speeds.setdefault(key, []).append(speed)
                    ratios.setdefault(key, []).append((speed / one["tokens_per_second"], speed / best))
                    busy.setdefault(key, []).append([1 - rank["waited_seconds"] / rank["seconds"] for rank in summary["ranks"]])
                    apart.setdefault(key, []).append(max(abs(a - b) / abs(b) for a, b in zip(last_losses(summary), last_losses(one))))
    print(f"| token budget | order | tokens/s | over one rank | over its best budget | busy, rank 0 to {options.ranks - 1} | losses apart |")
    print("|---|---|---|---|---|---|---|")
    for key, pairs in ratios.items():
        same, best = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        shares = " ".join(f"{statistics.median(column):.0%}" for column in zip(*busy[key])) if key in busy else "–"
        difference = f"{max(apart[key]):.1e}" if key in apart else "–"
        print(f"| {key[0]} | {key[1]} | {statistics.median(speeds[key]):.0f} | {same:.2f}× | {best:.2f}× | {shares} | {difference} |")


if __name__ == "__main__":
    main()
