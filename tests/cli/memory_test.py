#!/usr/bin/env python3
"""--memory against the size of the process as the system counts it. Standard library only.

    COTUNE=build/cotune python3 tests/cli/memory_test.py [UNITTEST OPTIONS]

COTUNE_MEMORY_MIXES sets how many random mixes are run (default 8; 200 by scripts/test --large).
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

import needs
from program import PROGRAM, ProgramTest

sys.path.append(str(needs.ROOT / "bench"))
import long_row

MIB = 1 << 20
# Equal bits whatever the token budget are what our kernels promise; ATen agrees within rounding.
OWN_KERNELS = needs.is_here("kernels")
MIXES = int(os.environ.get("COTUNE_MEMORY_MIXES", "8"))
# Wide enough for activations to count beside the libraries' own 200 MiB, small enough to be trained in a second.
WIDE = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
# One head of our attention's widest: of a long row its scratch, keys and values, and rotary tables are most of what is taken.
LONG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 128, "vocab_size": 512, "hidden_act": "silu",
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}
ADAPTERS = {
    "wide": "{method: lora, r: 64, alpha: 64, dropout: 0.1, target_modules: all-linear}",
    "narrow": "{method: lora, r: 4, alpha: 8, target_modules: [q_proj, v_proj]}",
    "bottleneck": "{method: bottleneck, bottleneck_size: 64}",
    "sparse": "{method: diff_pruning, density: 0.01, selection_batches: 1}",
}


class Memory(ProgramTest):
    def write_jobs(self, model, names, steps=3, longest=400, dtype="bfloat16"):
        generator = random.Random(3)
        text = f"cotune: 1\nmodel: {{{model}, dtype: {dtype}}}\n"
        text += f"defaults: {{train: {{batch_size: 8, steps: {steps}, lr: 1e-3, save_steps: 2}}}}\njobs:\n"
        for name in names:
            rows = []
            for _ in range(24):
                ids = [generator.randrange(3, 4000) for _ in range(generator.randrange(longest // 2, longest))]
                rows.append(json.dumps({"input_ids": ids, "labels": ids}))
            (self.path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
            text += f"  - {{name: {name}, data: {{train: {name}.jsonl, format: tokens}}, adapter: {ADAPTERS[name]}}}\n"
        (self.path / "jobs.yaml").write_text(text)
        return self.path / "jobs.yaml"

    def train(self, jobs, run, limit, *options):
        """The summary (none where the start was refused), and the peak of the process's resident memory by the system's count."""
        with open(self.path / "errors", "wb") as errors:
            process = subprocess.Popen(self.command("train", jobs, "--output-dir", self.path / run, "--memory", limit, *options),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = (self.path / "errors").read_text()
        self.assertIn(process.returncode, (0, 1, 2), said)  # 1: a job was refused
        if process.returncode == 2:
            return None, usage.ru_maxrss * 1024, said
        return json.loads((self.path / run / "summary.json").read_text()), usage.ru_maxrss * 1024, said

    def hold_to_limits(self, jobs, shares, *options):
        """Trains under limits of these shares of what the process takes without one: less than it would, enough for it."""
        unbound, most, _ = self.train(jobs, "unbound", "64GiB", *options, "--overwrite")
        self.assertEqual({job["status"] for job in unbound["jobs"]}, {"finished"})
        for share in shares:
            limit = int(most * share)
            summary, peak, said = self.train(jobs, f"limit-{share}", f"{limit // MIB}MiB", *options, "--overwrite")
            self.assertIsNotNone(summary, said)
            self.assertLessEqual(max(peak, summary["peak_rss_bytes"]), limit, f"{share} of {most}: {said}")
            for job in summary["jobs"]:
                self.assertIn(job["status"], ("finished", "refused"), job)
            finished = [job["name"] for job in summary["jobs"] if job["status"] == "finished"]
            self.assertTrue(finished, f"{share} of {most}: {said}")
            if OWN_KERNELS:
                self.assert_equal_adapters(f"limit-{share}", "unbound", finished)

    def test_of_mixes_of_methods_is_never_exceeded(self):
        (self.path / "config.json").write_text(json.dumps(WIDE))
        for names in (("wide", "narrow"), tuple(ADAPTERS)):
            jobs = self.write_jobs("config: ./config.json, weights: random, seed: 3", names)
            self.hold_to_limits(jobs, (0.9, 0.75), "--token-budget", "4096")

    def one_long_row(self, tokens):
        """A job that makes one step with one row, in float32."""
        (self.path / "config.json").write_text(json.dumps(LONG))
        ids = [3 + i % 500 for i in range(tokens)]
        (self.path / f"row{tokens}.jsonl").write_text(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
        (self.path / f"row{tokens}.yaml").write_text(
            "cotune: 1\nmodel: {config: ./config.json, weights: random, dtype: float32}\njobs:\n"
            f"  - {{name: long, data: {{train: row{tokens}.jsonl, format: tokens}}, adapter: {ADAPTERS['narrow']},\n"
            "     train: {batch_size: 1, steps: 1}}\n")
        return self.path / f"row{tokens}.yaml"

    @needs.required("kernels")  # ATen's attention takes minutes for such a row
    def test_of_a_row_of_32768_tokens_is_never_exceeded(self):
        jobs = self.one_long_row(32768)
        for limit in (333, 768):
            summary, peak, said = self.train(jobs, f"long-{limit}", f"{limit}MiB", "--token-budget", "1024", "--threads", "2")
            self.assertLessEqual(peak, limit * MIB, said)
        self.assertEqual([job["status"] for job in summary["jobs"]], ["finished"], said)

    def predicted_peak(self, tokens, threads):
        done = self.run_program("train", self.one_long_row(tokens), "--check", "--json", "--output-dir", self.path / "checked", "--memory", "64GiB",
                                "--token-budget", "256", "--recompute", "always", "--threads", threads)
        return json.loads(done.stdout)["peak_bytes"]

    @needs.required("kernels")
    def test_that_is_predicted_grows_with_the_threads_of_attention_and_the_row(self):
        tokens, holes = 16384, 1.05
        of_thread = holes * 20 * LONG["head_dim"] * tokens  # float32
        cores = os.cpu_count()
        more = self.predicted_peak(tokens, 3 * cores + 2) - self.predicted_peak(tokens, 2 * cores + 1)
        self.assertGreaterEqual(more, (cores + 1) * of_thread, "threads beyond the cores work, too")
        self.assertLessEqual(more, (cores + 1) * (of_thread + MIB))
        # Inputs of the layer and of the head; keys, values and their gradients; scratch. Rotary tables are weights.
        of_token = holes * (2 * 128 * 4 + 2 * 128 * (4 + 4) + 20 * 128) + 128 * 4
        longer = self.predicted_peak(3 * tokens, 1) - self.predicted_peak(tokens, 1)
        self.assertAlmostEqual(longer / (2 * tokens), of_token, delta=0.01 * of_token)

    def held_out_rows(self, dice, job):
        """A part of the rows to train on, or, of one job in three, a file with many times the rows of a batch."""
        if dice.randrange(3) > 0:
            return "eval_fraction: 0.3"
        longest = dice.choice((120, 300, 600))
        rows = ([dice.randrange(3, 4000) for _ in range(dice.randrange(longest // 4, longest))] for _ in range(dice.randrange(40, 120)))
        (self.path / f"held{job}.jsonl").write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for ids in rows))
        return f"eval: held{job}.jsonl"

    def random_mix(self, number):
        """Writes a random jobs file and returns it with random options and a random limit in MiB."""
        dice, held_out_dice = random.Random(1000 + number), random.Random(2000 + number)
        text = "cotune: 1\nmodel: {config: ./config.json, weights: random, dtype: %s}\njobs:\n" % dice.choice(("bfloat16", "float32"))
        for job in range(dice.randrange(1, 5)):
            targets = dice.choice(("all-linear", "[q_proj, v_proj]", "[down_proj]"))
            adapter = dice.choice((
                f"{{method: lora, r: {dice.choice((2, 16, 128))}, dropout: {dice.choice((0, 0.1))}, target_modules: {targets}}}",
                f"{{method: bottleneck, bottleneck_size: {dice.choice((8, 64, 200))}}}",
                f"{{method: diff_pruning, density: {dice.choice((0.001, 0.02))}, selection_batches: 1}}"))
            longest = dice.choice((30, 120, 300))
            lengths = [dice.randrange(longest // 4, longest) for _ in range(24)]
            rows = [json.dumps({"input_ids": ids, "labels": ids}) for ids in ([dice.randrange(3, 4000) for _ in range(n)] for n in lengths)]
            (self.path / f"mix{job}.jsonl").write_text("\n".join(rows) + "\n")
            text += (f"  - {{name: mix{job}, priority: {dice.randrange(3)}, adapter: {adapter},\n"
                     f"     data: {{train: mix{job}.jsonl, format: tokens, {self.held_out_rows(held_out_dice, job)}}},\n"
                     f"     train: {{batch_size: {dice.choice((1, 4, 8))}, steps: 2, lr: 1e-3, save_steps: 1}}}}\n")
        (self.path / "mix.yaml").write_text(text)
        options = ["--token-budget", dice.choice((256, 1024, 4096)), "--layout", dice.choice(("ragged", "ragged", "chunked", "padded")),
                   "--sharing", dice.choice(("hybrid", "hybrid", "temporal", "batch-all", "separate")),
                   "--recompute", dice.choice(("auto", "auto", "never", "always"))]
        return self.path / "mix.yaml", options, dice.randrange(180, 420)

    def test_of_random_mixes_is_never_exceeded(self):
        (self.path / "config.json").write_text(json.dumps(WIDE))
        finished = refused = relieved = 0
        for number in range(MIXES):
            jobs, options, limit = self.random_mix(number)
            summary, peak, said = self.train(jobs, f"mix{number}", f"{limit}MiB", *options)
            where = f"mix {number}: {options}, {limit} MiB, {peak / MIB:.1f} MiB taken, {said}"
            if summary is None:  # nothing was trained: not even the weights would fit
                self.assertIn("--memory: ", said, where)
                refused += 1
                continue
            self.assertLessEqual(max(peak, summary["peak_rss_bytes"]), limit * MIB, where)
            for job in summary["jobs"]:
                self.assertIn(job["status"], ("finished", "refused"), (where, job))
                if job["status"] == "refused":  # before its first step, with what it would take too much of
                    self.assertEqual(job["step"], 0, (where, job))
                    self.assertIn("it is exceeded at ", job["reason"], where)
                finished += job["status"] == "finished"
                refused += job["status"] != "finished"
            relieved += "relief" in json.loads((self.path / f"mix{number}" / "run.json").read_text())
        # The limits were neither all too small nor all without effect.
        self.assertGreater(finished, 0)
        self.assertGreater(refused + relieved, 0)
        if os.environ.get("COTUNE_MEMORY_MIXES"):
            print(f"{MIXES} mixes: {finished} jobs finished, {refused} refused, {relieved} runs made smaller")

    @needs.required("smollm2")
    def test_of_smollm2_is_never_exceeded(self):
        jobs = self.write_jobs(f"path: {needs.SMOLLM2}", ("wide", "narrow", "bottleneck"), steps=1, longest=120)
        self.hold_to_limits(jobs, (0.8,))

    @needs.required("smollm2", "kernels")  # ATen's operators take minutes
    def test_of_a_row_of_8192_tokens_of_smollm2_is_the_weights_and_a_gibibyte_and_a_half(self):
        taken = long_row.train(PROGRAM, needs.SMOLLM2, dtype="bfloat16" if OWN_KERNELS else "float32")
        self.assertEqual(taken["jobs"][0]["status"], "finished")
        self.assertEqual(taken["jobs"][0]["trained_tokens"], 8192)
        self.assertLessEqual(taken["tensors"], long_row.GOAL_BYTES)
        self.assertLessEqual(taken["process"], long_row.GOAL_BYTES)


if __name__ == "__main__":
    unittest.main(verbosity=2)
