#!/usr/bin/env python3
"""All-reduces hidden behind another microbatch's computation, on an emulated device: what interleaving takes off, beside what was predicted.

    python3 bench/interleaving.py [--only NAME...] [--steps N] [--cotune PROGRAM]

Every run is `cotune train --device emulated:CLUSTER --parallel tp=2` with four jobs of one row, each a microbatch of its own, once with
--interleave never and once with always: actions and all-reduces are real, operators take their predicted time and compute nothing. Devices and
links are slowed down by one factor (all rates and latencies alike), as in bench/emulated.py, whose inputs are taken.

Prints for each configuration the rounds' time, the time that ranks waited for all-reduces with nothing to compute beside them (exposed), how
much less that is with interleaving, and how much less it was predicted to be. Python's standard library only.
"""
import argparse
import json
import os
import subprocess
import tempfile

import emulated

# As emulated.CONFIGURATIONS: model, jobs' rows (tokens), rows of a step, parallel, device, link, time scale
CONFIGURATIONS = {
    "0.5b-tp2": ("qwen2.5-0.5b", [128] * 4, 1, "tp=2", "cpu", "ethernet-10", 10),
    "0.5b-tp2-unlike": ("qwen2.5-0.5b", [64, 128, 192, 256], 1, "tp=2", "cpu", "ethernet-10", 10),
}


def run(options, folder, paths, parallel, interleave):
    """Of the first rank: seconds of the rounds, exposed, predicted to be exposed."""
    cluster, jobs = paths
    subprocess.run([options.cotune, "train", jobs, "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json", "--device",
                    "emulated:" + cluster, "--parallel", parallel, "--sharing", "temporal", "--token-budget", "512",
                    "--interleave", interleave], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(os.path.join(folder, "run", "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    rank = summary["ranks"][0]
    return rank["seconds"], rank["exposed_seconds"], rank["predicted"]["exposed"] * rank["predicted_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    print("| configuration | rounds, s | interleaved | exposed, s | interleaved | less exposed, s | predicted | of it |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only:
        configuration = CONFIGURATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            paths = emulated.write_pipeline_inputs(folder, configuration, options.steps)
            waiting, interleaved = (run(options, folder, paths, configuration[3], each) for each in ("never", "always"))
        fall, predicted = waiting[1] - interleaved[1], waiting[2] - interleaved[2]
        print(f"| {name} | {waiting[0]:.2f} | {interleaved[0]:.2f} | {waiting[1]:.2f} | {interleaved[1]:.2f} | {fall:.2f} | {predicted:.2f} "
              f"| {fall / predicted:.0%} |", flush=True)


if __name__ == "__main__":
    main()
