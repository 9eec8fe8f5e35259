#!/usr/bin/env python3
"""docs/reading-the-summary.md explains whatever the summary at a run's end prints, and nothing else: held to real summaries, and to the
texts in the sources, for there are lines that need a crash, minutes or luck.

    COTUNE=build/cotune python3 tests/cli/summary_page_test.py [UNITTEST OPTIONS]

What the page shows stands there in `code`, in bold or in blocks of ```text, with … where something varies.
"""
import json
import re
import signal
import time
import unittest

from program import METHODS, ROOT
from rank_launch import LaunchTest

PAGE = ROOT / "docs/reading-the-summary.md"
# The sources of what is printed, and the functions in them that do; "" for all.
SOURCES = {"src/cli/reporting/run_report.cc": [""], "src/cli/reporting/sweep_table.cc": ["std::string end_text(", "std::vector<std::string> best_lines(",
                                         "std::vector<std::string> sweep_table("],
           "src/cli/reporting/progress.cc": ["std::string ended_text("], "src/ops/memory.cc": ["std::string to_string(MemoryKind"],
           "src/train/job_state.cc": ["status_names"]}
NOT_PRINTED = {"running", "stopped_early"}  # states of jobs of which a summary says something else
VALUE = re.compile(r"([+-]?[\d.,:/xe-]+ ?(%|s|m\d*s?|h\d*m?|B|KiB|MiB|GiB)?|\S+ -> \S+|of [\d.]+ [KMG]iB)")
VARIES = re.compile(r"…|\{[^{}]*\}")
STARTS = re.compile(r"Emulated, |(Done|Stopped|Stopped and saved) in ")


def literals(text):
    """Of C++ code, those that are printed: with a word in them."""
    for line in text.splitlines():
        if not line.startswith("#include"):
            for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                literal = " ".join(literal.replace("\\n", " ").split()).lstrip(",; ")
                if re.search("[a-z]{3}", literal):
                    yield literal


def printed_texts():
    for file, functions in SOURCES.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        for function in functions:
            assert function in source, (file, function)
            begin = source.index(function)
            end = len(source) if function == "" else source.index("\n}\n" if "(" in function else "};\n", begin)
            yield from literals(source[begin:end])


class Shown:
    """A text of the page, which has a pattern of what the program prints in its place."""

    def __init__(self, text):
        self.text = " ".join(text.split())
        words = [r"\S+" if re.search(r"\d", word) else VARIES.sub(".+?", re.sub(r"([\\.^$*+?()\[\]|])", r"\\\1", word))
                 for word in self.text.split()]
        self.pattern = re.compile(r"\s+".join(re.sub(r"(?<=[a-z]{4})s(?=,?$)", "s?", word) for word in words))  # a noun, of one or several


def page_texts():
    """All that the page shows, and what it explains: the first cells of its tables, what is bold, and lines with `…`."""
    text = PAGE.read_text(encoding="utf-8")
    shown, explained = [], []
    for block in re.findall(r"^```text\n(.*?)^```", text, re.M | re.S):
        shown += block.splitlines()
    text = re.sub(r"^```.*?^```\n", "", text, flags=re.M | re.S)
    for line in text.splitlines():
        code = [re.sub(r"\*\*", "", span) for span in re.findall(r"`([^`]+)`", line)]
        bold = re.findall(r"\*\*([^*]+)\*\*", line)
        shown += code + bold
        first = re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("|") else []
        explained += first + bold + [span for span in code if "…" in span]
    return [Shown(each) for each in shown if re.search(r"(?<!\S)[A-Za-z-]{2}", each)], sorted(set(explained))


class SummaryPage(LaunchTest):
    def setUp(self):
        super().setUp()
        self.shown, self.explained = page_texts()

    def summary_of(self, output):
        lines = output.splitlines()
        start = next(i for i, line in enumerate(lines) if STARTS.match(line))
        return [line for line in lines[start:] if line.strip()]

    def is_explained(self, text):
        return any(each.pattern.fullmatch(text.strip()) for each in self.shown)

    def unexplained(self, lines, names=()):
        """Lines with something in them that the page does not show. names: of jobs, candidates and what they vary."""
        found, in_operators = [], False
        for line in lines:
            in_operators = line.startswith("time by operator") or (in_operators and not line.startswith(("memory ", "tokens ")))
            cells = [cell for cell in re.split(r"\s{2,}", line.strip())]
            own = [cell for cell in cells if not (VALUE.fullmatch(cell) or cell in names or self.is_explained(cell)
                                                  or (in_operators and re.fullmatch("[a-z0-9_]+", cells[0]) and cell == cells[0]))]
            if own and not self.is_explained(line):
                found.append(line)
        return found

    def check(self, output, names=()):
        lines = self.summary_of(output)
        self.assertGreater(len(lines), 4)
        self.assertEqual(self.unexplained(lines, {*METHODS, *names}), [], f"{PAGE.name} does not explain these lines")
        return lines

    def train(self, run, jobs, *options, **more):
        return self.run_program("train", jobs, "--output-dir", self.path / run, *options, **more).stdout

    def test_explains_every_line_of_real_summaries_and_only_what_is_printed(self):
        lines = []
        for summaries in (self.of_one_rank, self.of_ranks, self.of_processes, self.of_a_sweep, self.of_an_emulated_run, self.of_a_stopped_run):
            with self.subTest(summaries.__name__):
                for output, *names in summaries():
                    lines += self.check(output, *names)
        printed = [" ".join(line.split()) for line in lines]
        texts = list(printed_texts())
        for entry in self.explained:
            with self.subTest(entry=entry):
                pattern = rf"(?<!\w){Shown(entry).pattern.pattern}(?!\w)"
                self.assertTrue(any(re.search(pattern, line) for line in (*printed, *texts)), "nothing prints this")

    def of_one_rank(self):
        profile = self.path / "profile.json"
        self.run_program("profile", self.path / "config.json", "--output", profile, "--dtype", "float32", "--seconds", "0")
        jobs = self.jobs_file(steps=4)
        yield self.train("run", jobs, "--profile", profile, "--memory=4GiB"),
        yield self.train("run", jobs, "--resume"),
        best = self.jobs_file(steps=6, train=", eval_steps: 2, load_best_model_at_end: true", name="best.yaml", jobs=["plain"])
        yield self.train("high", best, "--set", "defaults.train.lr=0.3"),
        yield self.train("short", self.jobs_file(steps=1, jobs=["plain"])),

    def of_ranks(self):
        for name, options in (("stages", ["--ranks=2"]), ("layers", ["--parallel=tp=2"]), ("replicas", ["--parallel=dp=1+pp=2"])):
            yield self.train(name, self.jobs_file(steps=8), "--token-budget=256", *options),

    def of_processes(self):
        for name, parallel in (("whole", "dp=2"), ("sharded", "dp=2,shard")):
            ranks = self.launch("train", self.jobs_file(steps=4), "--output-dir", self.path / name, "--token-budget=256",
                                f"--parallel={parallel}")
            written = self.end_all(ranks)[0][0]
            host = json.loads((self.path / name / "summary.json").read_text())["ranks"][0]["host"]
            yield written, {f"{rank} {host}" for rank in range(2)}

    def of_a_sweep(self):
        for name, rules in (("halved", ", halving: {first_steps: 2}"), ("right", ", metric: eval_accuracy")):
            jobs = self.path / "sweep.yaml"
            jobs.write_text("cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\njobs:\n  - name: sql\n"
                            "    data: {train: plain.jsonl, eval_fraction: 0.3}\n    train: {steps: 4, batch_size: 4}\n"
                            f"    sweep: {{grid: {{adapter.r: [2, 4], train.lr: [1e-5, 3e-3]}}{rules}}}\n")
            output = self.train(name, jobs)
            sweep = json.loads((self.path / name / "sweeps/sql/sweep.json").read_text())
            full = {each["job"] for each in sweep["candidates"]}
            options = {option.rpartition(".")[2] for option in sweep["options"]}
            yield output, {*full, *(each.removeprefix("sql-") for each in full), *options, "sweep sql"}

    def of_an_emulated_run(self):
        cluster = self.path / "cluster.yaml"
        cluster.write_text("cotune_cluster: 1\nnodes:\n  - name: box\n    devices: 8\n    device: {preset: A100-40, bfloat16: 200000TFLOP/s, "
                           "float32: 200000TFLOP/s, memory_bandwidth: 900TB/s, launch: 0us}\n    link: nvlink-600\n")
        jobs = self.path / "shapes.yaml"
        jobs.write_text("cotune: 1\nmodel: {config: llama-2-7b, weights: none}\ndefaults: {adapter: {r: 8, target_modules: [q_proj]}, "
                        "train: {batch_size: 4, steps: 4}}\nrun: {sharing: temporal, token_budget: 1536}\njobs:\n"
                        "  - {name: short, data: {lengths: {384: 4}}}\n  - {name: long, data: {lengths: {384: 4}}}\n")
        yield self.train("emulated", jobs, "--device", f"emulated:{cluster}", "--parallel=pp=4,tp=1", "--pipeline-order=split"), {"short", "long"}

    def of_a_stopped_run(self):
        run = self.path / "stopped"
        train = ", eval_steps: 1, load_best_model_at_end: true"
        process = self.start_quietly(self.jobs_file(steps=1_000_000, save_steps=0, train=train, jobs=["plain", "bottleneck"]), "--output-dir", run)
        while (run / "metrics.jsonl").read_text().count('"event":"evaluation"') < 5:
            self.assertIsNone(process.poll())
            time.sleep(0.01)  # leaves it the processor
        self.run_program("job", "pause", "bottleneck", "--run", run)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(), 130)
        yield (self.path / "log").read_text(),

    def matches(self, text, shown):
        """Whether what a source prints is what the page shows, or a part of it."""
        pattern = r"\s+".join(".+?".join(map(re.escape, VARIES.split(word))) for word in text.split())
        return re.search(rf"(?<!\w){pattern}s?(?!\w)", shown) is not None

    def test_shows_every_text_of_the_sources_that_print_it(self):
        count = 0
        for text in printed_texts():
            if text not in NOT_PRINTED:
                with self.subTest(text=text):
                    self.assertTrue(any(self.matches(text, each.text) for each in self.shown), f"{PAGE.name} does not show this text")
                count += 1
        self.assertGreater(count, 60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
