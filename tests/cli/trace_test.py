#!/usr/bin/env python3
"""cotune train --trace: what a run did, on one rank and on several, as trace events.

    COTUNE=build/cotune python3 tests/cli/trace_test.py [UNITTEST OPTIONS]
"""
import collections
import json
import os
import unittest

from program import METHODS, ProgramTest
from rank_launch import LaunchTest
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

    def test_of_ranks_has_what_they_were_planned_to_do_beside_rounds_evaluations_and_checkpoints(self):
        trace = self.path / "trace.json"
        for name, options in (("stages", ["--ranks=2", "--recompute=always"]), ("replicas", ["--parallel=dp=1+pp=2"])):
            with self.subTest(name):
                jobs = self.jobs_file(steps=4, save_steps=2, train=", eval_steps: 2")
                self.run_program("train", jobs, "--output-dir", self.path / name, "--token-budget=256", *options, "--trace", trace)
                self.check_trace_of_ranks(trace, name)

    def check_trace_of_ranks(self, trace, name):
        events = checked_events(trace.read_text())
        self.assertEqual({event["ph"] for event in events}, {"C", "M", "X", "s", "f"})
        processes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
        slices = [event for event in events if event["ph"] == "X"]
        measured = [event for event in slices if event["pid"] == processes["measured, ranks"]]
        run = [event for event in slices if event["pid"] == next(pid for process, pid in processes.items() if process.startswith("cotune, "))]
        self.assertEqual({event["cat"] for event in run}, {"round", "evaluation", "checkpoint"})
        self.assertEqual(len({event["tid"] for event in run}), 1)  # nothing overlaps
        rounds = [event for event in run if event["cat"] != "checkpoint"]
        done = collections.Counter()
        for event in measured + [event for event in slices if event["pid"] == processes["measured, links"]]:
            around = [each["cat"] for each in rounds if each["ts"] - 1e-3 <= event["ts"]
                      and event["ts"] + event["dur"] <= each["ts"] + each["dur"] + 1e-3]
            self.assertEqual(len(around), 1, event)
            done[around[0], event["cat"]] += 1
        self.assertEqual({kind for of, kind in done if of == "evaluation"}, {"forward", "send_activation"})
        planned = collections.Counter(event["cat"] for event in slices if event["pid"] in (processes["planned, ranks"], processes["planned, links"]))
        self.assertGreater(done["round", "backward"], 0)
        for kind in ("forward", "optimizer_step", "send_activation", "send_error"):
            self.assertEqual(done["round", kind], planned[kind])
        # Every step of all three jobs, on each of the three ranks of two replicas; replicas that choose entries exchange no gradients.
        self.assertEqual(done["round", "reduce_gradients"], 3 * 3 * 4 if name == "replicas" else 0)
        self.assertGreaterEqual(planned["reduce_gradients"], done["round", "reduce_gradients"])
        log = self.metrics(name)
        self.assertEqual(sum(event["args"]["jobs"] == "plain" for event in run if event["cat"] == "checkpoint"), 2)
        self.assertEqual(sum(len(event["args"]["jobs"].split(", ")) for event in run if event["cat"] == "evaluation"),
                         sum(event["event"] == "evaluation" for event in log))
        trained = sum(event["real_tokens"] for event in log if event["event"] == "step")
        self.assertLessEqual(trained, sum(event["args"]["tokens"] for event in run if event["cat"] == "round"))
        last = max((event for event in run if event["cat"] == "round"), key=lambda event: event["ts"])
        self.assertRegex(last["name"], r"^(round 6|rounds \d+–6)$")  # two choose the entries of diff pruning

    def test_is_refused_where_it_cannot_be_written(self):
        jobs = self.jobs_file(steps=1)
        (self.path / "folder").mkdir()
        os.mkfifo(self.path / "pipe")
        for name, trouble in (("missing/trace.json", "missing is no folder"), ("folder", "is a folder; accepted is a file"),
                              ("pipe", "is no regular file")):
            for ranks in (1, 2):
                said = self.run_program("train", jobs, "--output-dir", self.path / "run", "--trace", self.path / name, f"--ranks={ranks}",
                                        expect=2).stderr
                self.assertIn("--trace: ", said)
                self.assertIn(f"{self.path / name}".removesuffix("/trace.json") + " " + trouble.removeprefix("missing "), said)
        self.assertFalse((self.path / "run").exists())

    def test_that_cannot_be_written_in_the_end_is_told_and_the_run_is_complete(self):
        for ranks in (1, 2):
            with self.subTest(ranks):
                folder, run = self.path / "traces", self.path / f"run{ranks}"
                folder.mkdir()
                process = self.start_program("train", self.jobs_file(), "--output-dir", run, "--json", "--trace", folder / "trace.json",
                                             f"--ranks={ranks}")
                self.wait_for(process, lambda event: event["event"] == "step")
                folder.rmdir()
                _, errors = self.end(process, expect=0)
                self.assertIn("the run is complete without the trace", errors)
                self.assertFalse(json.loads((run / "summary.json").read_text())["interrupted"])


class TraceOfProcesses(LaunchTest):
    def test_is_written_by_the_first_rank(self):
        trace = self.path / "trace.json"
        self.end_all(self.train("run", "--trace", trace, steps=4))
        events = checked_events(trace.read_text())
        processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        kinds = {(processes[event["pid"]].split(",")[0], event["cat"]) for event in events if event["ph"] == "X"}
        self.assertLessEqual({("cotune", "round"), ("cotune", "evaluation"), ("cotune", "checkpoint"), ("planned", "forward"),
                              ("measured", "forward"), ("measured", "optimizer_step"), ("measured", "send_activation"), ("measured", "send_error")}, kinds)
        forwards = [event for event in events if event.get("cat") == "forward" and processes[event["pid"]] == "measured, ranks"]
        self.assertEqual({event["tid"] & 0xFFFFF for event in forwards}, {2, 4})


if __name__ == "__main__":
    unittest.main()
