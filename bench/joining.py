#!/usr/bin/env python3
"""How long the jobs of a run stand still when another one joins or leaves.

    python3 bench/joining.py --model MODEL [--parallel DEGREES...] [--repetitions N] [--steps N] [--cotune build/cotune] [--no-docs]

Three jobs of the workload `four-jobs` of bench/workloads.py (rows to 32, 64 and 128) train, on one rank and on every division of several. After
--steps of their steps `cotune job add` brings the fourth (rows to 256), after as many of its own steps `cotune job cancel` takes it away, and
the run is drained as many later. No job has held-out rows, for evaluations are no part of joining. By the run's --trace: `pause` is the gap
between the last round without the change and the first with it, less the median gap of two other rounds that follow each other; a pause is
shorter than a step where it is less than the median round before it. `wait`: from the command to its answer; on several ranks the rounds that
are planned end first. Writes its part of docs/benchmarks.md. Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import compare
import page_part
import workloads

ROWS = 40    # steps' worth of rows, which begin again at their end
STEPS = 400  # more than a run makes until it is drained


class Run:
    """A run that goes on, and what can be asked of it."""

    def __init__(self, options, folder, jobs_file, parallel):
        self.program, self.folder, self.trace = options.cotune, folder, folder.with_suffix(".trace.json")
        self.log = open(folder.with_suffix(".log"), "w", encoding="utf-8")
        divided = ["--parallel", parallel] if parallel else []
        self.process = subprocess.Popen([options.cotune, "train", jobs_file, "--output-dir", folder, "--trace", self.trace, "--json", *divided],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)

    def job(self, *arguments):
        """The reply, and the seconds until it came."""
        begin = time.monotonic()
        done = subprocess.run([self.program, "job", arguments[0], "--run", self.folder, *arguments[1:], "--json"], capture_output=True, text=True,
                              check=False)
        return (json.loads(done.stdout) if done.returncode == 0 else None), time.monotonic() - begin

    def must(self, *arguments):
        reply, seconds = self.job(*arguments)
        if reply is None:
            raise compare.BenchmarkError(f"cotune job {' '.join(map(str, arguments))} was refused")
        return reply, seconds

    def wait_for_step(self, name, step):
        while True:
            if self.process.poll() is not None:
                raise compare.BenchmarkError(f"the run has ended: {pathlib.Path(self.log.name).read_text(encoding='utf-8')[-2000:]}")
            reply, _ = self.job("list")  # refused until it listens
            for job in reply["jobs"] if reply else []:
                if job["name"] == name and job["step"] >= step:
                    return job["step"]
            time.sleep(0.1)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def rounds(self):
        """Ends it; (begin, end, jobs, how many) of stretches of rounds, in seconds."""
        self.must("drain")
        self.process.wait()
        slices = [event for event in json.loads(self.trace.read_text(encoding="utf-8"))["traceEvents"] if event.get("cat") == "round"]
        found = []
        for event in slices:
            first, last = re.fullmatch(r"rounds? (\d+)(?:–(\d+))?", event["name"]).groups()
            found.append((event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6, set(event["args"]["jobs"].split(", ")),
                          int(last or first) - int(first) + 1))
        return sorted(found, key=lambda each: each[0])


def pauses(rounds, name):
    """{joins | leaves: (pause, a step before it)} of that job, seconds."""
    gaps = [later[0] - earlier[1] for earlier, later in zip(rounds, rounds[1:])]
    changes = [index for index in range(1, len(rounds)) if (name in rounds[index][2]) != (name in rounds[index - 1][2])]
    if len(changes) != 2:
        raise compare.BenchmarkError(f"{name} came and went {len(changes)} times")
    usual = statistics.median(gap for index, gap in enumerate(gaps, 1) if index not in changes)
    found, begin = {}, 0
    for what, change in zip(("joins", "leaves"), changes):
        step = statistics.median((end - start) / count for start, end, _, count in rounds[begin:change])
        found[what] = (max(0.0, gaps[change - 1] - usual), step)
        begin = change
    return found


def measure(options, folder, jobs, parallel):
    """{joins | leaves: (pause, a step before it, wait)}."""
    run = Run(options, folder, folder.parent / "staying.yaml", parallel)
    first, last = jobs[0]["name"], jobs[-1]["name"]
    try:
        run.wait_for_step(first, options.steps)
        waits = {"joins": run.must("add", folder.parent / "joining.yaml")[1]}
        run.wait_for_step(last, options.steps)
        waits["leaves"] = run.must("cancel", last)[1]
        run.wait_for_step(first, run.wait_for_step(first, 0) + options.steps)
        return {what: (*values, waits[what]) for what, values in pauses(run.rounds(), last).items()}
    finally:
        run.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--parallel", nargs="*", default=["pp=2", "dp=2"], help="divisions of several ranks; one rank is always measured")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--cotune", default="build/cotune")
    page_part.add_options(parser, "docs/benchmarks.md")
    options = parser.parse_args()
    jobs = workloads.WORKLOADS["four-jobs"]
    found, busy = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, part in (("staying", jobs[:-1]), ("joining", jobs[-1:])):
            for job in part:
                rows = workloads.rows_of(job, ROWS)
                (folder / f"{job['name']}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            text = workloads.jobs_yaml(str(folder), os.path.abspath(options.model), "bfloat16", part, STEPS, prepared=False)
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        for repetition in range(options.repetitions):
            for parallel in ["", *options.parallel]:
                busy.append(compare.busy_cores())
                for what, values in measure(options, folder / f"{repetition}-{parallel}", jobs, parallel).items():
                    found.setdefault((parallel or "one rank", what), []).append(values)
    lines = [f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. {options.repetitions} repetitions.", "",
             "| ranks | the fourth job | pause of the others, median (most), ms | a step before, ms | shorter than a step | from the command to its answer, s |",
             "|---|---|---|---|---|---|"]
    for (parallel, what), values in found.items():
        stood, steps, waits = zip(*values)
        good = sum(pause < step for pause, step, _ in values)
        verdict = "always" if good == len(values) else f"{good} of {len(values)} (**missed**)"
        lines.append(f"| {parallel} | {what} | {statistics.median(stood) * 1e3:.0f} ({max(stood) * 1e3:.0f}) | {statistics.median(steps) * 1e3:.0f} | {verdict} | "
                     f"{statistics.median(waits):.1f} ({max(waits):.1f}) |")
    page_part.put(options, "joining", "\n".join(lines))


if __name__ == "__main__":
    main()
