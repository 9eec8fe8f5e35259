#!/usr/bin/env python3
"""`cotune profile` through its command line, and `cotune train --profile` with what it says."""
import json
import unittest

from program import ProgramTest


class ProfileTest(ProgramTest):
    def make_profile(self, *more):
        path = self.path / "profile.json"
        done = self.run_program("profile", self.path / "config.json", "--output", path, "--dtype", "float32", "--seconds", "0", *more)
        return path, done

    def test_a_tiny_model_is_profiled_and_predicted(self):
        path, done = self.make_profile()
        profile = json.loads(path.read_text())
        self.assertEqual(profile["fingerprint"]["dtype"], "float32")
        self.assertEqual(profile["layer_count"], 2)
        for name in ("embedding", "attention", "head", "qkv_proj", "down_adapter_gradient", "qkv_adapter_gradient_alone", "round"):
            times = profile["operators"][name]
            self.assertTrue(all(time["median_s"] > 0 and time["count"] >= 3 for time in times), name)
            self.assertIn(name, done.stdout)
        self.assertEqual({time["shape"] for time in profile["operators"]["attention"]}, set(range(len(profile["shapes"]))))

        jobs = self.jobs_file(steps=4, jobs=("plain", "bottleneck"))
        done = self.run_program("train", jobs, "--profile", path, "--json", "--set", f"run.output_dir={self.path / 'run'}")
        summary = json.loads(done.stdout.strip().splitlines()[-1])
        prediction = summary["prediction"]
        self.assertEqual(len(prediction["rounds"]), 4)
        for one in prediction["rounds"]:
            self.assertGreater(one["predicted_s"], 0)
            self.assertGreater(one["measured_s"], 0)
        self.assertGreater(prediction["operator_seconds"]["attention"], 0)
        if "bytes" in prediction:  # only where our kernels compute
            for kind in ("adapters", "gradients", "optimizer"):
                self.assertEqual(prediction["bytes"][kind]["predicted"], prediction["bytes"][kind]["measured"], kind)
            for job in ("plain", "bottleneck"):
                self.assertEqual(prediction["job_bytes"][job]["predicted"], prediction["job_bytes"][job]["measured"], job)
            self.assertGreater(prediction["process_bytes"]["predicted"], 0)

        done = self.run_program("train", jobs, "--profile", path, "--overwrite", "--set", f"run.output_dir={self.path / 'run'}")
        self.assertIn("a round took ", done.stdout)

    def test_ranks_that_compute_at_the_same_time_are_profiled_for_runs_on_as_many(self):
        path, done = self.make_profile("--ranks=2", "--threads=2")
        self.assertIn("2 ranks of 1 thread", done.stdout)
        profile = json.loads(path.read_text())
        fingerprint = profile["fingerprint"]
        self.assertEqual((fingerprint["ranks"], fingerprint["threads"]), (2, 1))
        kinds = ("message", "all_reduce", "reduce_scatter", "all_gather")
        hidden = json.loads((self.path / "config.json").read_text())["hidden_size"]
        for kind in kinds:
            own = [each for each in profile["collectives"] if each["kind"] == kind]
            self.assertTrue(all(each["ranks"] == 2 and each["median_s"] > 0 and each["spread"] >= 0 and each["count"] >= 3 for each in own), kind)
            sizes = [each["bytes"] for each in own]
            self.assertEqual(sizes, sorted(sizes))
            self.assertEqual(sizes[0], 64)
            tokens, rest = divmod(sizes[-1], 4 * hidden)
            self.assertEqual((900 < tokens <= 1024, rest), (True, 0), "the largest microbatch in f32")
            self.assertRegex(done.stdout, rf"(?m)^{kind}, 2 ranks +[0-9.]+ us +([0-9.]+ GB/s|any) ")
        self.assertEqual(len(profile["collectives"]), 4 * len(sizes))
        jobs = self.jobs_file(steps=2)
        train = ("train", jobs, "--profile", path, "--threads=2", "--output-dir")
        self.run_program(*train, self.path / "two", "--ranks=2")
        done = self.run_program(*train, self.path / "one", expect=2)
        self.assertIn("ranks: the profile has 2, here it is 1", done.stderr)
        # A step's activations and errors go over the link that was measured: two messages, one after the other.
        def predicted(*more):
            self.run_program(*train, self.path / "two", "--ranks=2", "--overwrite", "--replan=never", *more)
            return json.loads((self.path / "two" / "summary.json").read_text())["ranks_predicted_seconds"]
        usual = predicted("--parallel=stages")
        for each in profile["collectives"]:
            each["median_s"] += 0.25
        path.write_text(json.dumps(profile))
        self.assertGreater(predicted("--parallel=stages"), usual + 0.9)
        # So do the gradients of two replicas.
        self.assertGreater(predicted("--parallel=dp=2"), 0.9)
        profile["collectives"][1]["ranks"] = 3
        path.write_text(json.dumps(profile))
        done = self.run_program(*train, self.path / "three", "--ranks=2", expect=2)
        self.assertIn(f"{path}: profile.collectives[1].ranks: must be 2 for a message, got 3", done.stderr)

    def test_a_profile_by_the_roofline_of_a_cluster_file_is_planned_with(self):
        cluster, path, jobs = self.path / "cluster.yaml", self.path / "profile.json", self.path / "plan-jobs.yaml"
        cluster.write_text("cotune_cluster: 1\nnodes: [{count: 2, devices: 4, device: A40, link: pcie4}]\nnetwork: infiniband-100\n")
        jobs.write_text("cotune: 1\nmodel: {config: tinyllama-1.1b, weights: none}\n"
                        "jobs: [{name: only, data: {lengths: {200: 1}}, train: {steps: 10, batch_size: 16}}]\n")
        done = self.run_program("profile", "tinyllama-1.1b", "--cluster", cluster, "--output", path)
        self.assertIn("bfloat16 on A40, by the roofline of", done.stdout)
        profile = json.loads(path.read_text())
        self.assertEqual(profile["fingerprint"]["kernels"], "roofline")
        by_profile = self.run_program("plan", jobs, "--cluster", cluster, "--profile", path).stdout
        self.assertIn(f"Times are those of {path}, by the data sheet of A40.", by_profile)
        def seconds(*more):
            return json.loads(self.run_program("plan", jobs, "--cluster", cluster, "--json", *more).stdout)["plan"]["predicted"]["seconds"]
        self.assertAlmostEqual(seconds("--profile", path) / seconds(), 1, delta=0.25)
        # What the file says is what is planned with.
        for times in profile["operators"].values():
            for time in times:
                time["median_s"] *= 10
        path.write_text(json.dumps(profile))
        self.assertGreater(seconds("--profile", path), 4 * seconds())
        step = json.loads(self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--profile", path, "--instance", "1x2", "--json").stdout)
        usual = json.loads(self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--instance", "1x2", "--json").stdout)
        self.assertGreater(step["step_s"], 4 * usual["step_s"])
        # Messages and collectives that a profile has are those within a node; two nodes talk over the cluster file's network.
        self.assertNotIn("collectives", by_profile)
        lines = [{"kind": kind, "ranks": ranks, "bytes": size, "median_s": 0.5 + size * 1e-9, "spread": 0, "count": 3}
                 for kind, ranks in (("message", 2), ("all_reduce", 2), ("all_reduce", 4)) for size in (64, 1 << 20)]
        path.write_text(json.dumps(profile | {"collectives": lines}))
        self.assertIn("by the data sheet of A40, messages and collectives within a node included.",
                      self.run_program("plan", jobs, "--cluster", cluster, "--profile", path).stdout)
        slow = json.loads(self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--profile", path, "--instance", "1x2", "--json").stdout)
        self.assertGreater(slow["step_s"], step["step_s"] + 0.9)
        for option in (("--threads", "1"), ("--seconds", "1"), ("--device", "cpu"), ("--portable-kernels",)):
            self.assertIn(option[0], self.run_program("profile", "tinyllama-1.1b", "--cluster", cluster, *option, expect=2).stderr)
        self.assertIn("float32", self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--profile", path, "--dtype", "float32", expect=2).stderr)

    def test_a_profile_of_other_conditions_is_refused(self):
        path, _ = self.make_profile("--threads", "1")
        profile = json.loads(path.read_text())
        profile["fingerprint"]["device"] = "an abacus"
        path.write_text(json.dumps(profile))
        done = self.run_program("train", self.jobs_file(), "--profile", path, "--set", "model.dtype=float64", expect=2)
        self.assertIn(f"{path}: was measured under other conditions", done.stderr)
        self.assertIn("device: the profile has an abacus, here it is", done.stderr)
        self.assertIn("dtype: the profile has float32, here it is float64", done.stderr)
        self.assertFalse((self.path / "runs").exists())
        path.write_text("{}")
        done = self.run_program("train", self.jobs_file(), "--profile", path, expect=2)
        self.assertIn("is not a profile", done.stderr)


if __name__ == "__main__":
    unittest.main()
