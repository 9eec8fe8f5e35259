#!/usr/bin/env python3
"""Jobs that start from an adapter that is there: which folders are taken, and what is refused. Standard library only.

    COTUNE=build/cotune python3 tests/cli/init_from_test.py [UNITTEST OPTIONS]
"""
import json
import re
import shutil
import struct
import unittest

from checks import Check
from tiny_models import ROOT, copy_model


class InitFromTest(Check):
    def setUp(self):
        super().setUp()
        self.first = self.jobs_file(steps=2, save_steps=1, jobs=["plain"])
        self.run_program("train", self.first, "--output-dir", self.path / "first")
        self.job = self.path / "first" / "jobs" / "plain"

    def jobs_from(self, place, adapter="r: 4, alpha: 8, target_modules: all-linear"):
        return self.write_jobs(f"{{name: next, data: {{train: plain.jsonl}}, adapter: {{{adapter}, init_from: {place}}}, "
                               "train: {steps: 1, shuffle: none, lr: 1e-3}}",
                               model="{config: ./config.json, weights: random, seed: 3, dtype: float32}")

    def lasting_jobs_from(self, place, save_steps):
        """With more steps than the pipe of a run that is watched holds."""
        jobs = self.jobs_from(place)
        jobs.write_text(jobs.read_text().replace("steps: 1,", f"steps: 150, save_steps: {save_steps},"))
        return jobs

    def kill_after(self, jobs, run, event_name):
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, lambda event: event["event"] == event_name)
        self.kill(process)


class InitFrom(InitFromTest):
    def test_starts_from_an_adapter_a_job_or_a_run_alike(self):
        results = []
        for place in (self.job / "adapter", self.job / "step-2", self.job, self.path / "first"):
            run = self.path / "next"
            self.run_program("train", self.jobs_from(place), "--output-dir", run)
            results.append((self.adapter("next", "next"), self.results("next")))
            shutil.rmtree(run)
        shutil.rmtree(self.job / "adapter")
        self.run_program("train", self.jobs_from(self.job), "--output-dir", self.path / "next")
        results.append((self.adapter("next", "next"), self.results("next")))
        self.assertEqual(len(results), 5)
        self.assertTrue(all(result == results[0] for result in results))
        shutil.rmtree(self.path / "next")
        fresh = self.jobs_from("x")
        fresh.write_text(fresh.read_text().replace(", init_from: x", ""))
        self.run_program("train", fresh, "--output-dir", self.path / "next")
        self.assertNotEqual(self.results("next"), results[0][1])

    def test_another_adapter_is_refused_with_every_difference(self):
        place = r"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: \S+adapter: is another adapter than this job's: "
        for adapter, wanted in (
                ("r: 8, alpha: 8, target_modules: all-linear", r"\S+_proj has rank 4, not 8 \(13 more differ\)"),
                ("r: 4, alpha: 9, use_rslora: true, target_modules: [q_proj]",
                 r"it adapts \S+ and 11 more; \S+q_proj has alpha 8, not 9 \(1 more differ\); its use_rslora is false, not true"),
                ("method: bottleneck", "its method is lora, not bottleneck")):
            self.assertRegex(self.refused(self.jobs_from(self.job, adapter)), place + wanted)

    def test_its_files_are_read(self):
        weights = self.job / "adapter" / "adapter_model.safetensors"
        good = weights.read_bytes()
        jobs = self.jobs_from(self.job / "adapter")
        for damaged, wanted in ((good[:-8], r"adapter_model\.safetensors: "),
                                (good[:-4] + struct.pack("<f", float("inf")), r"holds values that are not finite"),
                                (good.replace(b'"F32"', b'"I32"', 1), r"has type I32; accepted: F64, F32, F16, BF16")):
            weights.write_bytes(damaged)
            self.assertRegex(self.refused(jobs), r"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: .*" + wanted)
        pickled = weights.rename(weights.with_name("adapter_model.bin"))
        self.assertRegex(self.refused(jobs), r"init_from: \S+/adapter: holds adapter_model\.bin but no .*save_pretrained\('")
        pickled.unlink()
        self.assertRegex(self.refused(jobs, starts=True), r"init_from: .*adapter_model\.safetensors: cannot open")

    def test_a_damaged_checkpoint_is_refused(self):
        weights = self.job / "step-2/adapter_model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self.assertRegex(self.refused(self.jobs_from(self.job / "step-2"), starts=True),
                         r"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: \S+step-2/adapter_model\.safetensors: is damaged \(its checksum is not the one in")

    def test_an_adapter_of_peft_is_taken(self):
        copy_model(self.path / "model")
        (self.path / "text.jsonl").write_text('{"text": "hello"}\n')
        adapter = ROOT / "tests/engine/data/peft/smollm2/all_linear"
        config = json.loads((adapter / "adapter_config.json").read_text())
        jobs = self.write_jobs(f"{{name: a, data: {{train: text.jsonl}}, adapter: {{r: {config['r']}, alpha: {config['lora_alpha']}, "
                               f"target_modules: all-linear, init_from: {adapter}}}}}", model="{path: model}")
        self.assertIn("1 job is ready", self.run_program("train", jobs, "--check").stdout)

    def test_of_diff_pruning_has_the_entries_that_the_density_keeps(self):
        self.run_program("train", self.jobs_file(steps=2, jobs=["sparse"]), "--output-dir", self.path / "pruned")
        job = self.path / "pruned/jobs/sparse"
        self.assertRegex(self.refused(self.jobs_from(job, "method: diff_pruning, density: 0.04")),
                         r"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: \S+adapter: is another adapter than this job's: model\.layers\.0\.self_attn\.q_proj "
                         r"has 82 entries, and density 0\.04 keeps 164 \(13 more differ\); its density is 0\.02; give the job the adapter's settings")
        self.assertRegex(self.refused(self.jobs_from(job, "method: diff_pruning, density: 0.02, selection_batches: 2")),
                         r"jobs\.yaml:4: jobs\[0\]\.adapter\.selection_batches: `selection_batches` has no effect beside init_from")
        self.run_program("train", self.jobs_from(job, "method: diff_pruning, density: 0.02"), "--output-dir", self.path / "next")


class Overwritten(InitFromTest):
    def contents(self, folder):
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def test_a_run_that_a_job_starts_from_is_not_overwritten(self):
        run, link, linked = self.path / "first", self.path / "link", self.path / "linked"
        link.symlink_to(run)
        linked.mkdir()
        for file in (self.job / "adapter").glob("adapter_*"):
            (linked / file.name).symlink_to(file)
        before = self.contents(run)
        for place, output, options in ((self.job, run, []), (self.job, run, ["--check"]), (run, run, []), (self.job / "step-2", link, []),
                                       (link / "jobs/plain", run, []), (linked, run, [])):
            with self.subTest(place=place, output=output, options=options):
                errors = self.run_program("train", self.jobs_from(place), "--overwrite", "--output-dir", output, *options, expect=2).stderr
                self.assertRegex(errors, rf"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: {re.escape(str(place))}\S* lies in the earlier run in "
                                         rf"{re.escape(str(run.resolve()))}, which --overwrite would remove: give another output folder "
                                         r"\(run\.output_dir or --output-dir\), or copy it elsewhere first")
                self.assertEqual(self.contents(run), before)
        for _ in range(2):  # the second time over the first
            self.run_program("train", self.jobs_from(self.job), "--overwrite", "--output-dir", self.path / "next")
        self.assertEqual(self.contents(run), before)
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain"]), "--overwrite", "--output-dir", run)  # which starts from nothing there

    def test_nor_is_one_that_holds_another_input(self):
        for name in ("plain.jsonl", "config.json"):
            shutil.copy(self.path / name, self.job)
        (self.job / "chat.jinja").write_text("{{ messages }}")
        jobs = self.write_jobs(f"{{name: next, data: {{train: {self.job}/plain.jsonl, eval: {self.job}/plain.jsonl, chat_template: {self.job}/chat.jinja}}}}",
                               model=f"{{config: {self.job}/config.json, weights: random}}")
        inner = self.job / "jobs.yaml"
        shutil.copy(jobs, inner)
        errors = self.run_program("train", inner, "--overwrite", "--output-dir", self.path / "first", expect=2).stderr
        self.assertIn(f"{inner}: {inner} lies in the earlier run in ", errors)
        for place in (r"2: model\.config", r"4: jobs\[0\]\.data\.train", r"4: jobs\[0\]\.data\.eval", r"4: jobs\[0\]\.data\.chat_template"):
            self.assertRegex(errors, rf"jobs\.yaml:{place}: \S+ lies in the earlier run in ")
        self.assertTrue(inner.exists())
        for option in ("--plan", "--profile", "--device=emulated:"):
            file = self.job / "input.json"
            file.write_text("{}")
            given = [option, file] if option != "--device=emulated:" else [f"{option}{file}"]
            errors = self.run_program("train", self.jobs_file(steps=2, jobs=["plain"]), "--overwrite", "--output-dir", self.path / "first", *given,
                                      expect=2).stderr
            self.assertRegex(errors, rf"{option.split('=')[0]}: \S+input\.json lies in the earlier run in ")
            self.assertTrue(file.exists())


class Resumed(InitFromTest):
    def setUp(self):
        super().setUp()
        self.source = self.path / "source"
        shutil.copytree(self.job / "adapter", self.source)

    def resume(self, jobs, *options, expect=0):
        return self.run_program("train", jobs, "--resume", "--output-dir", self.path / "killed", *options, expect=expect)

    def assert_killed_is_whole(self):
        self.assertEqual(self.adapter("killed", "next"), self.adapter("whole", "next"))
        self.assertEqual(self.results("killed"), self.results("whole"))
        recorded = [json.loads((self.path / run / "run.json").read_text())["initial_adapters"] for run in ("killed", "whole")]
        self.assertEqual(recorded[0], recorded[1])
        self.assertEqual(list(recorded[0]), ["next"])

    def test_a_job_with_a_checkpoint_needs_no_initial_adapter(self):
        jobs = self.lasting_jobs_from(self.source, save_steps=5)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        self.kill_after(jobs, self.path / "killed", "checkpoint")
        shutil.rmtree(self.source)
        self.resume(jobs, "--check")
        self.resume(jobs)
        self.assert_killed_is_whole()
        self.resume(jobs)  # it has ended
        errors = self.run_program("train", jobs, "--overwrite", "--output-dir", self.path / "killed", expect=2).stderr
        self.assertRegex(errors, r"jobs\.yaml:4: jobs\[0\]\.adapter\.init_from: no such file or folder: \S+source")

    def test_a_job_without_a_checkpoint_starts_from_the_same_adapter_or_not_at_all(self):
        jobs = self.lasting_jobs_from(self.source, save_steps=0)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        self.kill_after(jobs, self.path / "killed", "step")
        self.assertFalse((self.path / "killed/jobs/next/latest").exists())
        weights = self.source / "adapter_model.safetensors"
        good = weights.read_bytes()
        weights.write_bytes(good[:-4] + struct.pack("<f", 0.5))
        for options in (["--check"], []):
            self.assertIn(f"jobs.next.adapter.init_from: {self.source} does not hold the adapter that the job was to start from, and the job has no "
                          "checkpoint yet", self.resume(jobs, *options, expect=2).stderr)
        weights.write_bytes(good)
        moved = self.source.rename(self.path / "moved")
        self.assertIn("init_from: no such file or folder", self.resume(jobs, expect=2).stderr)
        self.resume(jobs, "--set", f"jobs.next.adapter.init_from={moved}")  # where it lies may change
        self.assert_killed_is_whole()


if __name__ == "__main__":
    unittest.main(verbosity=2)
