#!/usr/bin/env python3
"""The program through its command line: training, mistakes, stopping and killing. Standard library only.

    COTUNE=build/cotune python3 tests/cli/command_line_test.py [UNITTEST OPTIONS]

COTUNE_KILLS sets at how many instants a run is killed (default 8).
"""
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

PROGRAM = os.environ.get("COTUNE", "build/cotune")
KILLS = int(os.environ.get("COTUNE_KILLS", "8"))
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 160, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
METHODS = {
    "plain": "{method: lora, r: 4, alpha: 8, dropout: 0.1, target_modules: all-linear}",
    "bottleneck": "{method: bottleneck, bottleneck_size: 8}",
    "sparse": "{method: diff_pruning, density: 0.02, selection_batches: 2}",
}


class CommandLine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="cotune-cli-")
        self.path = pathlib.Path(self.folder.name)
        (self.path / "config.json").write_text(json.dumps(CONFIG))
        generator = random.Random(7)
        for name in METHODS:
            rows = []
            for _ in range(24):
                ids = [generator.randrange(3, 15) for _ in range(generator.randrange(4, 60))]
                rows.append(json.dumps({"input_ids": ids, "labels": [-100] + ids[1:]}))
            (self.path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")

    def tearDown(self):
        self.folder.cleanup()

    def jobs_file(self, steps=30, save_steps=3, extra=""):
        text = "cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\n"
        text += f"defaults: {{train: {{batch_size: 4, steps: {steps}, lr: 3e-3, save_steps: {save_steps}}}}}\njobs:\n"
        for name, adapter in METHODS.items():
            text += f"  - {{name: {name}, data: {{train: {name}.jsonl, eval_fraction: 0.2}}, adapter: {adapter}}}\n"
        path = self.path / "jobs.yaml"
        path.write_text(text + extra)
        return str(path)

    def command(self, *arguments):
        return [PROGRAM, *map(str, arguments)]

    def run_program(self, *arguments, expect=0):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def adapters(self, run):
        return {name: (self.path / run / "jobs" / name / "adapter" / "adapter_model.safetensors").read_bytes()
                for name in METHODS}

    def test_trains_every_job_and_leaves_adapters_and_a_summary(self):
        done = self.run_program("train", self.jobs_file(), "--json", "--output-dir", self.path / "run")
        summary = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual(summary["event"], "summary")
        for job in summary["jobs"]:
            self.assertEqual(job["status"], "finished")
            self.assertLess(job["eval_loss"], job["start_eval_loss"])
            self.assertEqual(len(summary["losses"][job["name"]]), 30)
        self.assertEqual(len(self.adapters("run")), 3)

    def test_killed_at_random_instants_and_resumed_ends_with_equal_bits(self):
        jobs = self.jobs_file()
        begin = time.monotonic()
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        duration = time.monotonic() - begin
        expected = self.adapters("whole")
        generator = random.Random(11)
        kills = 0
        run = self.path / "killed"
        while kills < KILLS:
            resume = ["--resume"] if (run / "run.json").exists() else []
            process = subprocess.Popen(self.command("train", jobs, "--output-dir", run, *resume),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            time.sleep(generator.uniform(0.3, 1.0) * duration)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
            self.assertIn(process.returncode, (0, -signal.SIGKILL), errors)
            kills += 1
        self.run_program("train", jobs, "--output-dir", run, *(["--resume"] if (run / "run.json").exists() else []))
        self.assertEqual(self.adapters("killed"), expected)

    def test_a_signal_saves_and_the_run_goes_on(self):
        jobs = self.jobs_file(steps=400, save_steps=0)
        run = self.path / "stopped"
        process = subprocess.Popen(self.command("train", jobs, "--json", "--output-dir", run), stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if json.loads(line).get("step", 0) >= 3:
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertTrue(json.loads(output.strip().splitlines()[-1])["interrupted"])
        self.assertTrue((run / "jobs" / "plain" / "latest").exists())
        self.run_program("train", jobs, "--output-dir", run, "--resume")

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
