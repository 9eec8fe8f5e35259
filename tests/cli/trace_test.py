#!/usr/bin/env python3
"""cotune train --trace: what a run on one rank did, as trace events.

    COTUNE=build/cotune python3 tests/cli/trace_test.py [UNITTEST OPTIONS]
"""
import json
import os
import unittest

from program import METHODS, ProgramTest
from trace_rules import checked_events


class Trace(ProgramTest):
    def test_has_rounds_microbatches_steps_evaluations_and_checkpoints(self):
        trace = self.path / "trace.json"
        jobs = self.jobs_file(steps=4, save_steps=2, train=", eval_steps: 2")
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--trace", trace)
        self.run_program("train", jobs, "--output-dir", self.path / "without")
        self.assertEqual(self.adapters("run"), self.adapters("without"))
        events = [event for event in checked_events(trace.read_text()) if event["ph"] == "X"]
        of = {}
        for event in events:
            self.assertGreaterEqual(event["ts"], 0)
            self.assertGreaterEqual(event["dur"], 0)
            of.setdefault(event["cat"], []).append(event)
        steps = [event["args"]["jobs"] for event in of["optimizer_step"]]
        # Two rounds choose the entries of diff pruning; the action at their end makes no step.
        self.assertEqual({job: steps.count(job) for job in METHODS}, {"plain": 4, "bottleneck": 4, "sparse": 6})
        self.assertEqual(sum(event["args"]["jobs"] == "plain" for event in of["checkpoint"]), 2)
        self.assertEqual(len(of["backward"]), len({(event["ts"], event["name"]) for event in of["backward"]}))
        self.assertGreaterEqual(len(of["evaluation"]), 3)
        rounds = sorted(of["round"] + of["evaluation"], key=lambda event: event["ts"])
        for before, after in zip(rounds, rounds[1:]):  # one after the other
            self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + 1e-3)
        for event in of["forward"] + of["backward"] + of["optimizer_step"]:
            self.assertTrue(any(each["ts"] - 1e-3 <= event["ts"] and event["ts"] + event["dur"] <= each["ts"] + each["dur"] + 1e-3
                                for each in rounds), event)
        trained = sum(event["real_tokens"] for event in self.metrics("run") if event["event"] == "step")
        self.assertLessEqual(trained, sum(event["args"]["tokens"] for event in of["backward"]))

    def test_of_ranks_keeps_the_rules_of_the_format(self):
        trace = self.path / "trace.json"
        for name, options in (("stages", ["--ranks=2", "--recompute=always"]), ("replicas", ["--parallel=dp=1+pp=2"])):
            with self.subTest(name):
                self.run_program("train", self.jobs_file(steps=4), "--output-dir", self.path / name, "--token-budget=256", *options,
                                 "--rank-trace", trace)
                self.assertEqual({event["ph"] for event in checked_events(trace.read_text())}, {"C", "M", "X", "s", "f"})

    def test_is_refused_where_it_cannot_be_written_or_there_are_several_ranks(self):
        jobs = self.jobs_file(steps=1)
        said = self.run_program("train", jobs, "--output-dir", self.path / "run", "--trace", self.path / "missing/trace.json", "--ranks=2",
                                expect=2).stderr
        self.assertIn("--trace: is of one rank, and run.ranks is 2", said)
        self.assertIn("missing is no folder", said)
        (self.path / "folder").mkdir()
        os.mkfifo(self.path / "pipe")
        for option, ranks in (("--trace", 1), ("--rank-trace", 2)):
            for name, trouble in (("folder", "is a folder; accepted is a file"), ("pipe", "is no regular file")):
                said = self.run_program("train", jobs, "--output-dir", self.path / "run", option, self.path / name, f"--ranks={ranks}",
                                        expect=2).stderr
                self.assertIn(f"{option}: {self.path / name} {trouble}", said)
        self.assertFalse((self.path / "run").exists())

    def test_that_cannot_be_written_in_the_end_is_told_and_the_run_is_complete(self):
        for option, ranks in (("--trace", 1), ("--rank-trace", 2)):
            with self.subTest(option):
                folder, run = self.path / "traces", self.path / f"run{ranks}"
                folder.mkdir()
                process = self.start_program("train", self.jobs_file(), "--output-dir", run, "--json", option, folder / "trace.json",
                                             f"--ranks={ranks}")
                self.wait_for(process, lambda event: event["event"] == "step")
                folder.rmdir()
                _, errors = self.end(process, expect=0)
                self.assertIn("the run is complete without the trace", errors)
                self.assertFalse(json.loads((run / "summary.json").read_text())["interrupted"])


if __name__ == "__main__":
    unittest.main()
