#!/usr/bin/env python3
"""What it costs a run to be watched: one seen by nobody against one with everything on.

    python3 bench/watching.py --model MODEL [--turns N] [--steps N] [--cotune build/cotune] [--no-docs]

All train the workload `four-jobs` of bench/workloads.py. `unseen` is `cotune train --json` into nothing. Each row of the table adds to the one
before it: the live view on a terminal, --tensorboard and --trace; `cotune watch` on a second terminal; from a third program, `cotune status`
every two seconds. They run in turns, in another order each time; a ratio is that of two runs of one turn, of real tokens a second without the
first round. Beside it stand what the thread that trains spent on telling of it (`seconds_telling` of the summary), and the CPU time of all that does
not compute: the training process's threads but the busiest (one a core), and the other programs, from their start. Writes its part of docs/benchmarks.md. Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import compare
import page_part
import workloads


class Program:
    """A program, on a terminal of its own or with nothing to read and nobody to read it, and the CPU time that it took."""

    def __init__(self, command, on_terminal=False):
        self.threads_s, self.drawn_bytes, self.master = {}, 0, None
        if on_terminal:
            self.pid, self.master = pty.fork()
            if self.pid == 0:
                os.environ.update(TERM="xterm-256color", LC_ALL="C.UTF-8", COLUMNS="120", LINES="40")
                os.execvp(command[0], command)
            threading.Thread(target=self.read).start()
        else:
            # Kept, for one that is forgotten is waited for by subprocess itself.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.pid = self.process.pid

    def read(self):
        try:
            while data := os.read(self.master, 1 << 16):
                self.drawn_bytes += len(data)
        except OSError:  # how Linux ends a terminal
            pass

    def sample(self):
        """Notes the CPU time of each thread until now."""
        for thread in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat"):
            try:
                ticks = thread.read_text().rpartition(")")[2].split()[11:13]
            except OSError:  # it has ended
                continue
            self.threads_s[thread.parent.name] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def end(self):
        """Waits for it; the CPU seconds that it took."""
        _, status, usage = os.wait4(self.pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise compare.BenchmarkError(f"a program ended with {os.waitstatus_to_exitcode(status)}")
        return usage.ru_utime + usage.ru_stime

    def has_ended(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def train(options, jobs, run, seen):
    """Real tokens a second; for each second, the CPU seconds that did anything but compute, and the seconds for which training itself told of
    what it does."""
    arguments = ["--tensorboard", "--trace", run + ".trace.json"] if seen else ["--json"]
    training = Program([options.cotune, "train", jobs, "--output-dir", run, *arguments], on_terminal=bool(seen))
    watching, beside_s, next_question = None, 0.0, time.monotonic()
    begin = time.monotonic()
    while not training.has_ended():
        training.sample()
        begun = os.path.exists(os.path.join(run, "run.json"))
        if begun and "watch" in seen and watching is None:
            watching = Program([options.cotune, "watch", "--run", run], on_terminal=True)
        if begun and "status" in seen and time.monotonic() >= next_question:
            next_question = time.monotonic() + 2
            beside_s += Program([options.cotune, "status", "--run", run]).end()
        time.sleep(0.2)
    seconds = time.monotonic() - begin
    training.end()
    if watching is not None:
        os.write(watching.master, b"q")
        beside_s += watching.end()
    for program in filter(None, (training if seen else None, watching)):
        if program.drawn_bytes < 1_000:
            raise compare.BenchmarkError(f"a live view has drawn {program.drawn_bytes} bytes")
    computing = os.cpu_count() or 1  # threads, the busiest
    beside_s += sum(sorted(training.threads_s.values(), reverse=True)[computing:])
    summary = json.loads(pathlib.Path(run, "summary.json").read_text(encoding="utf-8"))
    return compare.rate(summary), beside_s / seconds, summary["seconds_telling"] / summary["seconds"]


ROWS = {
    "unseen": (),
    "live view, TensorBoard, trace": ("view",),
    "and `cotune watch`": ("view", "watch"),
    "and `cotune status` every two seconds": ("view", "watch", "status"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cotune", default="build/cotune")
    page_part.add_options(parser, "docs/benchmarks.md")
    options = parser.parse_args()
    rates, beside, telling = ({row: [] for row in ROWS} for _ in range(3))
    busy = []
    with tempfile.TemporaryDirectory() as folder:
        workload = workloads.write_workload(folder, "four-jobs", os.path.abspath(options.model), options.steps, "bfloat16", prepared=False)
        for turn in range(options.turns):
            order = list(ROWS)[turn % len(ROWS):] + list(ROWS)[:turn % len(ROWS)]
            for index, row in enumerate(order):
                busy.append(compare.busy_cores())
                rate, share, told = train(options, os.path.join(workload, "jobs.yaml"), os.path.join(folder, f"{turn}-{index}"), ROWS[row])
                rates[row].append(rate)
                beside[row].append(share)
                telling[row].append(told)
                print(f"{row}: {rate:.0f} tokens/s, {told:.3%} of its time telling, {share:.2%} of a core beside", file=sys.stderr, flush=True)
    lines = [f"{compare.machine('cpu')}. Cores busy with other work before a run: at most {max(busy):.1f}. {options.turns} turns.", "",
             "| four jobs, rows to 32/64/128/256, batch 8, bfloat16 | what training told took of its time | CPU time beside training, of one core | tokens/s, median | of each turn: over unseen |",
             "|---|---|---|---|---|"]
    for row in ROWS:
        ratios = [seen / unseen for seen, unseen in zip(rates[row], rates["unseen"])]
        over = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if row != "unseen" else ""
        lines.append(f"| {row} | {statistics.median(telling[row]):.3%} (at most {max(telling[row]):.3%}) | {statistics.median(beside[row]):.2%} | {statistics.median(rates[row]):.0f} | {over} |")
    page_part.put(options, "watching", "\n".join(lines))


if __name__ == "__main__":
    main()
