#!/usr/bin/env python3
"""cotune train as the planner or a plan file says which jobs share microbatches. Standard library only.

    COTUNE=build/cotune python3 tests/cli/train_plan_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

from checks import Check


class TrainPlan(Check):
    def plan_file(self, jobs):
        """A plan for this machine, whatever it has."""
        path = self.path / "plan.json"
        self.run_program("plan", jobs, "--output", path)
        return path

    def changed(self, plan, change):
        """The plan with a change, in a file of its own."""
        content = json.loads(plan.read_text())
        change(content)
        path = self.path / "changed.json"
        path.write_text(json.dumps(content))
        return path

    def with_tasks(self, plan, tasks, budget=512):
        def change(content):
            content["sharing"] = "hybrid"
            content["replicas"][0].update(hybrid_tasks=tasks, buckets=[[task] for task in range(len(tasks))], token_budget=budget)
        return self.changed(plan, change)

    def test_a_run_says_which_jobs_share_microbatches_and_why_at_every_change(self):
        jobs = self.jobs_file(steps=4)
        options = ("train", jobs, "--output-dir", self.path / "run", "--set", "jobs.plain.train.steps=2")
        done = self.run_program(*options, "--json")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        plans = [event for event in events if event["event"] == "plan"]
        self.assertEqual([plan["cause"] for plan in plans], ["start", "`plain` finished", "`bottleneck` finished"])
        self.assertEqual([plan["jobs"] for plan in plans], [3, 2, 1])
        self.assertEqual((plans[2]["choice"], plans[2]["hybrid_tasks"], plans[2]["alternatives"]), ("one job", [["sparse"]], []))
        for plan in plans[:2]:
            self.assertEqual(plan["jobs"], sum(map(len, plan["hybrid_tasks"])))
            self.assertGreater(plan["seconds"], 0)
            self.assertGreater(plan["microbatches"], 0)
            self.assertTrue(plan["reason"])
            self.assertEqual(plan["costs"], "the roofline of preset cpu")
            names = {plan["choice"], *(other["name"] for other in plan["alternatives"])}
            self.assertLessEqual({"all jobs fused", "each job by itself"}, names)
        self.assertNotIn("plain", sum(plans[1]["hybrid_tasks"], []))
        self.assertEqual([plan["round"] for plan in plans], [0, 2, 4])
        summary = events[-1]
        self.assertEqual(summary["plans"], [{key: value for key, value in plan.items() if key != "event"} for plan in plans])
        self.assertEqual([event for event in self.metrics("run") if event["event"] == "plan"], plans)

        lines = self.run_program(*options, "--overwrite").stdout.splitlines()
        self.assertEqual([line for line in lines if line.startswith("plan (") and len(line) > 80], [])
        text = "\n".join(lines)
        self.assertRegex(text, r"plan \(start\): all jobs fused: plain\+bottleneck\+sparse\n  \S+ s a round, predicted by the roofline")
        self.assertRegex(text, r"otherwise: each job by itself \S+ s")
        self.assertRegex(text, r"plan \(`plain` finished\): ")

    def test_a_profile_prices_the_plan(self):
        profile = self.path / "profile.json"
        self.run_program("profile", self.path / "config.json", "--output", profile, "--dtype", "float32", "--seconds", "0")
        jobs = self.jobs_file(steps=2, jobs=["plain", "bottleneck"])
        options = ("train", jobs, "--profile", profile, "--json", "--output-dir", self.path / "run")
        summary = json.loads(self.run_program(*options).stdout.splitlines()[-1])
        plan = summary["plans"][0]
        self.assertEqual(plan["costs"], str(profile))
        # The plan's typical round, beside predictions of the rounds that came: of one order.
        for one in summary["prediction"]["rounds"]:
            self.assertLess(one["predicted_s"], 20 * plan["seconds"])
            self.assertGreater(one["predicted_s"], plan["seconds"] / 20)

    def test_a_plan_is_followed_to_the_same_bits(self):
        jobs = self.jobs_file(steps=3)
        self.run_program("train", jobs, "--output-dir", self.path / "own")
        plan = self.plan_file(jobs)
        self.run_program("train", jobs, "--plan", plan, "--output-dir", self.path / "made")
        split = self.with_tasks(plan, [[2, 0], [1]])
        done = self.run_program("train", jobs, "--plan", split, "--json", "--output-dir", self.path / "split")
        told = json.loads(done.stdout.splitlines()[-1])["plans"][0]
        self.assertEqual(told["choice"], f"of {split}")
        self.assertEqual(told["hybrid_tasks"], [["plain", "sparse"], ["bottleneck"]])
        self.assertEqual(told["token_budget"], 512)
        self.assertIn(f"{split} says so; ", told["reason"])
        record = json.loads((self.path / "split" / "run.json").read_text())
        self.assertEqual((record["sharing"], record["token_budget"]), ("hybrid", 512))
        self.assertEqual(self.adapters("split"), self.adapters("made"))
        if record["instruction_set"] != "none":
            self.assertEqual(self.adapters("split"), self.adapters("own"))

    def test_sharing_and_layout_of_a_plan_are_the_runs(self):
        jobs = self.jobs_file(steps=2, jobs=["plain", "bottleneck"])

        def change(content):
            content.update(sharing="temporal", layout="chunked", chunk_size=32, recompute="always")
            content["replicas"][0].update(token_budget=300, hybrid_tasks=[[0], [1]], buckets=[[0], [1]])
        plan = self.changed(self.plan_file(jobs), change)
        done = self.run_program("train", jobs, "--plan", plan, "--json", "--output-dir", self.path / "followed")
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["plans"], [])
        record = json.loads((self.path / "followed" / "run.json").read_text())
        self.assertEqual((record["sharing"], record["layout"], record["token_budget"], record["recompute"]),
                         ("temporal", "chunked", 300, "always"))
        self.assertIn("chunk_size: 32", record["configuration"])
        # What the plan decides may be given only as the plan has it.
        self.run_program("train", jobs, "--plan", plan, "--check", "--layout", "chunked", "--chunk-size", "32")
        found = self.run_program("train", jobs, "--plan", plan, "--check", "--layout", "chunked", "--chunk-size", "auto")
        self.assertNotIn("run.chunk_size", found.stderr)  # it is the plan's
        errors = self.refused(jobs, "--plan", plan, "--token-budget", "512", "--sharing", "hybrid", "--output-dir", self.path / "other")
        self.assertIn(f"--token-budget: is 512, but {plan}, which this run is to follow, has 300: leave one of the two out", errors)
        self.assertIn(f"--sharing: is hybrid, but {plan}, which this run is to follow, has temporal", errors)
        jobs.write_text(jobs.read_text() + "run:\n  layout: padded\n")
        errors = self.refused(jobs, "--plan", plan, "--output-dir", self.path / "other")
        self.assertRegex(errors, r"jobs\.yaml:\d+: run\.layout: is padded, but .*changed\.json, which this run is to follow, has chunked")

    def test_check_shows_the_plan(self):
        jobs = self.jobs_file(steps=2)
        text = self.run_program("train", jobs, "--check").stdout
        self.assertIn("plan (all jobs together): all jobs fused: plain+bottleneck+sparse", text)
        split = self.with_tasks(self.plan_file(jobs), [[0], [1, 2]])
        check = json.loads(self.run_program("train", jobs, "--check", "--json", "--plan", split).stdout)
        self.assertEqual(check["plan"]["hybrid_tasks"], [["plain"], ["bottleneck", "sparse"]])
        check = json.loads(self.run_program("train", jobs, "--check", "--json", "--sharing", "separate").stdout)
        self.assertNotIn("plan", check)

    def test_a_plan_for_several_devices_is_followed(self):
        jobs = self.jobs_file(steps=6)
        cluster = self.path / "two.yaml"
        cluster.write_text("cotune_cluster: 1\nnodes: [{name: box, devices: 2, device: cpu, link: pcie4}]\n")
        plan = self.path / "plan.json"
        self.run_program("plan", jobs, "--cluster", cluster, "--output", plan, "--set", "run.token_budget=512", "--set",
                         "run.sharing=hybrid")
        made = json.loads(plan.read_text())
        # Whatever it chose: a pipeline of two stages, and then two replicas.
        one = dict(made["replicas"][0], tensor_parallel=1, sequence_parallel=False, token_budget=512, buckets=[[0]], hybrid_tasks=[[0, 1, 2]])
        device = made["replicas"][0]["stages"][0]["devices"][0]
        stage = made["replicas"][0]["stages"][0]
        stages = [dict(stage, layers=[0, 1], embedding=True, head=False, devices=[device]),
                  dict(stage, layers=[1, 2], embedding=False, head=True, devices=[[*device[:2], 1]])]
        whole = dict(stage, layers=[0, 2], embedding=True, head=True)
        self.run_program("train", jobs, "--output-dir", self.path / "one", "--token-budget=512")
        for name, replicas in (("pipeline", [dict(one, stages=stages)]),
                               ("replicas", [dict(one, stages=[dict(whole, devices=[[*device[:2], d]])]) for d in (0, 1)])):
            with self.subTest(name):
                divided = self.changed(plan, lambda content: content.update(replicas=replicas))
                done = self.run_program("train", jobs, "--output-dir", self.path / name, "--json", "--plan", divided)
                ranks = json.loads(done.stdout.splitlines()[-1])["ranks"]
                expected = [(0, 0, 0), (0, 1, 1)] if name == "pipeline" else [(0, 0, 1), (1, 0, 1)]
                self.assertEqual([(rank["replica"], rank["first_layer"], rank["last_layer"]) for rank in ranks], expected)
                self.assert_alike(name, "one")
        errors = self.refused(jobs, "--plan", divided, "--parallel=tp=2", "--output-dir", self.path / "other")
        self.assertIn("--parallel: is tp=2, but", errors)

    def test_a_model_of_no_given_dtype_computes_in_the_plans(self):
        jobs = self.jobs_file(steps=2)
        jobs.write_text(jobs.read_text().replace("dtype: float32", "dtype: auto"))
        plan = self.plan_file(jobs)
        for dtype, computed in (("bfloat16", "BFloat16"), ("float32", "Float")):
            with self.subTest(dtype):
                of_dtype = self.changed(plan, lambda content: content.update(dtype=dtype))
                options = ("train", jobs, "--plan", of_dtype, "--output-dir", self.path / dtype)
                self.run_program(*options)
                self.assertEqual(json.loads((self.path / dtype / "run.json").read_text())["compute_dtype"], computed)

    def test_a_plan_that_is_not_this_runs_is_refused(self):
        jobs = self.jobs_file(steps=2)
        plan = self.plan_file(jobs)
        changed = self.path / "changed.json"

        def refusal(change, starts=False):
            return self.refused(jobs, "--plan", self.changed(plan, change), starts=starts)
        self.assertIn(f"{changed}: jobs: must be the jobs of the jobs file, plain, bottleneck, sparse; got other, bottleneck, sparse",
                      refusal(lambda content: content["jobs"].__setitem__(0, "other"), starts=True))
        self.assertRegex(refusal(lambda content: content.update(model="0" * 32)),
                         rf"{changed}: model: must be [0-9a-f]+, the hash of this run's model; got 0+: the plan is another model's")
        self.assertIn(f"{changed}: dtype: must be float32, which this run computes in; got bfloat16",
                      refusal(lambda content: content.update(dtype="bfloat16")))
        self.assertIn(f"{changed}: cotune_plan: must be a whole number from 1 to 1, got 2",
                      refusal(lambda content: content.update(cotune_plan=2)))
        self.assertIn(f"{changed}: replicas[0].bubble: is missing", refusal(lambda content: content["replicas"][0].pop("bubble")))
        changed.write_text(plan.read_text()[:200])
        self.assertRegex(self.refused(jobs, "--plan", changed), rf"{changed}:\d+: column \d+: not JSON: unexpected end of input")
        self.assertIn("nowhere.json", self.refused(jobs, "--plan", self.path / "nowhere.json"))
        check = self.run_program("train", jobs, "--check", "--json", "--plan", self.path / "nowhere.json", expect=2)
        self.assertFalse(json.loads(check.stdout)["ready"])
        # With mistakes elsewhere, all of them.
        errors = self.refused(jobs, "--plan", changed, "--set", "jobs.plain.adapter.r=0")
        self.assertIn("not JSON", errors)
        self.assertIn("got 0", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
