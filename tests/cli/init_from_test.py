#!/usr/bin/env python3
"""Jobs that start from an adapter that is there: which folders are taken, and what is refused. Standard library only.

    COTUNE=build/cotune python3 tests/cli/init_from_test.py [UNITTEST OPTIONS]
"""
import json
import shutil
import struct
import unittest

from checks import Check
from tiny_models import ROOT, copy_model


class InitFrom(Check):
    def setUp(self):
        super().setUp()
        self.first = self.jobs_file(steps=2, save_steps=1, jobs=["plain"])
        self.run_program("train", self.first, "--output-dir", self.path / "first")
        self.job = self.path / "first" / "jobs" / "plain"

    def jobs_from(self, place, adapter="r: 4, alpha: 8, target_modules: all-linear"):
        return self.write_jobs(f"{{name: next, data: {{train: plain.jsonl}}, adapter: {{{adapter}, init_from: {place}}}, "
                               "train: {steps: 1, shuffle: none, lr: 1e-3}}",
                               model="{config: ./config.json, weights: random, seed: 3, dtype: float32}")

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
        weights.unlink()
        self.assertRegex(self.refused(jobs, starts=True), r"init_from: .*adapter_model\.safetensors: cannot open")

    def test_an_adapter_of_peft_is_taken(self):
        copy_model(self.path / "model")
        (self.path / "text.jsonl").write_text('{"text": "hello"}\n')
        adapter = ROOT / "tests/engine/data/peft/smollm2/all_linear"
        config = json.loads((adapter / "adapter_config.json").read_text())
        jobs = self.write_jobs(f"{{name: a, data: {{train: text.jsonl}}, adapter: {{r: {config['r']}, alpha: {config['lora_alpha']}, "
                               f"target_modules: all-linear, init_from: {adapter}}}}}", model="{path: model}")
        self.assertIn("1 job is ready", self.run_program("train", jobs, "--check").stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
