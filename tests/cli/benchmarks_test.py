#!/usr/bin/env python3
"""The benchmarks of bench/, each from its first line to its table, with a tiny model and the least of everything.

    COTUNE=build/cotune python3 tests/cli/benchmarks_test.py [UNITTEST OPTIONS]

Their figures are none here; what counts is that whoever runs them again gets a table. Of docs/ nothing is written.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import needs
from program import LIMIT_S, PROGRAM, ProgramTest
from tiny_models import write_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
BUILD = pathlib.Path(PROGRAM).resolve().parent
NO_BENCHMARKS = {"page_part.py": "a module", "torchless_build.py": "a module", "random_values.py": "a module, of gpu.py and peft_baseline.py",
                 "workloads.py": "called by the others", "peft_baseline.py": "called by compare.py and gpu.py"}


class Benchmarks(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pages = {page: page.read_bytes() for page in ROOT.glob("docs/**/*.*")}

    def setUp(self):
        super().setUp()
        self.model = self.path / "model"
        # Heads that our kernels take; SmolLM2's tokens, which workloads draw from.
        write_model(self.model, layers=2, head=16, inner=64, vocabulary=49152, positions=8192)

    def bench(self, script, *arguments, without_docs=True):
        """Its output, which it ended well after."""
        command = [sys.executable, BENCH / script, *arguments, *(["--no-docs"] if without_docs else [])]
        done = subprocess.run(list(map(str, command)), cwd=self.path, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}\n{done.stderr}")
        self.assertEqual({page: page.read_bytes() for page in self.pages}, self.pages)
        return done.stdout

    def table(self, output, columns):
        """The rows of so many columns, cells stripped, without the head."""
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in output.splitlines() if line.startswith("|")]
        rows = [row for row in rows if len(row) == columns and not set("".join(row)) <= set("-")]
        self.assertGreater(len(rows), 1, output)
        return rows[1:]

    def built(self, name):
        self.assertTrue((BUILD / name).exists(), "scripts/build --tests makes it")
        return BUILD

    def test_compare(self):
        needs.require(self, "transformers")
        output = self.bench("compare.py", "--only", "four-jobs", "methods", "--repetitions", "1", "--steps", "2", "--model", self.model, "--hf",
                            self.model, "--cotune", PROGRAM, "--work", self.path / "work")
        row = self.table(output, 10)[0]
        self.assertEqual((row[0], row[-1]), ("four jobs, rows to 32/64/128/256, batch 8", "1"))
        self.assertNotIn("wrong", row[8])
        self.assertIn("one job of each method together", output)
        programs = [json.loads(line)["program"] for line in (self.path / "work/results.jsonl").read_text().splitlines()]
        self.assertEqual(sorted(set(programs)), ["cotune", "cotune in f32", "peft by-length", "peft flattened", "peft shipped", "torch.mm"])
        again = self.bench("compare.py", "--table-only", "--work", self.path / "work")
        self.assertEqual(self.table(again, 10)[0], row)

    def test_gpu_on_the_cpu(self):
        needs.require(self, "transformers")
        output = self.bench("gpu.py", "--device", "cpu", "--tiny", "--only", "8b", "memory-32", "--steps", "2", "--cotune", PROGRAM, "--work",
                            self.path / "work", "--results", self.path / "results.jsonl")
        self.assertIn("Not the benchmark", output)
        self.assertRegex(output, r"(?m)^\| cotune \| \d+ ")
        self.assertRegex(output, r"(?m)^\| peft shipped \| \d+ ")

    def test_watching(self):
        rows = self.table(self.bench("watching.py", "--model", self.model, "--turns", "1", "--steps", "20", "--cotune", PROGRAM), 5)
        self.assertEqual([row[0].split()[0] for row in rows], ["unseen", "live", "and", "and"])

    def test_ranks(self):
        rows = self.table(self.bench("ranks.py", "--model", self.model, "--steps", "2", "--repetitions", "1", "--token-budget", "256", "--order",
                                     "lorapp", "--parallel", "dp=2", "--cotune", PROGRAM, without_docs=False), 7)
        self.assertEqual([row[1] for row in rows], ["one rank", "lorapp", "dp=2"])
        for row in rows[1:]:
            self.assertLess(float(row[-1]), 0.05)

    def test_joining(self):
        rows = self.table(self.bench("joining.py", "--model", self.model, "--parallel", "pp=2", "--repetitions", "1", "--steps", "2", "--cotune", PROGRAM), 6)
        self.assertEqual([row[:2] for row in rows], [[ranks, what] for ranks in ("one rank", "pp=2") for what in ("joins", "leaves")])

    def test_steady_idle(self):
        rows = self.table(self.bench("steady_idle.py", "--model", self.model, "--order", "lorapp", "--steps", "10", "--repetitions", "1", "--cotune",
                                     PROGRAM), 6)
        self.assertEqual([row[:2] for row in rows], [["2", "lorapp"]])
        self.assertRegex(rows[0][5], r"^-?[\d.]+%$")

    def test_rank_predictions(self):
        rows = self.table(self.bench("rank_predictions.py", "--model", self.model, "--parallel", "pp=2", "--mixes", "1", "--rounds", "6",
                                     "--profile-seconds", "3", "--cotune", PROGRAM), 2)
        self.assertRegex(rows[0][1], r"^[\d.]+%; [\d.]+%; (none|[\d.]+% \(\d of \d\))$")
        self.assertEqual(rows[1][0], "mean, goal 10%")

    def test_resident_jobs(self):
        rows = self.table(self.bench("resident_jobs.py", "--model", self.model, "--jobs", "2", "--cotune", PROGRAM, without_docs=False), 5)
        self.assertEqual([row[0] for row in rows], ["1", "2"])
        self.assertLess(abs(float(rows[1][-1].rstrip("%"))), 10)

    def test_emulated(self):
        output = self.bench("emulated.py", "--only", "135m-pp4", "--order", "lorapp", "--steps", "2", "--repetitions", "1", "--cotune", PROGRAM,
                            without_docs=False)
        self.assertRegex(output, r"(?m)^\| 135m-pp4 \| lorapp \|")

    def test_interleaving(self):
        rows = self.table(self.bench("interleaving.py", "--only", "0.5b-tp2", "--steps", "1", "--cotune", PROGRAM, without_docs=False), 8)
        self.assertEqual(rows[0][0], "0.5b-tp2")

    def test_ablations_on_this_machines_cores(self):
        for part, columns, count in (("components", 8, 3), ("alignment", 9, 4), ("batchlora", 10, 5), ("stages", 6, 2)):
            with self.subTest(part):
                output = self.bench("ablations.py", "--only", part, "--model", self.model, "--devices", "cores", "--repetitions", "1", "--cotune",
                                    PROGRAM)
                self.assertEqual(len(self.table(output, columns)), count)

    def test_predictions(self):
        output = self.bench("predictions.py", "--model", self.model, "--passes", "1", "--rounds", "2", "--profile-seconds", "3", "--folder",
                            self.path / "predictions", "--cotune", PROGRAM)
        self.assertEqual(len(self.table(output, 8)), 12)
        if not needs.is_here("kernels"):
            return self.assertIn("not predicted", output)
        counted = re.findall(r"counted bytes within 0.25%, worst \w+(?: of a mix)? \| ([\d.]+)%", output)
        self.assertEqual(len(counted), 2)
        self.assertLess(max(map(float, counted)), 5)  # of tensors so small, what allocators add counts

    def test_long_row(self):
        self.assertIn("MiB", self.bench("long_row.py", "--model", self.model, "--tokens", "300", "--cotune", PROGRAM, without_docs=False))

    def test_planning(self):
        for part in ("order", "literal"):
            with self.subTest(part):
                output = self.bench("planning.py", "--build", self.built("planning_bench"), part)
                self.assertGreater(len(output.splitlines()), 2)

    def test_planning_writes_rows_of_the_same_names_alone(self):
        page = self.path / "planning.md"
        shutil.copy(ROOT / "docs/planning.md", page)
        before = page.read_text().splitlines()
        output = self.bench("planning.py", "--build", self.built("planning_bench"), "--docs", page, "order", without_docs=False)
        after = page.read_text().splitlines()
        own = [line for line in output.splitlines() if line.startswith("|")][2:]
        self.assertGreater(len(own), 0)
        for line in own:
            self.assertIn(line, after)
        names = {line.split(" | ")[0] for line in own}
        self.assertEqual([line for line in after if line.split(" | ")[0] not in names],
                         [line for line in before if line.split(" | ")[0] not in names])

    def test_simulation(self):
        for part in ("stragglers", "overloaded", "tenants"):
            with self.subTest(part):
                output = self.bench("simulation.py", "--build", self.built("simulation_bench"), part)
                self.assertGreater(len(output.splitlines()), 2)

    def test_simulation_refuses_a_part_that_there_is_none_of(self):
        done = subprocess.run([sys.executable, BENCH / "simulation.py", "weak"], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 2)
        self.assertIn("weak", done.stderr)

    def test_that_is_all_of_them(self):
        tried = pathlib.Path(__file__).read_text()
        for script in BENCH.glob("*.py"):
            self.assertTrue(script.name in NO_BENCHMARKS or f'"{script.name}"' in tried, script.name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
