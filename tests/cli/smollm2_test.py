#!/usr/bin/env python3
"""SmolLM2 itself: jobs in company and alone, and a run that is killed. Standard library only.

    COTUNE=build/cotune python3 tests/cli/smollm2_test.py [UNITTEST OPTIONS]
"""
import json
import random
import unittest

import needs
from program import METHODS, ProgramTest

WORDS = "the of a film that is and never quite knows what it wants to say but says so with some grace".split()


class SmolLm2(ProgramTest):
    def jobs_of(self, names, steps=4):
        generator = random.Random(11)
        text = f"cotune: 1\nmodel: {{path: {json.dumps(str(needs.SMOLLM2))}}}\njobs:\n"
        for name in METHODS:
            rows = [{"prompt": " ".join(generator.choices(WORDS, k=generator.randrange(4, 20))), "completion": " good"} for _ in range(12)]
            (self.path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            if name in names:
                text += (f"  - {{name: {name}, data: {{train: {name}.jsonl}}, adapter: {METHODS[name]}, "
                         f"train: {{batch_size: 2, steps: {steps}, lr: 1e-3, save_steps: 1}}}}\n")
        path = self.path / f"{'-'.join(names)}.yaml"
        path.write_text(text)
        return path

    def losses(self, run, job):
        return [event["loss"] for event in self.metrics(run) if event["event"] == "step" and event["job"] == job]

    @needs.required("smollm2")
    def test_jobs_train_as_alone_and_a_killed_run_ends_with_the_same_bits(self):
        together = self.jobs_of(tuple(METHODS))
        self.run_program("train", together, "--output-dir", self.path / "together")
        for job in METHODS:
            self.run_program("train", self.jobs_of((job,)), "--output-dir", self.path / job)
            ours, alone = self.losses("together", job), self.losses(job, job)
            self.assertEqual(len(ours), 4)
            if needs.is_here("kernels"):
                self.assertEqual(self.adapter("together", job), self.adapter(job, job), "our kernels: to the bit")
            for a, b in zip(ours, alone):  # ATen: within rounding of bf16
                self.assertLess(abs(a - b), 0.02 * abs(b), job)
        process = self.start_program("train", together, "--output-dir", self.path / "killed", "--json")
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] == 2)
        self.kill(process)
        self.run_program("train", together, "--output-dir", self.path / "killed", "--resume")
        for job in METHODS:
            self.assertEqual(self.adapter("killed", job), self.adapter("together", job), job)

    @needs.required("smollm2")
    def test_ranks_that_divide_its_layers_leave_what_one_rank_leaves(self):
        jobs = self.jobs_of(tuple(METHODS), steps=2)
        for run, options in (("one", []), ("three", ["--parallel=tp=3"])):
            self.run_program("train", jobs, "--set", "model.dtype=float64", "--output-dir", self.path / run, *options)
        for job in METHODS:
            ours, alone = self.losses("three", job), self.losses("one", job)
            self.assertEqual(len(ours), 2)
            for a, b in zip(ours, alone):
                self.assertLess(abs(a - b), 1e-9 * abs(b), job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
