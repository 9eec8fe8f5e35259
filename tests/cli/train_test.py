#!/usr/bin/env python3
"""cotune train through its command line: training, mistakes, policies. Standard library only.

    COTUNE=build/cotune python3 tests/cli/train_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

from program import METHODS, ProgramTest


class CommandLine(ProgramTest):
    def test_trains_every_job_and_leaves_adapters_and_a_summary(self):
        done = self.run_program("train", self.jobs_file(), "--json", "--output-dir", self.path / "run")
        summary = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual(summary["event"], "summary")
        for job in summary["jobs"]:
            self.assertEqual(job["status"], "finished")
            self.assertLess(job["eval_loss"], job["start_eval_loss"])
            self.assertEqual(len(summary["losses"][job["name"]]), 30)
        self.assertEqual(len(self.adapters("run")), 3)

    def test_lines_for_people_fit_80_columns_and_say_what_was_done(self):
        run = self.path / "run"
        lines = self.run_program("train", self.jobs_file(steps=4), "--output-dir", run).stdout.splitlines()
        self.assertEqual([line for line in lines if len(line) > 80 and str(run) not in line], [])
        text = "\n".join(lines)
        self.assertRegex(text, r"plain +1/4 +loss \d\.\d{4} +lr 3\.00e-03 +\d+ tok/s +\S+ left")
        self.assertRegex(text, r"together +[23] jobs +\d+ tok/s +\S+ left")
        self.assertRegex(text, r"plain +4/4 +held-out loss \d\.\d{4}, \d+\.\d% right")
        self.assertRegex(text, r"sparse +chooses its entries")
        for heading in (r"time by operator +seconds +share", r"memory +peak", r"tokens +real +labelled +padded",
                        r"job +ended +steps +held-out loss +rows right"):
            self.assertRegex(text, heading)
        for job in METHODS:
            self.assertIn(f"adapter  {run}/jobs/{job}/adapter", lines)
        self.assertIn(f"log      {run}/metrics.jsonl", lines)

    def test_mistakes_are_reported_together_with_their_places(self):
        path = self.path / "wrong.yaml"
        path.write_text("cotune: 1\nmodel: {config: ./config.json, weights: random}\njobs:\n"
                        "  - name: a\n    data: {train: missing.jsonl}\n    adapter: {method: lora, r: 0}\n"
                        "    train: {learning_rat: 1}\n")
        errors = self.run_program("train", path, "--check", expect=2).stderr
        self.assertRegex(errors, r"wrong\.yaml:5: .*missing\.jsonl")
        self.assertRegex(errors, r"wrong\.yaml:6: .*\br\b.*got 0")
        self.assertRegex(errors, r"wrong\.yaml:7: .*learning_rat.*learning_rate")

    def test_check_trains_nothing(self):
        done = self.run_program("train", self.jobs_file(), "--check", "--output-dir", self.path / "none")
        self.assertIn("3 jobs are ready to train", done.stdout)
        self.assertFalse((self.path / "none").exists())

    def test_a_token_outside_the_vocabulary_is_named(self):
        (self.path / "plain.jsonl").write_text('{"input_ids": [1, 2, 9999], "labels": [1, 2, 9999]}\n')
        errors = self.run_program("train", self.jobs_file(), "--check", expect=2).stderr
        self.assertRegex(errors, r"plain\.jsonl:1: .*9999.*160")

    def test_a_run_is_not_overwritten_unasked(self):
        jobs = self.jobs_file(steps=2)
        self.run_program("train", jobs, "--output-dir", self.path / "run")
        self.assertIn("--resume", self.run_program("train", jobs, "--output-dir", self.path / "run", expect=2).stderr)
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--overwrite")

    def test_every_sharing_and_layout_trains_the_same_rows(self):
        jobs = self.jobs_file(steps=3)
        for sharing in ("separate", "temporal", "batch-all", "hybrid"):
            for layout in ("ragged", "chunked", "padded"):
                done = self.run_program("train", jobs, "--json", "--overwrite", "--output-dir", self.path / "run",
                                        "--sharing", sharing, "--layout", layout, "--token-budget", "512")
                summary = json.loads(done.stdout.strip().splitlines()[-1])
                for job in summary["jobs"]:
                    tokens = job["tokens"]
                    self.assertEqual(tokens["real"], job["trained_tokens"])
                    self.assertGreaterEqual(tokens["processed"], tokens["real"])
                    if layout == "ragged":
                        self.assertEqual(tokens["processed"], tokens["real"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
