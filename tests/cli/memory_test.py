#!/usr/bin/env python3
"""--memory against the size of the process as the system counts it. Standard library only.

    COTUNE=build/cotune python3 tests/cli/memory_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import random
import subprocess
import unittest

from program import ROOT, ProgramTest

MIB = 1 << 20
SMOLLM2 = pathlib.Path(os.environ.get("COTUNE_SMOLLM2", ROOT / "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"))
# Equal bits whatever the token budget are what our kernels promise; ATen agrees within rounding.
OWN_KERNELS = ("avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text().split()
               and os.environ.get("COTUNE_CPU_ISA") not in ("none", "avx512"))
# Wide enough for activations to count beside the libraries' own 200 MiB, small enough to be trained in a second.
WIDE = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
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
        """The summary, and the peak of the process's resident memory by the system's count."""
        with open(self.path / "errors", "wb") as errors:
            process = subprocess.Popen(self.command("train", jobs, "--output-dir", self.path / run, "--memory", limit, *options),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = (self.path / "errors").read_text()
        self.assertIn(process.returncode, (0, 1), said)  # 1: a job was refused
        return json.loads((self.path / run / "summary.json").read_text()), usage.ru_maxrss * 1024, said

    def hold_to_limits(self, jobs, shares, *options):
        """Trains under limits of these shares of what the process takes without one: less than it would, enough for it."""
        unbound, most, _ = self.train(jobs, "unbound", "64GiB", *options, "--overwrite")
        self.assertEqual({job["status"] for job in unbound["jobs"]}, {"finished"})
        for share in shares:
            limit = int(most * share)
            summary, peak, said = self.train(jobs, f"limit-{share}", f"{limit // MIB}MiB", *options, "--overwrite")
            self.assertLessEqual(max(peak, summary["peak_rss_bytes"]), limit, f"{share} of {most}: {said}")
            for job in summary["jobs"]:
                self.assertIn(job["status"], ("finished", "refused"), job)
                if OWN_KERNELS and job["status"] == "finished":
                    self.assertEqual(self.adapter(f"limit-{share}", job["name"]), self.adapter("unbound", job["name"]))
            self.assertIn("finished", {job["status"] for job in summary["jobs"]}, f"{share} of {most}: {said}")

    def test_of_mixes_of_methods_is_never_exceeded(self):
        (self.path / "config.json").write_text(json.dumps(WIDE))
        for names in (("wide", "narrow"), tuple(ADAPTERS)):
            jobs = self.write_jobs("config: ./config.json, weights: random, seed: 3", names)
            self.hold_to_limits(jobs, (0.9, 0.75), "--token-budget", "4096")

    @unittest.skipUnless(SMOLLM2.exists(), "no SmolLM2 here: scripts/demo-data --model-only fetches it")
    def test_of_smollm2_is_never_exceeded(self):
        jobs = self.write_jobs(f"path: {SMOLLM2}", ("wide", "narrow", "bottleneck"), steps=1, longest=120)
        self.hold_to_limits(jobs, (0.8,))


if __name__ == "__main__":
    unittest.main(verbosity=2)
