#!/usr/bin/env python3
"""Pipelines of up to eight stages, and replicas of up to sixteen ranks, on emulated devices: what a run takes beside what the simulator
says, and how idle its ranks are.

    python3 bench/emulated.py [--only NAME...] [--repetitions N] [--steps N] [--cotune PROGRAM]

Every run is `cotune train --device emulated:CLUSTER`: actions, messages and collectives are real, operators take their predicted time
and compute nothing. Messages go over this machine's memory, so devices and links are made slower, by the factor that
stands behind their names (all rates and latencies alike: time is scaled, ratios are those of the device), until they are slower than
that. Clipping is on. Steps of one microbatch: as many jobs as stages, since a job's next step needs this one.

For each configuration and order it prints the rounds' time beside the prediction, and what share of the time the ranks had nothing to do
in the steady region (without the first and the last two of the rounds between two flushes): by the simulator, of the run, and of the run beyond load imbalance (1 - mean / largest busy time of a rank). Medians.

Of replicas it prints a second table: deployments and dispatches of the same rows on as many devices (after LobRA's Figure 8;
7b-16: its plans of single devices, pairs and eights), their time beside the prediction, and both relative to the first row's. Rows
of a round are dealt by length buckets of that round (dynamic bucketing) unless the row says fixed.

Python's standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import typing

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
# name: model, jobs as {tokens: rows} and their rows a step, token budget, nodes, devices of a node, device, link, network, time scale,
# rounds, deployments as (name, parallel, dispatch and its length buckets); the first is what others are compared with
SKEWED = [({128: 30, 256: 20, 512: 9, 1024: 3, 2048: 1}, 24), ({192: 24, 384: 10, 768: 4, 1536: 1}, 16),
          ({512: 12, 1024: 8, 2048: 5, 3072: 4, 8192: 4}, 10)]
REPLICAS = {
    "7b-16": ("llama-2-7b", SKEWED, 2048, 2, 8, "A100-40", "nvlink-400", "infiniband-100", 20, 4, [
        ("like replicas (Task-Fused)", "dp=2,tp=8", "even"),
        ("six, one, one; greedy", "dp=6,len=2048+tp=2,len=4096+tp=8", "greedy"),
        ("six, one, one; balanced", "dp=6,len=2048+tp=2,len=4096+tp=8", "balanced"),
        ("four, two, one; greedy", "dp=4,len=2048+tp=2,dp=2,len=4096+tp=8", "greedy"),
        ("four, two, one; balanced, fixed buckets", "dp=4,len=2048+tp=2,dp=2,len=4096+tp=8", "balanced fixed"),
        ("four, two, one; balanced", "dp=4,len=2048+tp=2,dp=2,len=4096+tp=8", "balanced")]),
    "7b-dp2-pp4": ("llama-2-7b", [({256: 16, 384: 16}, 8)] * 4, 512, 1, 8, "A100-40", "nvlink-600", None, 8, 8, [
        ("one pipeline", "pp=8", "even"), ("two, even", "dp=2,pp=4", "even"), ("two, balanced", "dp=2,pp=4", "balanced")]),
    "135m-dp4": ("smollm2-135m", [({64: 24, 128: 12, 256: 6, 512: 2}, 8)] * 4, 512, 1, 4, "cpu", "ethernet-10", None, 2, 6, [
        ("even", "dp=4,pp=1", "even"), ("greedy", "dp=4,pp=1", "greedy"), ("balanced", "dp=4,pp=1", "balanced")]),
    "tiny-unlike": ("smollm2-135m", [({64: 6, 128: 3}, 4)] * 2, 256, 1, 5, "cpu", "ethernet-10", None, 1, 2, [
        ("even", "dp=2+tp=3", "even"), ("greedy", "dp=2,len=64+tp=3", "greedy"), ("balanced", "dp=2,len=64+tp=3", "balanced")]),
}
# Steps of every job, and rounds without a flush between them: of orders that do not flush themselves enough for a steady region.
STEPS = {"auto": 50, "lorapp": 50, "muxtune": 50, "1f1b": 9, "gpipe": 9}
DEVICES = {  # bfloat16 TFLOP/s, memory GB/s, reached share of the former, launch in us
    "A40": (149.7, 696, 0.55, 4), "A6000": (154.8, 768, 0.55, 4), "A100-40": (312, 1555, 0.55, 4), "cpu": (0.85, 20, 1.0, 4)}
LINKS = {"pcie4": (25, 8), "ethernet-10": (1.25, 30), "nvlink-600": (300, 3), "nvlink-400": (200, 3), "infiniband-100": (12.5, 5)}  # GB/s, us


def slowed_link(name, scale):
    bandwidth, latency = LINKS[name]
    return {"bandwidth": f"{bandwidth / scale}GB/s", "latency": f"{latency * scale}us"}


def write_inputs(folder, model, jobs_rows, nodes, devices, device, link, network, scale, steps):
    """jobs_rows: of each job {tokens: rows} and the rows of a step."""
    flops, memory, efficiency, launch = DEVICES[device]
    cluster = {"cotune_cluster": 1, "nodes": [{
        "name": "node", "count": nodes, "devices": devices,
        "device": {"preset": device, "bfloat16": f"{flops / scale}TFLOP/s", "memory_bandwidth": f"{memory / scale}GB/s",
                   "compute_efficiency": efficiency, "launch": f"{launch * scale}us"},
        "link": slowed_link(link, scale)}]}
    if network is not None:
        cluster["network"] = slowed_link(network, scale)
    jobs = [{"name": f"job{i}", "data": {"lengths": {str(tokens): count for tokens, count in rows.items()}}, "adapter": ADAPTER,
             "train": {"batch_size": batch_size, "steps": steps, "max_grad_norm": 1.0}} for i, (rows, batch_size) in enumerate(jobs_rows)]
    paths = [os.path.join(folder, name) for name in ("cluster.yaml", "jobs.yaml")]
    contents = (cluster, {"cotune": 1, "model": {"config": model, "weights": "none", "dtype": "bfloat16"}, "jobs": jobs})
    for path, content in zip(paths, contents):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
    return paths


def write_pipeline_inputs(folder, configuration, steps):
    """configuration: as in CONFIGURATIONS."""
    model, lengths, batch_size, _, device, link, scale = configuration
    jobs_rows = [({length: 4 * batch_size}, batch_size) for length in lengths]
    return write_inputs(folder, model, jobs_rows, 1, 8, device, link, None, scale, steps)


class Span(typing.NamedTuple):
    """What a rank computed: microseconds, the action's name, the stage."""
    start: float
    stop: float
    name: str
    stage: int


def steady_idle(spans_by_rank, jobs):
    """Idle share of all ranks in the steady region, and the part of it that load imbalance explains; none of fewer than eight rounds."""
    skipped = 2 * 3 * jobs  # a round is forward, backward and optimizer step of every job
    if min(map(len, spans_by_rank)) < 4 * skipped:
        return None
    begin = max(spans[skipped].start for spans in spans_by_rank)
    end = min(spans[-skipped].stop for spans in spans_by_rank)
    busy = [sum(max(0, min(span.stop, end) - max(span.start, begin)) for span in spans) for spans in spans_by_rank]
    whole = [sum(span.stop - span.start for span in spans) for spans in spans_by_rank]
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
        ranks[-1].append(Span(event["ts"], event["ts"] + event["dur"], event["name"], event["args"]["stage"]))
    return {name: list(zip(*ranks.values())) for name, ranks in result.items()}


def train(options, folder, paths, *arguments):
    cluster, jobs = paths
    subprocess.run([options.cotune, "train", jobs, "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json", "--device",
                    "emulated:" + cluster, *arguments], check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    with open(os.path.join(folder, "run", "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    assert summary["emulated"]
    return summary


def run(options, folder, paths, configuration, order):
    trace = os.path.join(folder, "trace.json")
    summary = train(options, folder, paths, "--parallel", configuration[3], "--sharing", "temporal", "--token-budget", "512",
                    "--pipeline-order", order, "--rounds-at-once", str(STEPS[order]), "--trace", trace)
    # The longest stretch has the steadiest region.
    return summary, {name: steady_idle(max(all_of, key=lambda ranks: len(ranks[0])), len(configuration[1]))
                     for name, all_of in stretches(trace).items()}


def compare_pipelines(options, names):
    print("| configuration | order | rounds, s | simulator, s | off | idle, simulator | idle | beyond imbalance |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        configuration = CONFIGURATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            for order in options.order:
                paths = write_pipeline_inputs(folder, configuration, options.steps or STEPS[order])
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


def compare_replicas(options, names):
    print("| configuration | deployment, dispatch | rounds, s | simulator, s | off | of the first | simulator | planning exposed, s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        model, jobs, budget, nodes, devices, device, link, network, scale, steps, deployments = REPLICAS[name]
        with tempfile.TemporaryDirectory() as folder:
            paths = write_inputs(folder, model, jobs, nodes, devices, device, link, network, scale, options.steps or steps)
            first = None
            for deployment, parallel, dispatch in deployments:
                rows = []
                for _ in range(options.repetitions):
                    arguments = ["--parallel", parallel, "--sharing", "batch-all", "--token-budget", str(budget)]
                    if "dp=" in parallel:
                        rule, *buckets = dispatch.split()
                        arguments += ["--dispatch", rule, *(f"--length-buckets={each}" for each in buckets)]
                    summary = train(options, folder, paths, *arguments)
                    rows.append((summary["ranks"][0]["seconds"], summary["ranks_predicted_seconds"],
                                 summary["planning"]["exposed_seconds"]))
                seconds, predicted, exposed = (statistics.median(column) for column in zip(*rows))
                first = first or (seconds, predicted)
                print(f"| {name} | {deployment} | {seconds:.2f} | {predicted:.2f} | {seconds / predicted - 1:+.1%} | "
                      f"{seconds / first[0]:.3f} | {predicted / first[1]:.3f} | {exposed:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*CONFIGURATIONS, *REPLICAS], default=[*CONFIGURATIONS, *REPLICAS])
    parser.add_argument("--order", nargs="+", default=list(STEPS))
    parser.add_argument("--steps", type=int, help="of every job; default 50, 9 under orders that flush; of replicas as their configuration says")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cotune", default="build/cotune")
    options = parser.parse_args()
    pipelines = [name for name in options.only if name in CONFIGURATIONS]
    replicas = [name for name in options.only if name in REPLICAS]
    if pipelines:
        compare_pipelines(options, pipelines)
    if pipelines and replicas:
        print()
    if replicas:
        compare_replicas(options, replicas)


if __name__ == "__main__":
    main()
