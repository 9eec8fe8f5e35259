#!/usr/bin/env python3
"""Training through the command line on one device against another. Standard library only.

    COTUNE=build/cotune [COTUNE_TEST_DEVICE=cuda] python3 tests/device/device_results_test.py [UNITTEST OPTIONS]

Without COTUNE_TEST_DEVICE the CPU's portable kernels, the operators that a GPU uses too, stand in for the device.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from rank_launch import free_port, torchrun

PROGRAM = os.environ.get("COTUNE", "build/cotune")
DEVICE = os.environ.get("COTUNE_TEST_DEVICE", "cpu")
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 160, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
JOBS = {
    "dropped": "adapter: {r: 4, alpha: 8, dropout: 0.2, target_modules: all-linear}, train: {max_grad_norm: 0.3}",
    "momentum": "adapter: {r: 3, target_modules: [q_proj, down_proj]}, train: {optimizer: sgd, momentum: 0.9, lr: 1e-2}",
    "bottleneck": "adapter: {method: bottleneck, bottleneck_size: 8, activation: gelu}",
    "sparse": "adapter: {method: diff_pruning, density: 0.02, selection_batches: 2}",
}
# Relative: of losses over the steps. In bfloat16 each device rounds in its own order.
LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}


class DeviceResults(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cotune-device-")
        self.path = pathlib.Path(self.folder.name)
        (self.path / "config.json").write_text(json.dumps(CONFIG))
        generator = random.Random(11)
        for name in JOBS:
            rows = []
            for row in range(16):
                length = 400 if row % 8 == 0 else generator.randrange(4, 60)  # 400: a chain under the token budget
                ids = [generator.randrange(3, 40) for _ in range(length)]
                rows.append(json.dumps({"input_ids": ids, "labels": [-100, -100] + ids[2:]}))
            (self.path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")

    def tearDown(self):
        self.folder.cleanup()

    def train(self, name, dtype, *arguments, ranks=1):
        """Losses of every job, and the summary. ranks: processes."""
        text = f"cotune: 1\nmodel: {{config: ./config.json, weights: random, seed: 3, dtype: {dtype}}}\n"
        text += "defaults: {train: {batch_size: 4, steps: 8, lr: 3e-3}}\njobs:\n"
        text += "".join(f"  - {{name: {job}, data: {{train: {job}.jsonl, eval_fraction: 0.2}}, {rest}}}\n" for job, rest in JOBS.items())
        (self.path / f"{name}.yaml").write_text(text)
        command = [PROGRAM, "train", self.path / f"{name}.yaml", "--output-dir", self.path / name, "--token-budget", "256",
                   *arguments]
        port = free_port()
        runs = [subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**os.environ, **(torchrun(rank, ranks, port) if ranks > 1 else {})}) for rank in range(ranks)]
        self.said = ""
        for run in runs:
            output, _ = run.communicate(timeout=600)
            self.assertEqual(run.returncode, 0, output)
            self.said += output
        summary = json.loads((self.path / name / "summary.json").read_text())
        return summary["losses"], summary

    def compare(self, dtype, *arguments, ranks=1):
        """The summary of the device's run."""
        there = ["--device", DEVICE] if DEVICE != "cpu" else ["--device", "cpu", "--portable-kernels"]
        expected, reference = self.train("reference", dtype, "--device", "cpu", "--overwrite")
        found, summary = self.train("device", dtype, "--overwrite", *there, *arguments, ranks=ranks)
        for job in JOBS:
            self.assertEqual(len(found[job]), 8)
            for step, (ours, theirs) in enumerate(zip(found[job], expected[job])):
                self.assertLessEqual(abs(ours - theirs), LIMITS[dtype] * theirs, f"{job} step {step}: {ours}, on the CPU {theirs}")
        for ours, theirs in zip(summary["jobs"], reference["jobs"]):
            self.assertLessEqual(abs(ours["eval_loss"] - theirs["eval_loss"]), LIMITS[dtype] * theirs["eval_loss"], ours["name"])
        self.assertEqual("device_memory" in summary, DEVICE != "cpu")
        self.assertEqual([bool(re.search(rf"(?m)^{row} +\d\S* \S+  of ", self.said)) for row in ("the device", "the whole process")], [DEVICE != "cpu", DEVICE == "cpu"])
        return summary

    def test_float32(self):
        self.compare("float32")

    def test_bfloat16(self):
        self.compare("bfloat16")

    def test_two_processes(self):
        """On two GPUs tensors go from one to the other; one GPU they share, and tensors go by way of the host."""
        gpus = 0
        if DEVICE == "cuda":
            gpus = len(subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout.splitlines())
        for parallel in ("pp=2", "tp=2", "dp=2"):
            with self.subTest(parallel=parallel):
                summary = self.compare("float32", "--parallel", parallel, ranks=2)
                expected = {0: "", 1: "by way of the hosts: ranks 0 and 1 share a GPU"}.get(gpus, "by NCCL 2.")
                self.assertEqual(summary.get("gpu_messages", "")[:len(expected)], expected)


if __name__ == "__main__":
    unittest.main()
