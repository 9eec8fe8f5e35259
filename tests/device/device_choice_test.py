#!/usr/bin/env python3
"""--device of train and generate on a machine whose GPU, if it has one, is hidden. Standard library only.

    COTUNE=build/cotune COTUNE_FAKES=build/tests/fakes python3 tests/device/device_choice_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("COTUNE", "build/cotune")
FAKES = pathlib.Path(os.environ.get("COTUNE_FAKES", "build/tests/fakes")).resolve()
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 160, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
JOBS = """cotune: 1
model: {config: ./config.json, weights: random, seed: 3, dtype: float32}
defaults: {train: {batch_size: 2, steps: 3, lr: 1e-3}}
jobs:
  - {name: job, data: {train: job.jsonl}, adapter: {r: 4, target_modules: all-linear}}
"""


class DeviceChoice(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cotune-device-")
        self.path = pathlib.Path(self.folder.name)
        (self.path / "config.json").write_text(json.dumps(CONFIG))
        (self.path / "jobs.yaml").write_text(JOBS)
        rows = [{"input_ids": list(range(3, 20)), "labels": list(range(3, 20))}] * 4
        (self.path / "job.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")

    def tearDown(self):
        self.folder.cleanup()

    def run_program(self, *arguments, driver=None):
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")  # no device, whatever the machine has
        if driver is not None:  # the system's search finds the stand-in under the driver's name
            libraries = self.path / "libraries"
            libraries.mkdir(exist_ok=True)
            shutil.copy(FAKES / f"lib{driver}.so", libraries / "libcuda.so.1")
            environment["LD_LIBRARY_PATH"] = str(libraries)
        return subprocess.run([PROGRAM, *map(str, arguments)], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300)

    def train(self, name, *arguments, driver=None):
        return self.run_program("train", self.path / "jobs.yaml", "--output-dir", self.path / name, *arguments, driver=driver)

    def adapter(self, name):
        return (self.path / name / "jobs/job/adapter/adapter_model.safetensors").read_bytes()

    def test_auto_without_a_device_is_the_cpu(self):
        for name, arguments in (("cpu", ["--device", "cpu"]), ("auto", ["--device", "auto"]), ("default", [])):
            run = self.train(name, *arguments)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(json.loads((self.path / name / "summary.json").read_text())["device"], "cpu")
            self.assertEqual(self.adapter(name), self.adapter("cpu"))

    def test_cuda_without_a_device_says_what_is_missing(self):
        run = self.train("cuda", "--device", "cuda")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, r"--device: cuda: .*(driver|device).*`cpu` and `auto` are available")
        self.assertFalse((self.path / "cuda").exists(), "a run that cannot start leaves nothing behind")
        check = self.train("cuda", "--device", "cuda", "--check")
        self.assertEqual(check.returncode, 2)
        self.assertEqual(check.stderr, run.stderr)

    def test_generate_says_it_too(self):
        run = self.run_program("generate", "--model", self.path, "--prompt", "x", "--device", "cuda")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, r"--device: cuda: .*(driver|device).*`cpu` and `auto` are available")

    def test_a_driver_that_names_a_device_which_cannot_be_used_does_no_harm(self):
        # With the real plugin where it was built: CUDA's libraries are loaded, or fail to, and the CPU goes on.
        expected = self.train("cpu", "--device", "cpu")
        self.assertEqual(expected.returncode, 0, expected.stderr)
        run = self.train("auto", driver="fake_driver")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("the GPU is not used: ", run.stderr)
        self.assertEqual(self.adapter("auto"), self.adapter("cpu"))
        wished = self.train("cuda", "--device", "cuda", driver="fake_driver")
        self.assertEqual(wished.returncode, 2)
        self.assertIn("--device: cuda: ", wished.stderr)


if __name__ == "__main__":
    unittest.main()
