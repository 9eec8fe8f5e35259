#!/usr/bin/env python3
"""cotune train through its command line: training, mistakes, policies. Standard library only.

    COTUNE=build/cotune python3 tests/cli/train_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from program import LIMIT_S, METHODS, PROGRAM, ProgramTest


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
        self.assertEqual([line for line in lines if len(re.sub(r"(^| )/\S+", "", line)) > 80], [])  # paths are not cut
        text = "\n".join(lines)
        self.assertRegex(text, r"plain +1/4 +loss \d\.\d{4} +lr 3\.00e-03 +\d+ tok/s +\S+ left")
        self.assertRegex(text, r"together +3 jobs +\d+ tok/s +\S+ left")
        self.assertRegex(text, r"plain +4/4 +held-out loss \d\.\d{4}, \d+\.\d% right")
        self.assertRegex(text, r"sparse +chooses its entries")
        for heading in (r"time by operator +seconds +share", r"memory +peak", r"tokens +real +labelled +padded",
                        r"job +ended +steps +held-out loss +rows right"):
            self.assertRegex(text, heading)
        for job in METHODS:
            self.assertIn(f"adapter  {run}/jobs/{job}/adapter", lines)
        self.assertIn(f"log      {run}/metrics.jsonl", lines)

    def test_lines_count_the_rest_of_jobs_that_have_not_stepped(self):
        rows = [[token] * 30 for token in range(3, 27)]
        (self.path / "plain.jsonl").write_text("".join(json.dumps({"input_ids": row, "labels": row}) + "\n" for row in rows))
        alike = self.jobs_file(steps=1_000_000, save_steps=0)
        alike.write_text(re.sub(r"(bottleneck|sparse)\.jsonl", "plain.jsonl", alike.read_text()))
        process = self.start_program("train", alike, "--sharing", "separate", "--output-dir", self.path / "run")
        lines = iter(lambda: process.stdout.readline().decode(), "")
        first = next(line for line in lines if re.match("plain +1/", line))
        left = []
        for line in (first, next(lines)):
            self.assertRegex(line, r"^(plain +1/|together +3 jobs ).* tok/s +(\d+h\d+m|\d+m\d+s) left$")
            above, below = re.findall(r"\d+", line)[-2:]
            left.append((int(above) + int(below) / 60) * (60 if "h" in line.split()[-2] else 1))
        self.kill(process)
        self.assertAlmostEqual(left[1] / left[0], 3, delta=0.2)

    def summary(self, run):
        return json.loads((self.path / run / "summary.json").read_text())

    def with_text(self, jobs):
        """Puts the model that has a tokenizer into a jobs file."""
        model = "model: {config: ./config.json, weights: random, seed: 3, dtype: float32}"
        jobs.write_text(jobs.read_text().replace(model, f"model: {{path: {self.model_with_text()}, dtype: float32}}"))

    def test_the_best_adapter_is_what_is_left_reported_and_asked(self):
        train = ", eval_steps: 2, load_best_model_at_end: true"
        jobs = self.jobs_file(steps=6, save_steps=0, train=train, jobs=["plain"])
        self.with_text(jobs)
        rows = [list(range(100 + row, 110 + row)) for row in range(5)]
        (self.path / "other.jsonl").write_text(  # other tokens than those that are learned
            "".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in rows))
        # A learning rate that is too high, and what training only makes worse.
        for run, option in (("high", "defaults.train.lr=0.3"), ("other", f"jobs.plain.data.eval={self.path}/other.jsonl")):
            done = self.run_program("train", jobs, "--output-dir", self.path / run, "--sample-tokens", "3", "--set", option)
            losses = {event["step"]: event["loss"] for event in self.metrics(run) if event["event"] == "evaluation"}
            start = losses.pop(0)
            best = min(losses, key=losses.get)
            job = self.summary(run)["jobs"][0]
            self.assertEqual((job["adapter_step"], job["eval_step"], job["best_step"]), (best, best, best))
            self.assertEqual(job["eval_loss"], losses[best])
            self.assertEqual(job["start_eval_loss"], start)
            starts_better = start <= losses[best]
            self.assertTrue(starts_better or run != "other")
            self.assertRegex(done.stdout, rf"{start:.4f} -> {losses[best]:.4f}")
            if best != 6:
                self.assertIn(f"asked after training (step {best}): ", done.stdout)
                self.assertRegex(done.stdout, rf"plain +finished at step 6, leaves step {best}, its best")
            worse = "; the loss was lower at step 0" if starts_better else ""
            self.assertRegex(done.stdout, rf"(?m)^plain +leaves step {best}, its best{worse}$")
            checkpoint = self.path / run / "jobs" / "plain" / f"step-{best}"
            self.assertEqual(self.adapter(run, "plain"), (checkpoint / "adapter_model.safetensors").read_bytes())

    def test_json_holds_the_sample_answers(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        options = ("train", jobs, "--output-dir", self.path / "run", "--sample-tokens", "3", "--json")
        errors = self.run_program(*options, expect=2).stderr
        self.assertIn("--sample-tokens: ", errors)
        self.assertFalse((self.path / "run").exists())
        self.with_text(jobs)
        done = self.run_program(*options)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        samples = [event for event in events if event["event"] == "sample"]
        self.assertEqual([(event["job"], event["step"]) for event in samples], [("plain", 0), ("plain", 2)])
        for sample in samples:
            self.assertIsInstance(sample["prompt"], str)
            self.assertIsInstance(sample["answer"], str)
        summary = events[-1]
        self.assertGreater(summary["seconds_telling"], 0)  # answering is part of it
        self.assertLess(summary["seconds_telling"], summary["seconds"])

    def test_a_run_too_short_for_a_speed_shows_none(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        text = self.run_program("train", jobs, "--output-dir", self.path / "run").stdout
        self.assertRegex(text, r"Done in \S+: first step after \d+\.\d s\n")
        self.assertIsNone(self.summary("run")["tokens_per_second"])
        (self.path / "run/summary.json").unlink()  # whose figures would stay
        text = self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume").stdout
        self.assertRegex(text, r"Done in \S+: no step was made\n")
        self.assertIsNone(self.summary("run")["seconds_to_first_step"])

    def test_the_time_to_the_first_step_has_the_loading_of_libraries(self):
        pause_s = 1.5
        process = self.start_program("train", self.jobs_file(steps=1, jobs=["plain"]), "--output-dir", self.path / "run")
        while "libcotune_commands.so" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGSTOP)  # as a slow disk would
        time.sleep(pause_s)
        process.send_signal(signal.SIGCONT)
        self.end(process, expect=0)
        self.assertGreater(self.summary("run")["seconds_to_first_step"], pause_s)

    def test_settings_that_would_do_nothing_are_refused(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        errors = self.run_program("train", jobs, "--check", "--set", "jobs.plain.data.eval_fraction=0.001", expect=2).stderr
        self.assertRegex(errors, r"eval_fraction: 0\.001 holds out none of the 24 examples")
        errors = self.run_program("train", jobs, "--check", "--chunk-size", "32", expect=2).stderr
        self.assertIn("`chunk_size` belongs to layout chunked; this run's layout is ragged", errors)
        self.run_program("train", jobs, "--check", "--chunk-size", "32", "--layout", "chunked")

    def test_an_automatic_chunk_size_is_found_once_told_and_recorded(self):
        jobs = self.jobs_file(steps=1, jobs=["plain", "bottleneck"])
        chunked = ("--layout", "chunked", "--chunk-size")
        told = "run.chunk_size: 64, by the longest rows of 2 jobs\n"
        self.assertIn(told, self.run_program("train", jobs, "--check", *chunked, "auto").stderr)
        self.assertIn(told, self.run_program("train", jobs, *chunked, "auto", "--output-dir", self.path / "auto").stderr)
        self.assertIn("chunk_size: 64", json.loads((self.path / "auto/run.json").read_text())["configuration"])
        # A run that goes on keeps what it has, whatever the rule says of the jobs that there are by then.
        self.run_program("train", jobs, *chunked, "32", "--output-dir", self.path / "other")
        resumed = self.run_program("train", jobs, *chunked, "auto", "--output-dir", self.path / "other", "--resume")
        self.assertNotIn("run.chunk_size", resumed.stderr)
        self.assertIn("chunk_size: 32", json.loads((self.path / "other/run.json").read_text())["configuration"])

    def test_a_folder_whose_name_is_not_utf8_is_as_good_as_any(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        run = os.fsencode(self.path) + b"/run\xff"
        for option in ("--overwrite", "--resume"):
            done = subprocess.run([PROGRAM, "train", jobs, "--json", option, "--output-dir", run], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout.splitlines()[-1])["jobs"][0]["status"], "finished")

    def test_a_missed_deadline_is_told(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        text = self.run_program("train", jobs, "--output-dir", self.path / "run", "--set", "jobs.plain.deadline=2001-02-03").stdout
        self.assertIn("deadline: job `plain` is late: 2001-02-03 has passed at step 1 of 2", text)
        job = self.summary("run")["jobs"][0]
        self.assertEqual((job["deadline"], job["missed_deadline"]), ("2001-02-03", True))

    def test_a_refusal_for_memory_shows_the_limit_that_was_asked_for(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        errors = self.run_program("train", jobs, "--output-dir", self.path / "run", "--memory", "2MiB", expect=2).stderr
        self.assertRegex(errors, r"--memory: 2MiB: the model alone takes \d+\.\d MiB while it is loaded; the limit of 2 MiB leaves 0 MiB")
        least = int(re.search(r"accepted are (\d+) MiB and more", errors).group(1))
        self.assert_least_limit(jobs, least)

    def test_a_job_that_can_never_fit_is_told_the_limit_that_admits_it(self):
        jobs = self.jobs_file(steps=1, jobs=["plain"])
        errors = self.run_program("train", jobs, "--check", "--memory", "2MiB", expect=2).stderr
        least = int(re.search(r"accepted are (\d+) MiB and more", errors).group(1))
        errors = self.run_program("train", jobs, "--check", "--memory", f"{least - 10}MiB", expect=2).stderr
        self.assertRegex(errors, r"jobs\.plain: can never run within run\.memory: it needs ")
        self.assert_least_limit(jobs, int(re.search(r"accepted are (\d+) MiB and more", errors).group(1)))

    def assert_least_limit(self, jobs, mib):
        """Both a check and a start accept it, and a check nothing much smaller."""
        output = ("--output-dir", self.path / "least")
        self.run_program("train", jobs, *output, "--check", "--memory", f"{mib}MiB")
        self.run_program("train", jobs, *output, "--memory", f"{mib}MiB", "--overwrite")
        self.run_program("train", jobs, *output, "--check", "--memory", f"{mib - 10}MiB", expect=2)

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
        self.assertRegex(errors, r"plain\.jsonl:1: .*9999.*159")

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
