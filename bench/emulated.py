#!/usr/bin/env python3
"""Pipelines of up to eight stages on emulated devices: what a run takes beside what the simulator says, and how idle its ranks are.

    python3 bench/emulated.py [--only NAME...] [--repetitions N] [--steps N] [--cotune PROGRAM]

Every run is `cotune train --device emulated:CLUSTER`: actions, messages and collectives are real, operators take their predicted time
and compute nothing. Messages go over this machine's memory, so devices and links are made slower, by the factor that
stands behind their names (all rates and latencies alike: time is scaled, ratios are those of the device), until they are slower than
that. Clipping is on. Steps of one microbatch: as many jobs as stages, since a job's next step needs this one.

For each configuration and order it prints the rounds' time beside the prediction, and what share of the time the ranks had nothing to do
in the steady region (without the first and the last two of the rounds between two flushes): by the simulator, of the run, and of the run beyond load imbalance (1 - mean / largest busy time of a rank). Medians. Python's standard
library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

ADAPTER = {"r": 16, "target_modules": "all-linear"}
# name: model, jobs' rows (tokens), rows of a step, parallel, device, link, time scale
CONFIGURATIONS = {
    "7b-pp4": ("llama-2-7b", [384] * 4, 1, "pp=4,tp=1", "A40", "pcie4", 4),
    "7b-pp8": ("llama-2-7b", [384] * 8, 1, "pp=8,tp=1", "A40", "pcie4", 4),
    "7b-pp8-batches": ("llama-2-7b", [256, 320, 384, 448], 4, "pp=8,tp=1", "A40", "pcie4", 4),
    "135m-pp4": ("smollm2-135m", [384] * 4, 1, "pp=4,tp=1", "cpu", "ethernet-10", 1),
    "135m-pp8": ("smollm2-135m", [384] * 8, 1, "pp=8,tp=1", "cpu", "ethernet-10", 1),
    "135m-pp4-batches": ("smollm2-135m", [256, 320, 384, 448], 4, "pp=4,tp=1", "cpu", "ethernet-10", 1),
    "0.5b-tp2": ("qwen2.5-0.5b", [128] * 4, 1, "pp=1,tp=2", "cpu", "ethernet-10", 10),
    "0.5b-pp4-tp2": ("qwen2.5-0.5b", [128] * 4, 1, "pp=4,tp=2", "cpu", "ethernet-10", 10),
}
ORDERS = ["auto", "lorapp", "muxtune", "1f1b", "gpipe"]
DEVICES = {  # bfloat16 TFLOP/s, memory GB/s, reached share of the former, launch in us
    "A40": (149.7, 696, 0.55, 4), "cpu": (0.85, 20, 1.0, 4)}
LINKS = {"pcie4": (25, 8), "ethernet-10": (1.25, 30)}  # GB/s, us


def write_inputs(folder, configuration, steps):
    model, lengths, batch_size, _, device, link, scale = configuration
    flops, memory, efficiency, launch = DEVICES[device]
    bandwidth, latency = LINKS[link]
    cluster = {"cotune_cluster": 1, "nodes": [{
        "name": "node", "devices": 8,
        "device": {"preset": device, "bfloat16": f"{flops / scale}TFLOP/s", "memory_bandwidth": f"{memory / scale}GB/s",
                   "compute_efficiency": efficiency, "launch": f"{launch * scale}us"},
        "link": {"bandwidth": f"{bandwidth / scale}GB/s", "latency": f"{latency * scale}us"}}]}
    jobs = [{"name": f"job{i}", "data": {"lengths": {str(length): 4 * batch_size}}, "adapter": ADAPTER,
             "train": {"batch_size": batch_size, "steps": steps, "max_grad_norm": 1.0}} for i, length in enumerate(lengths)]
    paths = [os.path.join(folder, name) for name in ("cluster.yaml", "jobs.yaml")]
    contents = (cluster, {"cotune": 1, "model": {"config": model, "weights": "none", "dtype": "bfloat16"}, "jobs": jobs})
    for path, content in zip(paths, contents):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    return paths


def steady_idle(spans_by_rank, jobs):
    """Idle share of all ranks in the steady region, and the part of it that load imbalance explains; none of fewer than eight rounds."""
    skipped = 2 * 3 * jobs  # a round is forward, backward and optimizer step of every job
    if min(map(len, spans_by_rank)) < 4 * skipped:
        return None
    begin = max(spans[skipped][0] for spans in spans_by_rank)
    end = min(spans[-skipped][1] for spans in spans_by_rank)
    busy = [sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans) for spans in spans_by_rank]
    whole = [sum(stop - start for start, stop in spans) for spans in spans_by_rank]
    imbalance = 1 - statistics.mean(whole) / max(whole)
    return 1 - sum(busy) / (len(busy) * (end - begin)), imbalance


def stretches(path):
    """By process name: for each stretch of rounds without a flush the spans in which every rank computed."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    result, last = {}, {}
    for event in events:
        if event.get("ph") != "X" or event.get("cat") not in ("forward", "backward", "recompute", "optimizer_step"):
            continue
        ranks = result.setdefault(names[event["pid"]].split(",")[0], {}).setdefault(event["tid"], [])
        track, action = (event["pid"], event["tid"]), event["args"]["action"]
        if action <= last.get(track, action):  # actions are numbered anew
            ranks.append([])
        last[track] = action
        ranks[-1].append((event["ts"], event["ts"] + event["dur"]))
    return {name: list(zip(*ranks.values())) for name, ranks in result.items()}


def run(options, folder, paths, configuration, order):
    trace = os.path.join(folder, "trace.json")
    cluster, jobs = paths
    subprocess.run([options.cotune, "train", jobs, "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json", "--device",
                    "emulated:" + cluster, "--parallel", configuration[3], "--sharing", "temporal", "--token-budget", "512",
                    "--pipeline-order", order, "--rank-trace", trace], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(os.path.join(folder, "run", "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    assert summary["emulated"]
    # The longest stretch has the steadiest region.
    return summary, {name: steady_idle(max(all_of, key=lambda ranks: len(ranks[0])), len(configuration[1]))
                     for name, all_of in stretches(trace).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--order", nargs="+", default=ORDERS)
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    print("| configuration | order | rounds, s | simulator, s | off | idle, simulator | idle | beyond imbalance |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only:
        configuration = CONFIGURATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            paths = write_inputs(folder, configuration, options.steps)
            for order in options.order:
                rows, idle_rows = [], []
                for _ in range(options.repetitions):
                    summary, idle = run(options, folder, paths, configuration, order)
                    seconds, predicted = summary["ranks"][0]["seconds"], summary["ranks_predicted_seconds"]
                    rows.append((seconds, predicted, seconds / predicted - 1))
                    if idle["emulated"] is not None:
                        share, imbalance = idle["emulated"]
                        idle_rows.append((idle["planned"][0], share, share - imbalance))
                seconds, predicted, off = (statistics.median(column) for column in zip(*rows))
                shares = [f"{statistics.median(column):.1%}" for column in zip(*idle_rows)] or ["–"] * 3
                print(f"| {name} | {order} | {seconds:.2f} | {predicted:.2f} | {off:+.1%} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
