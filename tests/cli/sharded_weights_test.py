"""cotune train --parallel dp=2,shard: replicas that are processes and keep a slice each of every layer's frozen weights."""
import json
import re
import signal
import unittest

import rank_processes_test
from program import METHODS, LIMIT_S, ProgramTest

EXACT = rank_processes_test.EXACT
# Jobs that prices of a busy machine group otherwise add in another order, in f64.
AS_PLANNED = (*EXACT, "--replan=never")


class ShardedWeights(ProgramTest):
    launched = rank_processes_test.RankProcesses
    launch, train, end_all = launched.launch, launched.train, launched.end_all

    def setUp(self):
        super().setUp()
        self.config(num_hidden_layers=12, hidden_size=192, intermediate_size=512, num_attention_heads=6, num_key_value_heads=2)

    def config(self, **changes):
        file = self.path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def summary(self, run, *options, **launched):
        written = self.end_all(self.train(run, *options, **launched))
        self.assertEqual([errors for _, errors in written[1:]], [""] * (len(written) - 1))
        return json.loads(written[0][0].splitlines()[-1])

    def assert_equal_adapters(self, run, other):
        for job in METHODS:
            self.assertEqual(self.adapter(run, job), self.adapter(other, job), job)

    def test_leave_the_adapters_of_whole_weights_and_take_half_the_memory(self):
        whole = self.summary("whole", "--parallel=dp=2", "--dispatch=even")
        sharded = self.summary("sharded", "--parallel=dp=2,shard", "--dispatch=even")
        self.assert_equal_adapters("sharded", "whole")
        head = 4 * 2 * 160 * 192 * 3  # f32, for both directions, in at most three parts
        for rank, before in zip(sharded["ranks"], whole["ranks"]):
            self.assertGreaterEqual(before["weight_bytes"], rank["whole_weight_bytes"] * 0.99)
            self.assertLess(rank["weight_bytes"], 0.5 * rank["whole_weight_bytes"] + 4 * head + 2 * 4 * 3 * 192 * 1024)
            self.assertGreater(rank["gathering_seconds"], 0)
            self.assertEqual(before["gathering_seconds"], 0)

    def test_on_stages_and_divided_layers_and_beside_a_replica_of_another_shape(self):
        self.config(num_hidden_layers=4)
        for parallel, sharing in (("dp=2,shard+pp=2", 2), ("dp=2,pp=2,shard", 4), ("dp=2,shard,tp=2", 4)):
            with self.subTest(parallel):
                whole = parallel.replace(",shard", "")
                ranks = self.summary(parallel, f"--parallel={parallel}", "--dispatch=even", *AS_PLANNED, size=4)["ranks"]
                self.summary(whole, f"--parallel={whole}", "--dispatch=even", *AS_PLANNED, size=4)
                self.assert_equal_adapters(parallel, whole)
                for rank in ranks[:sharing]:
                    self.assertGreater(rank["gathering_seconds"], 0)
                for rank in ranks[sharing:]:
                    self.assertEqual(rank["gathering_seconds"], 0)

    def test_a_killed_holder_ends_all_and_the_run_goes_on_without_slices(self):
        self.config(num_hidden_layers=2)
        for victim in (0, 1):
            with self.subTest(victim):
                run = f"killed{victim}"
                ranks = self.train(run, "--parallel=dp=2,shard", *EXACT)
                self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
                ranks[victim].send_signal(signal.SIGKILL)
                ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
                if ranks[victim].returncode == 0:
                    self.skipTest("the run had ended before it could be killed")
                self.assertEqual(ranks[1 - victim].returncode, 1, ended)
                self.end_all(self.train(run, "--resume", "--parallel=dp=2", *EXACT))
                self.launched.assert_like_one_rank(self, run, *EXACT, bound=1e-10)

    def test_check_counts_slices(self):
        def peak(parallel):
            (first, _), _ = self.end_all(self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--check", "--json",
                                                     f"--parallel={parallel}"))
            return json.loads(first)["peak_bytes"]

        self.config(hidden_size=384, intermediate_size=1024, num_attention_heads=12)
        self.assertLess(peak("dp=2,shard"), peak("dp=2"))

    def test_the_planner_gives_no_process_more_weights_than_it_may_hold(self):
        self.config(num_hidden_layers=24, hidden_size=512, intermediate_size=2048, num_attention_heads=16, num_key_value_heads=16)
        jobs = self.jobs_file(steps=2, jobs=("plain",))

        def launch(run, *options):
            return self.launch("train", jobs, "--output-dir", self.path / run, "--json", "--token-budget=256", "--recompute=always", "--set",
                               "model.dtype=bfloat16", *options)

        def check(parallel):
            (first, _), _ = self.end_all(launch("none", "--check", "--memory=8GiB", f"--parallel={parallel}"))
            return json.loads(first)

        whole = check("dp=2")
        divided = max(check(parallel)["peak_bytes"] for parallel in ("pp=2", "tp=2", "dp=2,shard"))
        # Less than the weights of a copy, beside what the program itself has taken here.
        tensors = (whole["peak_bytes"] + 2 * divided) // 3
        limit = f"--memory={((8 << 30) - whole['memory_limit_bytes'] + tensors) >> 20}MiB"
        (_, told), _ = self.end_all(launch("auto", "--parallel=auto", limit))
        division = re.search(r"run.parallel: (\S+), for which", told)
        self.assertIsNotNone(division, told)
        self.assertNotEqual(division[1], "dp=2,pp=1,tp=1")
        ranks = launch("refused", "--parallel=dp=2", limit)
        errors = ranks[0].communicate(timeout=LIMIT_S)[1].decode()
        ranks[1].communicate(timeout=LIMIT_S)
        self.assertEqual(ranks[0].returncode, 2, errors)
        self.assertRegex(errors, r"run\.memory: \d+MiB: the weights of rank [01] alone take \d+ MiB where ranks are divided as dp=2,pp=1,tp=1; "
                                 r"the limit of \d+ MiB leaves \d+ MiB beside the program itself")

    def test_a_plan_whose_replicas_share_weights_is_followed(self):
        self.config(num_hidden_layers=2)
        jobs = self.jobs_file(steps=12)
        cluster = self.path / "two.yaml"
        cluster.write_text("cotune_cluster: 1\nnodes: [{name: box, devices: 2, device: cpu, link: pcie4}]\n")
        self.run_program("plan", jobs, "--cluster", cluster, "--output", self.path / "plan.json", "--set", "run.token_budget=512",
                         "--set", "run.sharing=hybrid")
        plan = json.loads((self.path / "plan.json").read_text())
        # Whatever it chose: two replicas of one device that share the weights.
        made = plan["replicas"][0]
        stage = dict(made["stages"][0], layers=[0, 2], embedding=True, head=True)
        group, node, _ = stage["devices"][0]
        one = dict(made, tensor_parallel=1, sequence_parallel=False, token_budget=512, buckets=[[0]], hybrid_tasks=[[0, 1, 2]], shards=2)
        plan["replicas"] = [dict(one, stages=[dict(stage, devices=[[group, node, device]])]) for device in (0, 1)]
        (self.path / "plan.json").write_text(json.dumps(plan))
        ranks = self.launch("train", jobs, "--output-dir", self.path / "planned", "--json", "--plan", self.path / "plan.json")
        (first, _), _ = self.end_all(ranks)
        for rank in json.loads(first.splitlines()[-1])["ranks"]:
            self.assertLess(rank["weight_bytes"], rank["whole_weight_bytes"])

    def test_threads_share_weights_as_they_are(self):
        self.config(num_hidden_layers=2)
        for run, parallel in (("plain", "dp=2"), ("asked", "dp=2,shard")):
            self.run_program("train", self.jobs_file(steps=6), "--output-dir", self.path / run, f"--parallel={parallel}", "--dispatch=even",
                             *AS_PLANNED)
        self.assert_equal_adapters("plain", "asked")

    def test_one_replica_alone_has_nobody_to_share_with(self):
        done = self.run_program("train", self.jobs_file(), "--output-dir", self.path / "none", "--parallel=pp=2,shard", expect=2)
        self.assertIn("shard beside dp", done.stderr)
        self.assertFalse((self.path / "none").exists())


if __name__ == "__main__":
    unittest.main()
