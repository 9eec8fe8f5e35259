#!/usr/bin/env python3
"""cotune train --check: everything that a start would refuse, all at once, and nothing written. Standard library only.

    COTUNE=build/cotune python3 tests/cli/check_test.py [UNITTEST OPTIONS]
"""
import fcntl
import json
import os
import subprocess
import unittest

from checks import Check
from program import METHODS, ProgramTest
from tiny_models import copy_model, write_model


class AllMistakes(Check):
    def test_of_jobs_file_model_adapters_and_data_are_reported_at_once(self):
        model = copy_model(self.path / "model")
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[:-10])
        (self.path / "broken.jsonl").write_text('{"text": "fine"}\n{"text": 3}\n{"prompt": "a", "completion": "b"}\n{oops\n')
        (self.path / "eval.jsonl").write_text('{"messages": [{"role": "bot", "content": "x"}]}\n')
        jobs = self.write_jobs(
            "{name: a, data: {train: plain.jsonl}, adapter: {target_modules: [layers.9.mlp.up_proj]}, train: {lr: -1}}",
            "{name: b, data: {train: broken.jsonl, eval: eval.jsonl}, adapter: {rank_pattern: {up_proj: 4}}}",
            "{name: c, data: {train: nowhere.jsonl}, adapter: {init_from: model}}",
            model="{path: model}")
        lines = self.refused(jobs, "--threads", "-1", starts=True).splitlines()
        text = "\n".join(lines)
        for wanted in (r"^--threads: must be a whole number from 0 to 4096, got -1",
                       r"^\S+jobs\.yaml:4: jobs\[0\]\.adapter\.target_modules: `layers\.9\.mlp\.up_proj` matches no module",
                       r"^\S+jobs\.yaml:4: jobs\[0\]\.train\.lr: must be a number above 0, got -1",
                       r"^\S+jobs\.yaml:5: jobs\[1\]\.adapter\.rank_pattern: `up_proj` matches none of the job's target modules",
                       r"^\S+jobs\.yaml:6: jobs\[2\]\.data\.train: no such file or folder: \S+nowhere\.jsonl",
                       r"^\S+jobs\.yaml:6: jobs\[2\]\.adapter\.init_from: \S+model: holds no adapter",
                       r"^\S+model\.safetensors: ",
                       r"^\S+broken\.jsonl:2: text: expected a string, found the number 3",
                       r"^\S+broken\.jsonl:3: expected the fields text, as in line 1: a file has one format; found prompt, completion",
                       r"^\S+broken\.jsonl:4: column 2: not JSON",
                       r"^\S+eval\.jsonl:1: messages\[0\]\.role: expected one of"):
            self.assertRegex(text, r"(?m)" + wanted)
        self.assertEqual(len(lines), 11, text)
        # The jobs file in the order of its lines, files in the order in which they come up.
        places = [line.split(": ")[0].rsplit("/", 1)[-1] for line in lines]
        self.assertEqual([place for place in places if place.startswith("jobs.yaml")],
                         ["jobs.yaml:4", "jobs.yaml:4", "jobs.yaml:5", "jobs.yaml:6", "jobs.yaml:6"])
        self.assertEqual(places[-4:], ["broken.jsonl:2", "broken.jsonl:3", "broken.jsonl:4", "eval.jsonl:1"])

    def test_of_data_are_found_without_a_model(self):
        (self.path / "broken.jsonl").write_text('{"messages": []}\n{"messages": [{"role": "user"}]}\n')
        errors = self.refused(self.write_jobs("{name: a, data: {train: broken.jsonl}}", model="{path: nowhere}"))
        self.assertRegex(errors, r"jobs\.yaml:2: model\.path: no such file or folder: \S+nowhere")
        self.assertRegex(errors, r"broken\.jsonl:1: messages: expected a list of at least one message")
        self.assertRegex(errors, r"broken\.jsonl:2: messages\[0\]\.content: missing")

    def test_are_found_behind_mistakes_in_the_same_sections(self):
        (self.path / "broken.jsonl").write_text('{"text": 3}\n')
        jobs = self.write_jobs("{name: a, data: {train: broken.jsonl}, adapter: {layers_to_transform: [9], target_modules: [layers.7.mlp.up_proj]}}",
                               "{name: b, data: {train: plain.jsonl}, adapter: {target_modules: [qproj], layers_to_transform: [8]}}",
                               model="{config: ./config.json, weights: random, dtype: int8}", more="defaults: {data: {chat_templat: x}}\n")
        lines = self.refused(jobs).splitlines()
        for line, wanted in zip(lines, (r"jobs\.yaml:2: model\.dtype: must be one of",
                                        r"jobs\.yaml:3: defaults\.data\.chat_templat: unknown key; did you mean `chat_template`",
                                        r"jobs\.yaml:5: jobs\[0\]\.adapter\.layers_to_transform: must be layers from 0 to 1 of this model",
                                        r"jobs\.yaml:5: jobs\[0\]\.adapter\.target_modules: `layers\.7\.mlp\.up_proj` matches no module",
                                        r"jobs\.yaml:6: jobs\[1\]\.adapter\.target_modules: `qproj` names no projection",
                                        r"jobs\.yaml:6: jobs\[1\]\.adapter\.layers_to_transform: must be layers from 0 to 1 of this model",
                                        r"broken\.jsonl:1: text: expected a string, found the number 3")):
            self.assertRegex(line, wanted)
        self.assertEqual(len(lines), 7, lines)

    def test_are_found_behind_keys_and_options_that_are_too_many(self):
        wrong = r"jobs\.yaml:\d+: jobs\[0\]\.adapter\.layers_to_transform: must be layers from 0 to 1 of this model"
        job = "{name: a, data: {train: plain.jsonl}, adapter: {layers_to_transform: [9]}}"
        for more, message in (("foo: 1", r"model\.foo: unknown key"), ("config: ./config.json", r"model\.config: given twice; first in line 2"),
                              ("base_model: x", r"model\.base_model: ")):
            errors = self.refused(self.write_jobs(job, model=f"{{config: ./config.json, weights: random, {more}}}"))
            self.assertRegex(errors, message)
            if more != "base_model: x":  # which leaves open what the model is
                self.assertRegex(errors, wrong)
        for more, message in (("foo: 1", r"adapter\.foo: unknown key"), ("bottleneck_size: 4", r"`bottleneck_size` belongs to ")):
            errors = self.refused(self.write_jobs(job.replace("adapter: {", f"adapter: {{{more}, ")))
            self.assertRegex(errors, message)
            self.assertRegex(errors, wrong)
        errors = self.refused(self.write_jobs("{name: a, data: {train: plain.jsonl, max_length: 1, bar: 3}}"))
        self.assertRegex(errors, r"jobs\[0\]\.data\.bar: unknown key")
        self.assertRegex(errors, r"no example of .* is left")

    def test_of_a_model_without_a_tokenizer_are_one(self):
        (self.path / "texts.jsonl").write_text('{"text": "x"}\n' * 30 + '{"text": 3}\n')
        jobs = self.write_jobs("{name: a, data: {train: texts.jsonl}}", "{name: b, data: {train: texts.jsonl, format: text}}",
                               "{name: c, data: {train: plain.jsonl}}")
        lines = self.refused(jobs).splitlines()
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"jobs\.yaml:2: model\.config: .*has no tokenizer")
        self.assertRegex(lines[1], r"texts\.jsonl:31: text: expected a string, found the number 3")

    def test_of_data_of_which_nothing_is_left_are_at_the_option_that_is_the_cause(self):
        (self.path / "unlabelled.jsonl").write_text('{"input_ids": [3, 4], "labels": [-100, -100]}\n' * 2)
        (self.path / "long.jsonl").write_text('{"input_ids": [3, 4, 5], "labels": [-100, -100, 5]}\n' * 3)
        lines = self.refused(self.write_jobs("{name: a, data: {train: unlabelled.jsonl}}", "{name: b, data: {train: long.jsonl}}",
                                             more="defaults: {data: {max_length: 2}}\n")).splitlines()
        self.assertEqual(len(lines), 2, lines)
        self.assertRegex(lines[0], r"jobs\.yaml:3: defaults\.data\.max_length: no example of \S+long\.jsonl is left to job `b`: 3 records are cut to "
                                   r"the first 2 tokens \(max_length\), before anything that is learned; raise max_length, or ")
        self.assertRegex(lines[1], r"jobs\.yaml:5: jobs\[0\]\.data\.train: no example of \S+unlabelled\.jsonl is left to job `a`: 2 records have no "
                                   r"label but -100 behind the first token")

    def test_that_repeat_are_counted(self):
        (self.path / "broken.jsonl").write_text("{\n" * 1000)
        jobs = self.write_jobs("{name: a, data: {train: broken.jsonl}}", "{name: b, data: {train: broken.jsonl}}")
        lines = self.refused(jobs).splitlines()
        self.assertEqual(len(lines), 4, lines)
        self.assertRegex(lines[-1], r"broken\.jsonl:1000: and 997 more such lines, this is the last")
        (self.path / "broken.jsonl").write_text('{"input_ids": [1, 999], "labels": [1, 999]}\n' * 10)
        lines = self.refused(jobs).splitlines()
        self.assertEqual(len(lines), 4, lines)
        self.assertRegex(lines[0], r"broken\.jsonl:1: input_ids\[1\]: found 999; accepted: 0 to 159, the model's vocabulary")
        self.assertRegex(lines[-1], r"broken\.jsonl:10: and 7 more such examples")

    def test_of_options_that_would_do_nothing(self):
        template = self.path / "chat.jinja"
        template.write_text("{{ messages[0].content }}")
        few = self.path / "few.jsonl"
        few.write_text('{"input_ids": [3, 4], "labels": [3, 4]}\n')
        errors = self.refused(self.write_jobs(
            "{name: a, data: {train: plain.jsonl, chat_template: chat.jinja}}",
            "{name: b, data: {train: few.jsonl, eval_fraction: 0.01}}",
            "{name: c, data: {train: few.jsonl, train_on_prompt: true}}"))
        self.assertRegex(errors, r"jobs\.yaml:4: jobs\[0\]\.data\.chat_template: has no effect: the job's data hold no chats")
        self.assertRegex(errors, r"jobs\.yaml:6: jobs\[2\]\.data\.train_on_prompt: has no effect: the job's data hold no prompts")
        self.assertRegex(errors, r"jobs\.yaml:5: jobs\[1\]\.data\.eval_fraction: 0\.01 holds out none of the 1 example of ")
        self.assertRegex(self.refused(self.jobs_file(), "--sample-tokens", "5"), r"--sample-tokens: needs a model with a tokenizer")
        errors = self.run_program("train", self.jobs_file(), "--resume", "--overwrite", expect=2).stderr
        self.assertRegex(errors, r"--(resume|overwrite) excludes --(resume|overwrite)")

    def test_without_any_nothing_is_written(self):
        done = self.run_program("train", self.jobs_file(), "--check", "--output-dir", self.path / "none" / "below")
        self.assertIn("3 jobs are ready to train", done.stdout)
        self.assertRegex(done.stdout, r"lora on 14 modules: 7424 values; 30 steps; by itself at most [\d.]+ [KM]iB")
        self.assertFalse((self.path / "none").exists())

    def test_what_an_automatic_compute_type_is_is_told_by_check_and_start(self):
        jobs = self.write_jobs("{name: a, data: {train: plain.jsonl}, train: {steps: 1}}")
        told = r"(?m)^model\.dtype: (bfloat16, which the device multiplies|float32, as the device multiplies no bfloat16)$"
        self.assertRegex(self.run_program("train", jobs, "--check").stdout, told)
        self.assertRegex(self.run_program("train", jobs, "--output-dir", self.path / "auto").stdout, told)
        named = self.run_program("train", jobs, "--check", "--set", "model.dtype=float32").stdout
        self.assertNotIn("model.dtype", named)

    def test_a_rate_that_is_never_reached_is_told_by_check_and_start(self):
        jobs = self.write_jobs("{name: a, data: {train: plain.jsonl}, train: {steps: 2, lr: 1e-3, warmup_steps: 4}}",
                               "{name: b, data: {train: plain.jsonl}, train: {steps: 1, lr: 1e-3, warmup_ratio: 0.03}}",
                               "{name: c, data: {train: plain.jsonl}, train: {steps: 2, lr: 1e-3, warmup_steps: 1}}")
        told = ("its rate comes to 0.00025 of 0.001 at most: its warm-up takes 4 steps, and it has 2",
                "its rate comes to 0 of 0.001 at most: its warm-up takes 1 step, and it has 1")
        checked = self.run_program("train", jobs, "--check").stdout
        for each in told:
            self.assertEqual(checked.count(f"warning: {each}"), 1, checked)
        self.assertEqual(checked.count("its rate comes to"), 2, checked)
        started = self.run_program("train", jobs, "--output-dir", self.path / "run").stdout
        for job, each in zip("ab", told):
            self.assertIn(f"job `{job}`: {each}", started)


class Json(Check):
    def check(self, jobs, *options, expect=0):
        done = self.run_program("train", jobs, "--check", "--json", "--output-dir", self.path / "run", *options, expect=expect)
        self.assertEqual(done.stdout.count("\n"), 1)
        return json.loads(done.stdout), done.stderr

    def test_says_what_each_job_would_train(self):
        report, errors = self.check(self.jobs_file())
        self.assertEqual((report["event"], report["ready"], report["mistakes"], errors), ("check", True, [], ""))
        self.assertEqual([job["name"] for job in report["jobs"]], list(METHODS))
        for job in report["jobs"]:
            self.assertEqual(job["steps"], 30)
            self.assertEqual(job["train"]["examples"] + job["held_out"]["examples"], 24)
            self.assertGreater(job["train"]["max"], job["train"]["min"])
            self.assertEqual([(file["format"], file["records"]) for file in job["files"]], [("tokens", 24)])
            self.assertGreater(job["values"], 0)
            self.assertEqual(job["warnings"], [])
            self.assertLessEqual(job["peak_bytes"], report["peak_bytes"])
        self.assertLess(report["peak_bytes"], report["memory_limit_bytes"])

    def test_says_of_a_rate_that_is_never_reached(self):
        report, _ = self.check(self.write_jobs("{name: a, data: {train: plain.jsonl}, train: {steps: 2, lr: 1e-3, warmup_steps: 4}}"))
        self.assertEqual([warning[:40] for warning in report["jobs"][0]["warnings"]], ["its rate comes to 0.00025 of 0.001 at mo"])

    def test_lists_the_mistakes_with_their_places(self):
        report, errors = self.check(self.write_jobs("{name: a, data: {train: plain.jsonl}, adapter: {r: 0}}"), expect=2)
        self.assertFalse(report["ready"])
        self.assertEqual(report["jobs"], [])
        (mistake,) = report["mistakes"]
        self.assertTrue(mistake.pop("file").endswith("jobs.yaml"))
        self.assertEqual(mistake, {"line": 4, "field": "jobs[0].adapter.r",
                                   "message": "must be a whole number from 1 to 512, got 0"})
        self.assertIn("got 0", errors)


class Memory(Check):
    def test_a_job_that_can_never_fit_is_refused_with_the_term_that_overflows(self):
        row = json.dumps({"input_ids": [3] * 500, "labels": [3] * 500})
        (self.path / "long.jsonl").write_text((row + "\n") * 8)
        config = json.loads((self.path / "config.json").read_text())
        config.update(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8)
        (self.path / "config.json").write_text(json.dumps(config))
        jobs = self.write_jobs("{name: small, data: {train: plain.jsonl}, adapter: {r: 1}, train: {optimizer: sgd}}",
                               "{name: large, data: {train: long.jsonl}, adapter: {r: 512, target_modules: all-linear}}",
                               model="{config: ./config.json, weights: random, dtype: float32}")
        roomy = self.run_program("train", jobs, "--check", "--json", "--memory", "6GiB").stdout
        small, large = (job["peak_bytes"] for job in json.loads(roomy)["jobs"])
        left = json.loads(roomy)["memory_limit_bytes"]
        self.assertLess(2 * small, large)
        # What the process takes beside its tensors, and a limit between the two jobs.
        outside = 6 * 2**30 - left
        limit = f"{(outside + (2 * small + large) // 3) >> 10}KiB"
        done = self.run_program("train", jobs, "--check", "--memory", limit, expect=2)
        self.assertRegex(done.stderr, r"jobs\.yaml:5: jobs\.large: can never run within run\.memory: it needs \d+\.\d MiB by "
                                      r"itself, model included; the limit of \d+\.\d MiB leaves \d+\.\d MiB beside the program itself; "
                                      r"it is exceeded at (adapters|gradients|optimizer)")
        self.assertNotIn("jobs.small", done.stderr)

    def test_a_start_takes_what_a_check_says_is_ready(self):
        model = write_model(self.path / "model", layers=2, heads=2, head=32, inner=128, vocabulary=48000)
        jobs = self.write_jobs("{name: a, data: {train: plain.jsonl}, adapter: {r: 4}, train: {batch_size: 4, steps: 1}}",
                               model=f"{{path: {model}, dtype: float32}}")
        report = json.loads(self.run_program("train", jobs, "--check", "--json", "--memory", "6GiB").stdout)
        least = 6 * 2**30 - report["memory_limit_bytes"] + report["jobs"][0]["peak_bytes"]
        ready = 0
        for mib in range(-48, 9, 8):  # a job may take less alone in smaller rounds
            limit = f"{(least >> 10) + 1024 * mib}KiB"
            done = subprocess.run(self.command("train", jobs, "--check", "--memory", limit, "--output-dir", self.path / "run"), capture_output=True)
            if done.returncode == 0 and ready < 2:
                ready += 1
                self.run_program("train", jobs, "--memory", limit, "--output-dir", self.path / "run", "--overwrite")
        self.assertGreater(ready, 0)

    def test_a_model_that_does_not_fit_is_refused(self):
        for check in (["--check"], []):
            errors = self.run_program("train", self.jobs_file(), *check, "--memory", "2MiB", "--output-dir", self.path / "run",
                                      expect=2).stderr
            self.assertRegex(errors, r"(--memory|jobs\.yaml:\d+: run\.memory): 2MiB: the model alone takes \d+\.\d MiB while it is loaded; the limit of 2 MiB leaves -?\d+ MiB")


class OutputFolder(Check):
    def test_that_cannot_be_one_is_refused(self):
        jobs = self.jobs_file()
        (self.path / "file").write_text("")
        for place in ("file", "file/below"):
            self.assertRegex(self.refused(jobs, "--output-dir", self.path / place), r"file: is not a folder")
        self.assertIn("none: holds no run to resume", self.refused(jobs, "--output-dir", self.path / "none", "--resume"))

    def test_that_cannot_be_made_is_refused_by_the_reason(self):
        jobs = self.jobs_file()
        (self.path / "link").symlink_to("nowhere")
        (self.path / "locked" / "lock").mkdir(parents=True)
        for place, reason in (("link", "link: is a symbolic link to nowhere, which is not there"),
                              ("link/", "link: is a symbolic link to nowhere, which is not there"),
                              ("link/below", "link: is a symbolic link to nowhere, which is not there"),
                              ("locked", "locked/lock: is no file: a run keeps its lock there"),
                              ("/proc/none", "/proc/none: cannot be made: /proc: "), ("/proc", "/proc: cannot be written to: ")):
            with self.subTest(place):
                self.assertIn(reason, self.refused(jobs, "--output-dir", place if place.startswith("/") else f"{self.path}/{place}", starts=True))
        self.assertFalse((self.path / "nowhere").exists())

    def test_that_holds_a_run_is_refused_unless_told_what_to_do(self):
        jobs, folder = self.jobs_file(steps=2), self.path / "done"
        self.run_program("train", jobs, "--output-dir", folder)
        self.assertIn("holds a run already: pass --resume", self.refused(jobs, "--output-dir", folder, starts=True))
        self.run_program("train", jobs, "--check", "--output-dir", folder, "--overwrite")
        report = json.loads(self.run_program("train", jobs, "--check", "--json", "--output-dir", folder, "--resume").stdout)
        self.assertEqual([job["step"] for job in report["jobs"]], [2, 2, 2])
        errors = self.refused(jobs, "--output-dir", folder, "--resume", "--set", "jobs.plain.adapter.r=8", starts=True)
        self.assertIn("jobs.plain.adapter.r: 4, now 8", errors)
        (folder / "run.json").unlink()
        self.assertIn("done/jobs: is there, but", self.refused(jobs, "--output-dir", folder))

    def test_in_which_another_process_trains_is_refused(self):
        jobs, folder = self.jobs_file(steps=2), self.path / "busy"
        self.run_program("train", jobs, "--output-dir", folder)
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            errors = self.refused(jobs, "--output-dir", folder, "--resume", starts=True)
            self.assertRegex(errors, r"busy: process \d+ is training in this folder")
        self.run_program("train", jobs, "--check", "--output-dir", folder, "--resume")


class Commands(ProgramTest):
    def test_that_do_not_exist_get_a_suggestion(self):
        errors = self.run_program("trian", "jobs.yaml", expect=2).stderr
        self.assertRegex(errors, r"there is no command `trian`; did you mean `train`\?\ncommands: .*train.*data.*generate")
        self.assertRegex(self.run_program(expect=2).stderr, r"a command is needed: .*train.*--help")
        errors = self.run_program("train", "jobs.yaml", "--chek", "--token-budgt=3", "more", expect=2).stderr
        self.assertRegex(errors, r"train: `--chek` was not expected; did you mean `--check`\?")
        self.assertRegex(errors, r"train: `--token-budgt=3` was not expected; did you mean `--token-budget`\?")
        self.assertIn("train", self.run_program("--help").stdout)

    def test_start_without_the_variable_that_limits_spinning(self):
        bare = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        self.assertIn("cotune", self.run_program("--version", env=bare).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
