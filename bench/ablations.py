#!/usr/bin/env python3
"""What each level is worth on the real engine: every part is left out in turn, and the runs alternate.

    python3 bench/ablations.py [--only PART...] [--model MODEL] [--devices KIND...] [--repetitions N] [--no-docs] [--cotune PROGRAM]

  components  MuxTune's ablation (MX-37) on its workload WL-B, light and heavy load: the whole system; without fusion (--sharing temporal);
              without orchestration (--pipeline-order 1f1b, --interleave never); without alignment, both by the switch (--layout padded) and
              with every row as long as the longest of all jobs, as one who zero-pads across tasks has it. Lost: throughput, 1 - whole / without
  alignment   MX-40: 1, 2, … 8 jobs of WL-A and WL-B in one microbatch (--sharing batch-all), padded, chunked (64) and ragged: effective tokens/s
  batchlora   ML-19: LoRAPP with as many jobs as stages and more, by themselves (--sharing temporal), as the planner groups them (hybrid),
              and in as many groups as stages (--fusion stages)
  stages      ML-30: the same jobs on 1, 2, … stages

Emulated devices take predicted times and compute nothing (bench/emulated.py, whose inputs are taken; all rates and latencies divided by the
factor that stands behind a setting's names). With --model every part also runs on this machine's cores, with a model that is
there; ranks are threads (--devices says which of both: emulated, cores). Effective tokens leave out all padding. Lengths that the paper's copies lack are stand-ins: 64, 128, 256.

Writes a part of docs/ranks.md for every PART that was run. Python's standard library only.
"""
import argparse
import datetime
import statistics
import tempfile

import compare
import emulated
import page_part
import ranks
import workloads

BATCHES = (4, 2, 4, 4, 8, 2, 4, 4)  # MuxTune's Table 2
LENGTHS = {"WL-A": (64, 128, 128, 64, 64, 64, 128, 128), "WL-B": (256, 64, 256, 64, 64, 256, 256, 256)}
ORDERS_OFF = {"pp": ("--pipeline-order", "1f1b"), "tp": ("--interleave", "never")}
PAPER = {"light": "36.1, 30.3, 22.5 %", "heavy": "6.2, 25.1, 34.3 %"}


class Emulated:
    """Runs jobs of (tokens, rows a step) on devices that are not there."""

    def __init__(self, name, model, devices, device, scale):
        self.name, self.settings, self.scale = name, (model, 1, devices, device, "pcie4", None), scale

    def write(self, folder, jobs, steps):
        model, *rest = self.settings
        cluster, path = emulated.write_inputs(folder, model, [({tokens: rows * steps}, rows) for tokens, rows in jobs], *rest, self.scale, steps)
        return path, ("--device", "emulated:" + cluster)


class Cores:
    """Runs them on this machine's cores."""
    name, scale = "this machine's cores", 1

    def __init__(self, model):
        self.model = model

    def write(self, folder, jobs, steps):
        wanted = [{"name": f"job{i}", "longest": tokens, "batch_size": rows, "full": True, "labelled": 1.0, "adapter": workloads.LORA}
                  for i, (tokens, rows) in enumerate(jobs)]
        return ranks.write_jobs(folder, self.model, "bfloat16", steps, wanted), ("--device", "cpu")


class Measured:
    """One variant's runs: seconds of all rounds, and what the simulator says, as lists; the last run's summary."""

    def __init__(self):
        self.seconds, self.predicted, self.summary = [], [], None

    def add(self, summary, scale):
        """Of an emulated device the times are divided by its factor. One rank tells those of the rounds after the first, so there are two."""
        rounds = summary["rounds"]
        alone = "ranks" not in summary
        seconds = summary["seconds_training"] * rounds / (rounds - 1) if alone else summary["ranks"][0]["seconds"]
        self.seconds.append(seconds / scale)
        predicted = summary.get("ranks_predicted_seconds")
        self.predicted.append(predicted / scale if predicted and summary.get("emulated") else None)
        self.summary = summary

    def processed(self):
        return sum(job["tokens"]["processed"] for job in self.summary["jobs"])


def measure(options, machine, variants):
    """{name: Measured} of variants {name: (jobs, steps, arguments)}, run one after another in every repetition."""
    found = {name: Measured() for name in variants}
    for _ in range(options.repetitions):
        for name, (jobs, steps, arguments) in variants.items():
            with tempfile.TemporaryDirectory() as folder:
                options.busy.append(compare.busy_cores(0.2))
                path, device = machine.write(folder, jobs, steps)
                found[name].add(ranks.run(options, folder, path, *device, *arguments), machine.scale)
    return found


def chosen(options, emulated_ones, on_cores):
    """The settings of a part that were asked for; on_cores: (Cores) -> its own."""
    settings = emulated_ones if "emulated" in options.devices else []
    return settings + (on_cores(Cores(options.model)) if options.model and "cores" in options.devices else [])


def over(a, b, column="seconds"):
    """Median over repetitions of a's time by b's; None where the simulator says nothing."""
    pairs = list(zip(getattr(a, column), getattr(b, column)))
    return None if any(x is None or y is None or y == 0 for x, y in pairs) else statistics.median(x / y for x, y in pairs)


def tokens_of(jobs, steps):
    return steps * sum(tokens * rows for tokens, rows in jobs)


def speed(measured, tokens):
    return tokens / statistics.median(measured.seconds)


def workload(name, factor=1):
    return [(tokens, max(1, int(rows * factor))) for tokens, rows in zip(LENGTHS[name], BATCHES)]


def components(options):
    yield "| devices | load | whole, effective tokens/s | the paper: fusion, orchestration, alignment | without fusion | without orchestration | --layout padded | every row as long as the longest |"
    yield "|---|---|---|---|---|---|---|---|"
    # Degrees, token budget; load: devices, what Table 2's batches are multiplied by (0: one row a step), steps. Devices are slowed down more
    # where messages and sums are small.
    def a40s(count, scale):
        return Emulated(f"7B, {count} × A40", "llama-2-7b", count, "A40", scale)
    settings = chosen(options, [("pp=4", 1024, {"light": (a40s(4, 2), 1, 3), "heavy": (a40s(4, 2), 8, 1)}),
                                ("tp=2", 1024, {"light": (a40s(2, 4), 1, 1), "heavy": (a40s(2, 2), 8, 1)})],
                      lambda cores: [("pp=2", 512, {"light": (cores, 0, 3), "heavy": (cores, 1, 1)})])
    for parallel, budget, loads in settings:
        lost_at = {}
        for load, (machine, factor, steps) in loads.items():
            jobs = workload("WL-B", factor)
            longest = [(max(LENGTHS["WL-B"]), rows) for _, rows in jobs]
            base = ("--parallel", parallel, "--token-budget", str(budget))
            hybrid, aligned = ("--sharing", "hybrid"), ("--layout", "chunked")
            found = measure(options, machine, {
                "whole": (jobs, steps, (*base, *hybrid, *aligned)),
                "fusion": (jobs, steps, (*base, "--sharing", "temporal", *aligned)),
                "orchestration": (jobs, steps, (*base, *hybrid, *aligned, *ORDERS_OFF[parallel[:2]])),
                "padded": (jobs, steps, (*base, *hybrid, "--layout", "padded")),
                "longest": (longest, steps, (*base, *hybrid, "--layout", "padded"))})
            whole = found.pop("whole")
            lost = {name: 1 - over(whole, each) for name, each in found.items()}
            says = {name: over(whole, each, "predicted") for name, each in found.items()}
            lost_at[load] = lost
            cells = [f"{lost[name]:.1%}" + ("" if says[name] is None else f" (simulator {1 - says[name]:.1%})")
                     + ("" if lost[name] > 0 else " **missed**") for name in found]
            yield (f"| {machine.name}, {parallel} | {load} | "
                   f"{speed(whole, tokens_of(jobs, steps)):,.0f} | {PAPER[load]} | {' | '.join(cells)} |")
        light, heavy = lost_at["light"], lost_at["heavy"]
        holds = {"fusion loses less": heavy["fusion"] < light["fusion"], "orchestration less": heavy["orchestration"] < light["orchestration"],
                 "alignment more": heavy["longest"] > light["longest"], "alignment most": heavy["longest"] >= max(heavy.values())}
        yield f"| the same | heavy against light | | {'; '.join(what + (' yes' if so else ' no, **missed**') for what, so in holds.items())} | | | | |"


def alignment(options):
    yield "| devices | workload | jobs | padded, effective tokens/s | chunked | ragged | chunked over padded | ragged over padded | tokens, padded over chunked |"
    yield "|---|---|---|---|---|---|---|---|---|"
    settings = chosen(options, [(Emulated("7B, 2 × A40", "llama-2-7b", 2, "A40", 1), "tp=2", range(1, 9), 1)],
                      lambda cores: [(cores, "pp=1", (2, 4), 2)])
    for machine, parallel, counts, steps in settings:
        for name in LENGTHS:
            for count in counts:
                jobs = workload(name)[:count]
                found = measure(options, machine, {layout: (jobs, steps, ("--parallel", parallel, "--sharing", "batch-all", "--layout", layout))
                                                   for layout in ("padded", "chunked", "ragged")})
                padded = found["padded"]
                speeds = [f"{speed(each, tokens_of(jobs, steps)):,.0f}" for each in found.values()]
                gains = [over(padded, found[layout]) for layout in ("chunked", "ragged")]
                mixed = len({tokens for tokens, _ in jobs}) > 1
                cells = [f"{gain:.2f}×" + (" **missed**" if mixed and gain <= 1 else "") for gain in gains]
                yield (f"| {machine.name}, {parallel} | {name} | {count} | {' | '.join(speeds + cells)} | "
                       f"{padded.processed() / found['chunked'].processed():.2f} |")


def batchlora(options):
    yield ("| devices, rows | jobs | by themselves, s a job and step | grouped | groups | grouped over by themselves | over as many jobs as stages | "
           "as many groups as stages, over by themselves | over as many jobs as stages | the paper |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    paper = {5: "+0.6 %", 6: "−8.7 %", 12: "−12.2 %"}
    def a6000s(scale):
        return Emulated("TinyLlama-1.1B, 4 × A6000, bf16", "tinyllama-1.1b", 4, "A6000", scale)
    settings = chosen(options, [(a6000s(4), "pp=4", (512, 8), (4, 5, 6, 8, 12), 4, True), (a6000s(16), "pp=4", (64, 1), (4, 6, 8, 12), 12, False)],
                      lambda cores: [(cores, "pp=2", (64, 1), (2, 3, 4, 6, 8), 8, False)])
    for machine, parallel, (tokens, rows), counts, steps, as_paper in settings:
        first = None
        ways = {"temporal": ("--sharing", "temporal"), "hybrid": ("--sharing", "hybrid"), "stages": ("--sharing", "hybrid", "--fusion", "stages")}
        for count in counts:
            jobs = [(tokens, rows)] * count
            budget = max(256, tokens * rows * -(-count // counts[0]))
            found = measure(options, machine, {name: (jobs, steps, (
                "--parallel", parallel, "--token-budget", str(budget), *way, "--pipeline-order", "lorapp")) for name, way in ways.items()})
            alone, grouped, by_stages = (found[name] for name in ways)
            each = [statistics.median(one.seconds) / count / steps for one in (alone, grouped, by_stages)]
            first = first or each
            gain = over(grouped, alone) - 1
            missed = " **missed**" if count > counts[0] and gain >= 0 else ""
            yield (f"| {machine.name}, {parallel}, {rows} × {tokens} | {count} | {each[0]:.4f} | {each[1]:.4f} | "
                   f"{len(grouped.summary['plans'][0]['hybrid_tasks'])} | {gain:+.1%}{missed} | {each[1] / first[1] - 1:+.1%} | "
                   f"{over(by_stages, alone) - 1:+.1%} | {each[2] / first[2] - 1:+.1%} | {paper.get(count, '–') if as_paper else '–'} |")


def stages(options):
    yield "| devices | stages | tokens/s | over one | simulator, s | rounds, s |"
    yield "|---|---|---|---|---|---|"
    settings = chosen(options, [(Emulated("7B, A40", "llama-2-7b", 8, "A40", 2), [(384, 1)] * 8, 12, 512, (1, 2, 4, 8), lambda count: ())],
                      lambda cores: [(cores, [(128, 2)] * 4, 6, 256, (1, 2), lambda count: ("--threads", str(count)))])  # a core for every stage
    for machine, jobs, steps, budget, counts, more in settings:
        found = measure(options, machine, {count: (jobs, steps, (
            "--parallel", f"pp={count}", "--sharing", "temporal", "--token-budget", str(budget), *more(count),
            *(("--pipeline-order", "lorapp", "--rounds-at-once", str(steps)) if count > 1 else ()))) for count in counts})
        for count, each in found.items():
            ratio = over(found[1], each)
            predicted = "–" if each.predicted[-1] is None else f"{statistics.median(each.predicted):.2f}"
            goal = " (≥ 1.7, **missed**)" if count == 2 and ratio < 1.7 else ""
            yield (f"| {machine.name} | {count} | {speed(each, tokens_of(jobs, steps)):,.0f} | {ratio:.2f}×{goal} | {predicted} | "
                   f"{statistics.median(each.seconds):.2f} |")


DEVICES = ("emulated", "cores")
PARTS = {"components": components, "alignment": alignment, "batchlora": batchlora, "stages": stages}


def about(options):
    busy = statistics.median(options.busy)
    lines = [f"{compare.machine('cpu')}. {datetime.date.today().isoformat()}; {options.repetitions} repetition{'s' * (options.repetitions > 1)}; "
             f"cores busy with other work before a run: median {busy:.1f}, highest {max(options.busy):.1f}."]
    if busy > 0.5:
        lines.append("**The cores were busy with other work**: of emulated devices the simulator's figures say by how much that counts; "
                     "those of this machine's cores are worth little." if options.model and "cores" in options.devices else
                     "**The cores were busy with other work**: the simulator's figures say by how much that counts.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--model", help="a model that this machine's cores train beside: a GGUF file or a Hugging Face folder")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--cotune", default="build/cotune")
    page_part.add_options(parser, "docs/ranks.md")
    options = parser.parse_args()
    if "emulated" not in options.devices and not options.model:
        parser.error("--devices cores needs --model")
    for name in options.only:
        options.busy = []
        lines = []
        for line in PARTS[name](options):
            print(line, flush=True)
            lines.append(line)
        text = about(options) + "\n\n" + "\n".join(lines)
        print("\n" + about(options) + "\n", flush=True)
        if not options.no_docs:
            page_part.change(options.docs, f"ablations {name}", lambda _: text + "\n")


if __name__ == "__main__":
    main()
