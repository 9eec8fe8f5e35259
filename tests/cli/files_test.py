#!/usr/bin/env python3
"""Disks, files and pipes that fail: a clear error that names the file, no crash, no hang, no damaged output.

    COTUNE=build/cotune python3 tests/cli/files_test.py [UNITTEST OPTIONS]
"""
import json
import os
import random
import re
import resource
import shutil
import subprocess
import unittest

import needs
from program import LIMIT_S, ROOT, ProgramTest
from tiny_models import copy_model

NOBODY = 65534


def limit_file_size(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def contents(folder):
    """Every file of a folder with its bytes and its time of writing; the lock is taken by those who only look, too."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != "lock"}


class Disk(ProgramTest):
    def test_that_is_full_ends_the_run_with_its_checkpoints_whole(self):
        jobs = self.jobs_file(steps=6, save_steps=2, jobs=["plain"])
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        run = self.path / "full"
        # Files of up to 8 KiB are written, longer ones are not: the adapter's.
        errors = self.run_program("train", jobs, "--output-dir", run, expect=1, preexec_fn=limit_file_size(8192)).stderr
        self.assertRegex(errors, r"full/jobs/plain/step-2/adapter_model\.safetensors: cannot write: File too large")
        self.assertIn("--resume", errors)
        self.assertEqual(list((run / "jobs" / "plain").iterdir()), [])
        self.run_program("train", jobs, "--output-dir", run, "--resume")
        self.assertEqual(self.adapter("full", "plain"), self.adapter("whole", "plain"))
        self.assertEqual(self.results("full"), self.results("whole"))

    def test_output_that_cannot_be_written_does_not_end_the_run(self):
        jobs = self.jobs_file(steps=3, jobs=["plain"])
        with open("/dev/full", "w") as full:
            for json_lines in ([], ["--json"]):
                errors = self.run_program("train", jobs, *json_lines, "--overwrite", "--output-dir", self.path / "run",
                                          expect=1, stdout=full).stderr
                self.assertRegex(errors, "standard output: cannot be written: No space left on device")
                self.assertEqual(json.loads((self.path / "run" / "summary.json").read_text())["jobs"][0]["status"], "finished")
            run = self.path / "run"
            prompt = ["--model", copy_model(self.path / "model"), "--prompt", "x", "--max-new-tokens", "1"]
            for command in (["train", jobs, "--check"], ["data", jobs], ["plan", jobs],
                            ["status", "--run", run], ["status", "--run", run, "--json"], ["report", "--run", run, "--output", self.path / "r.html"],
                            ["evaluate", "--run", run], ["generate", *prompt], ["generate", *prompt, "--json"], ["cache", "list"],
                            ["completion", "bash"], ["--help"], ["--version"]):
                with self.subTest(command):
                    errors = self.run_program(*command, expect=1, stdout=full).stderr
                    self.assertRegex(errors, r"(^|\n)standard output: cannot be written: No space left on device\n$")

    def test_a_reader_that_goes_away_does_not_end_the_run(self):
        jobs = self.jobs_file(steps=100, save_steps=0, jobs=["plain"])
        self.run_program("train", jobs, "--output-dir", self.path / "read")
        process = self.start_program("train", jobs, "--json", "--output-dir", self.path / "run")
        process.stdout.readline()
        process.stdout.close()  # as `| head -1` does
        process.stdout = None
        errors = process.communicate(timeout=LIMIT_S)[1]
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertEqual(self.adapter("run", "plain"), self.adapter("read", "plain"))
        self.assertEqual(self.results("run"), self.results("read"))

    def test_closed_standard_streams_change_nothing(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        self.run_program("train", jobs, "--output-dir", self.path / "open")
        command = f'exec "$@" --output-dir {self.path}/closed <&- >&- 2>&-'
        subprocess.run(["sh", "-c", command, "sh", *self.command("train", jobs)], check=True, timeout=LIMIT_S)
        self.assertEqual(self.adapter("closed", "plain"), self.adapter("open", "plain"))
        self.assertEqual(self.results("closed"), self.results("open"))


class WorkingDirectory(ProgramTest):
    def test_that_is_gone_is_said(self):
        for command in (["status"], ["train", "jobs.yaml"], ["--version"]):
            script = f'mkdir {self.path}/gone && cd {self.path}/gone && rmdir {self.path}/gone && exec "$@"'
            done = subprocess.run(["sh", "-c", script, "sh", *self.command(*command)], capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual((done.returncode, done.stdout), (1, ""), command)
            self.assertRegex(done.stderr, r"\Acotune: the working directory is gone \(No such file or directory\): change to one that exists\n\Z")


class Privileges(ProgramTest):
    """What root may do and others may not is tried as somebody else."""

    def setUp(self):
        super().setUp()
        self.path.chmod(0o755)
        self.others = {}
        if os.geteuid() == 0:
            self.others = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        needs.require(self, "other_users")

    def test_a_folder_that_cannot_be_written_is_named(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        closed = self.path / "closed"
        closed.mkdir(mode=0o555)
        errors = self.run_program("train", jobs, "--output-dir", closed, expect=2, **self.others).stderr
        self.assertRegex(errors, r"closed.*: Permission denied")
        errors = self.run_program("train", jobs, "--output-dir", closed / "run", expect=2, **self.others).stderr
        self.assertRegex(errors, r"closed/run: .*Permission denied")
        self.assertEqual(list(closed.iterdir()), [])

    def test_runs_and_adapters_in_a_folder_that_may_not_be_entered_are_named(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        closed = self.path / "closed"
        self.run_program("train", jobs, "--output-dir", closed / "run")
        jobs.write_text(jobs.read_text().replace("method: lora,", f"method: lora, init_from: {closed}/run,"))
        closed.chmod(0o700 if self.others else 0)
        for path, command in ((closed / "run", ["status", "--run", closed / "run"]),
                              (closed / "run/run.json", ["report", "--run", closed / "run", "--output", self.path / "r.html"]),
                              (closed / "run/run.json", ["evaluate", "--run", closed / "run"]),
                              (closed / "run", ["job", "list", "--run", closed / "run"]),
                              (closed / "run", ["generate", "--prompt", "x", "--adapter", closed / "run"]),
                              (closed / "run", ["evaluate", "--data", self.path / "plain.jsonl", "--adapter", closed / "run"]),
                              (closed / "run", ["merge", "--adapter", closed / "run", "--output", self.path / "merged"]),
                              (closed / "model", ["generate", "--prompt", "x", "--model", closed / "model"])):
            with self.subTest(command):
                self.assertEqual(self.run_program(*command, expect=2, **self.others).stderr, f"{path}: Permission denied\n")
        with self.subTest("init_from"):
            self.assertIn(f"jobs.yaml:5: jobs[0].adapter.init_from: {closed}/run: Permission denied\n",
                          self.run_program("train", jobs, "--check", expect=2, **self.others).stderr)
        closed.chmod(0o755)

    def test_files_that_cannot_be_read_are_named(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        for name in ("plain.jsonl", "config.json", "jobs.yaml"):
            (self.path / name).chmod(0)
            errors = self.run_program("train", jobs, "--check", expect=2, **self.others).stderr
            self.assertRegex(errors, rf"{name}.*Permission denied")
            (self.path / name).chmod(0o644)


class Inputs(ProgramTest):
    def check(self, jobs, *, expect=2):
        """Standard error of a check that ends with this status, in words."""
        errors = self.run_program("train", jobs, "--check", expect=expect).stderr
        self.assertLess(len(errors), 10000)
        return errors

    def test_a_jobs_file_that_is_none_is_refused(self):
        folder = self.path / "folder.yaml"
        folder.mkdir()
        self.assertRegex(self.check(folder), r"folder\.yaml.*Is a directory")
        self.assertRegex(self.check("/dev/zero"), r"/dev/zero.*64 MiB")
        self.assertRegex(self.check("/dev/null"), r"/dev/null")
        self.assertRegex(self.check(self.path / "none.yaml"), r"none\.yaml.*No such file")
        bomb = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
        bomb += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 30)]
        (self.path / "bomb.yaml").write_text("\n".join(bomb) + "\n")
        self.assertIn("bomb.yaml:1", self.check(self.path / "bomb.yaml"))

    def test_anchors_and_merged_keys_are_read(self):
        (self.path / "anchors.yaml").write_text(
            "cotune: 1\nmodel: {config: ./config.json, weights: random}\njobs:\n"
            "  - {name: a, data: &data {train: plain.jsonl}, adapter: &adapter {r: 4, target_modules: all-linear}}\n"
            "  - {name: b, data: *data, adapter: *adapter}\n")
        self.assertIn("2 jobs are ready", self.run_program("train", self.path / "anchors.yaml", "--check").stdout)

    def test_a_name_given_twice_is_refused(self):
        jobs = self.jobs_file(jobs=["plain", "plain"])
        self.assertRegex(self.check(jobs), r"jobs\.yaml:6: .*`plain` is also the name of jobs\[0\]")

    def test_data_that_are_no_file_are_refused(self):
        jobs = self.jobs_file(jobs=["plain"])
        data = self.path / "plain.jsonl"
        data.unlink()
        data.mkdir()
        self.assertRegex(self.check(jobs), r"jobs\.yaml:\d+: jobs\[0\]\.data\.train: is a folder: \S+plain\.jsonl; accepted: a file of JSONL")
        data.rmdir()
        data.symlink_to("/dev/zero")
        self.assertRegex(self.check(jobs), r"jobs\.yaml:\d+: jobs\[0\]\.data\.train: is not a regular file: \S+plain\.jsonl; accepted: a file of JSONL")

    def model_jobs(self, model):
        path = self.path / "model.yaml"
        path.write_text(f"cotune: 1\nmodel: {{path: {model}}}\njobs:\n"
                        "  - {name: a, data: {train: plain.jsonl}, adapter: {r: 4, target_modules: all-linear}}\n")
        return path

    def test_a_truncated_safetensors_file_is_named(self):
        source = ROOT / "tests" / "model_weights" / "data" / "llama2"
        model = self.path / "model"
        model.mkdir()
        (model / "config.json").write_bytes((source / "config.json").read_bytes())
        weights = (source / "model.safetensors").read_bytes()
        jobs = self.model_jobs(model)
        for size in (0, 7, 100, len(weights) // 2, len(weights) - 1):
            (model / "model.safetensors").write_bytes(weights[:size])
            self.assertRegex(self.check(jobs), r"model/model\.safetensors: ")
        (model / "model.safetensors").write_bytes(weights)
        self.run_program("train", jobs, "--check")

    def test_a_hostile_gguf_file_is_named(self):
        good = (ROOT / "tests" / "model_weights" / "data" / "gguf_llama" / "model.gguf").read_bytes()
        generator = random.Random(5)
        hostile = [b"", b"GGUF", good[:100], good[:len(good) // 2], b"GGML" + good[4:],
                   good[:8] + b"\xff" * 16 + good[24:],                     # counts of tensors and metadata
                   good[:24] + b"\xff" * 8 + good[32:],                     # the length of the first key
                   good[:64] + bytes(generator.randrange(256) for _ in range(2000)) + good[2064:]]
        for number, data in enumerate(hostile):
            path = self.path / f"hostile{number}.gguf"
            path.write_bytes(data)
            self.assertIn(path.name, self.check(self.model_jobs(path)))


class Refused(ProgramTest):
    """A start that is refused changes nothing."""

    def test_in_a_folder_of_jobs_without_their_run(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        run = self.path / "run"
        self.run_program("train", jobs, "--output-dir", run)
        (run / "run.json").unlink()
        before = contents(run)
        errors = self.run_program("train", jobs, "--output-dir", run, expect=2).stderr
        self.assertRegex(errors, r"run/jobs: is there, but .*run/run\.json is not: pass --overwrite")
        self.assertEqual(contents(run), before)

    def test_in_a_folder_with_files_of_others(self):
        jobs = self.jobs_file(steps=2, jobs=["plain"])
        for name in ("tensorboard/events", "sweeps/grid/notes", "summary.json", "metrics.jsonl"):
            run = self.path / name.split("/")[0].removesuffix(".json").removesuffix(".jsonl")
            (run / name).parent.mkdir(parents=True)
            (run / name).write_text("not of a run")
            before = contents(run)
            for options in ((), ("--check",)):
                errors = self.run_program("train", jobs, "--output-dir", run, *options, expect=2).stderr
                self.assertRegex(errors, rf"{name.split('/')[0]}: is there, but .*run\.json is not: pass --overwrite")
                self.assertEqual(contents(run), before)

    def test_of_a_run_whose_checkpoint_is_gone(self):
        jobs = self.jobs_file(steps=4, jobs=["plain"], train=", eval_steps: 2, load_best_model_at_end: true")
        run = self.path / "run"
        self.run_program("train", jobs, "--output-dir", run)
        (run / "jobs" / "plain" / "best").write_text("step-99\n")
        before = contents(run)
        errors = self.run_program("train", jobs, "--output-dir", run, "--resume", expect=2).stderr
        self.assertRegex(errors, r"plain/best: names `step-99`")
        self.assertEqual(contents(run), before)


class Resumed(ProgramTest):
    """--resume with something else than the run began with: all of it is listed, and nothing is written."""

    def setUp(self):
        super().setUp()
        self.run_program("train", self.jobs_file(steps=4, save_steps=2), "--output-dir", self.path / "run")

    def refused(self, jobs, *options):
        before = contents(self.path / "run")
        errors = self.run_program("train", jobs, "--resume", "--output-dir", self.path / "run", *options, expect=2).stderr
        self.assertEqual(contents(self.path / "run"), before)
        return errors

    def test_settings_data_and_model(self):
        with open(self.path / "sparse.jsonl", "a") as data:
            data.write(json.dumps({"input_ids": [3, 4, 5], "labels": [3, 4, 5]}) + "\n")
        errors = self.refused(self.path / "jobs.yaml", "--set", "jobs.plain.adapter.r=8", "--set", "defaults.train.lr=1e-3",
                              "--set", "model.seed=4", "--layout", "padded")
        for wanted in ("run/run.json: ", "model: .*fingerprint", "run.layout: ragged, now padded",
                       "jobs.plain.adapter.r: 4, now 8", r"jobs.bottleneck.train.learning_rate: 0.003, now 0.001",
                       r"jobs.sparse.data: .*sparse\.jsonl"):
            self.assertRegex(errors, wanted)

    def test_more_or_fewer_jobs(self):
        self.assertIn("jobs.bottleneck: is in the run, and missing now",
                      self.refused(self.jobs_file(steps=4, save_steps=2, jobs=["plain", "sparse"])))
        more = self.jobs_file(steps=4, save_steps=2)
        more.write_text(more.read_text() + "  - {name: new, data: {train: plain.jsonl}, adapter: {r: 4, target_modules: all-linear}}\n")
        self.assertIn("jobs.new: is not in the run", self.refused(more))

    def test_a_damaged_checkpoint(self):
        file = self.path / "run" / "jobs" / "plain" / "step-4" / "optimizer.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        refusal = self.refused(self.path / "jobs.yaml")
        self.assertRegex(refusal, r"step-4/optimizer\.safetensors: is damaged")
        job = self.path / "run" / "jobs" / "plain"
        self.assertIn(f"is whole: `cp {job}/previous {job}/latest` goes on from it", refusal)
        file.unlink()
        self.assertRegex(self.refused(self.path / "jobs.yaml"), r"step-4/optimizer\.safetensors: ")
        (self.path / "run" / "run.json").write_text("{")
        self.assertRegex(self.refused(self.path / "jobs.yaml"), r"run/run\.json: is not the record of a run")

    def test_a_checkpoint_whose_name_is_lost(self):
        job, jobs = self.path / "run/jobs/plain", self.path / "jobs.yaml"
        adapters = self.adapters("run")
        goes_on = f"{job}/step-4, {job}/step-2 are whole: `echo step-4 > {job}/latest` goes on from the newest"
        (job / "latest").write_text("")
        self.assertIn(f"latest: names ``, which is not a checkpoint in {job}; {goes_on}", self.refused(jobs))
        (job / "latest").unlink()
        for options in ((), ("--check",)):
            self.assertIn(f"{job}/latest: is missing, though job `plain` has saved checkpoints (metrics.jsonl tells of one of step 4); {goes_on}",
                          self.refused(jobs, *options))
        command = re.search("`(.*)`", goes_on)[1]
        subprocess.run(command, shell=True, check=True)
        self.run_program("train", jobs, "--resume", "--output-dir", self.path / "run")
        self.assertEqual(self.adapters("run"), adapters)

    def test_all_checkpoints_lost(self):
        run, jobs = self.path / "run", self.path / "jobs.yaml"
        adapters, results = self.adapters("run"), self.results("run")
        shutil.rmtree(run / "jobs")
        errors = self.refused(jobs)
        for job in adapters:
            begins_again = f"mkdir -p {run}/jobs/{job} && echo none > {run}/jobs/{job}/latest"
            self.assertIn(f"{run}/jobs/{job}/latest: is missing, though job `{job}` has saved checkpoints (metrics.jsonl tells of one of step 4); "
                          f"no other checkpoint of the job is whole: `{begins_again}` begins the job again\n", errors)
            subprocess.run(begins_again, shell=True, check=True)
        self.run_program("train", jobs, "--resume", "--output-dir", run)
        self.assertEqual(self.adapters("run"), adapters)
        self.assertEqual(self.results("run"), results)

    def test_lines_of_metrics_that_are_dropped_are_told(self):
        metrics = self.path / "run/metrics.jsonl"
        lines = metrics.read_bytes().splitlines(True)
        metrics.write_bytes(b"".join(lines[:2]) + b'{"event":"notice","text":"\x9b2J"}\n' + b"".join(lines[2:]))
        done = self.run_program("train", self.path / "jobs.yaml", "--resume", "--output-dir", self.path / "run")
        self.assertIn(f"{metrics}:3: is not as `cotune train` writes it; the line was dropped\n", done.stderr)

    def test_from_another_folder_and_with_moved_data_goes_on(self):
        adapters = self.adapters("run")
        other = self.path / "other"
        other.mkdir()
        for name in (*adapters, ):
            os.rename(self.path / f"{name}.jsonl", other / f"{name}.jsonl")
        jobs = self.jobs_file(steps=4, save_steps=2)
        os.rename(jobs, other / "jobs.yaml")
        os.rename(self.path / "config.json", other / "config.json")
        self.run_program("train", "jobs.yaml", "--resume", "--output-dir", "../run", "--threads", "1", cwd=other)
        self.assertEqual(self.adapters("run"), adapters)


if __name__ == "__main__":
    unittest.main(verbosity=2)
