#!/usr/bin/env python3
"""How idle a pipeline of ranks that compute is in its steady region: LoRAPP's promise (mLoRA §3.3), measured on cores.

    python3 bench/steady_idle.py --model MODEL [--ranks N] [--order NAME...] [--steps N] [--repetitions N] [--cotune build/cotune] [--no-docs]

Twice as many jobs as ranks (LoRAPP needs more than one a stage where links are slow), each of one microbatch of 384 tokens a step, with clipping;
--steps rounds without a flush. Each rank is a thread with a core of its own where there are as many. Idle is what share of the time ranks did not
compute, without the first and last two rounds; beyond load imbalance (1 - mean / largest busy time of a rank) is what no order could help.
`At usual times` is the same of the same lists of actions if each took the median of its like in the run, as soon as its rank and the message that it
waits for allow: what the order leaves idle where nobody slows a core down for a while.
Writes its part of docs/ranks.md. Python's standard library only.
"""
import argparse
import collections
import itertools
import os
import re
import statistics
import subprocess
import tempfile

import compare
import emulated
import page_part
import workloads

TOKENS = 384


def kind_of(span):
    """Actions of one kind take about the same time: those of a job, whose microbatches and steps are numbered."""
    return re.sub(r"^(step |[FB])\d+", r"\1", span.name), span.stage


def at_usual_times(ranks):
    """The lists of spans by rank, replayed with every action's median."""
    seconds = {}
    for span in itertools.chain(*ranks):
        seconds.setdefault(kind_of(span), []).append(span.stop - span.start)
    usual = {kind: statistics.median(each) for kind, each in seconds.items()}
    waiting = [collections.deque(spans) for spans in ranks]
    replayed, counts, ends = [[] for _ in ranks], [collections.Counter() for _ in ranks], {}
    last = max(span.stage for span in itertools.chain(*ranks))
    while any(waiting):
        left = sum(map(len, waiting))
        for rank, spans in enumerate(waiting):
            while spans:
                span = spans[0]
                before = span.stage + {"F": -1, "B": 1}.get(span.name[0], last + 1)
                number = counts[rank][span.name, span.stage]
                if 0 <= before <= last and (span.name, before, number) not in ends:
                    break
                start = max(replayed[rank][-1].stop if replayed[rank] else 0, ends.get((span.name, before, number), 0))
                replayed[rank].append(span._replace(start=start, stop=start + usual[kind_of(span)]))
                ends[span.name, span.stage, number] = replayed[rank][-1].stop
                counts[rank][span.name, span.stage] += 1
                spans.popleft()
        assert sum(map(len, waiting)) < left, "lists of actions that wait for each other"
    return replayed


def run(options, folder, order):
    """Of all ranks in the steady region, measured and at usual times: (idle share, what load imbalance explains of it)."""
    trace = os.path.join(folder, "trace.json")
    subprocess.run([options.cotune, "train", os.path.join(folder, "jobs.yaml"), "--output-dir", os.path.join(folder, "run"), "--overwrite", "--json",
                    "--parallel", f"pp={options.ranks}", "--sharing", "temporal", "--token-budget", "512", "--pipeline-order", order,
                    "--rounds-at-once", str(options.steps), "--trace", trace, "--set", "defaults.train.max_grad_norm=1.0"],
                   check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    measured = emulated.stretches(trace)["measured"]
    longest = max(measured, key=lambda ranks: len(ranks[0]))
    return [emulated.steady_idle(ranks, 2 * options.ranks) for ranks in (longest, at_usual_times(longest))]


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
                measured, usual = run(options, folder, order)
                rows.append((*measured, measured[0] - measured[1], usual[0] - usual[1]))
            beyond = [row[2] for row in rows]
            verdict = "≤ 5%" if statistics.median(beyond) <= 0.05 else "≤ 5%, **missed**"
            share, imbalance, _, usual = (statistics.median(column) for column in zip(*rows))
            lines.append(f"| {options.ranks} | {order} | {share:.1%} | {imbalance:.1%} | {statistics.median(beyond):.1%} ({min(beyond):.1%}–{max(beyond):.1%}; {verdict}) | {usual:.1%} |")
    text = "\n".join([f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. {2 * options.ranks} jobs of one microbatch of "
                      f"{TOKENS} tokens, {options.steps} rounds, {options.repetitions} repetitions.", "",
                      "| ranks | order | idle | by load imbalance | beyond it | beyond it, at usual times |", "|---|---|---|---|---|---|", *lines])
    page_part.put(options, "steady-idle", text)


if __name__ == "__main__":
    main()
