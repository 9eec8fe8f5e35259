#!/usr/bin/env python3
"""cotune plan through its command line. Standard library only.

    COTUNE=build/cotune python3 tests/cli/plan_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import re
import unittest
import xml.etree.ElementTree

from program import CONFIG, METHODS, ProgramTest
from trace_rules import checked_events

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/plan"
CLUSTER = """cotune_cluster: 1
nodes:
  - name: box
    devices: 4
    device: {preset: A40, memory: 6GiB, cost_per_hour: 1.5}
    link: pcie4
"""
JOBS = """cotune: 1
model: {config: tinyllama-1.1b, weights: none}
defaults: {adapter: {r: 8}, train: {steps: 10}}
jobs:
  - {name: short, data: {lengths: [20, 30, 60]}, train: {batch_size: 16}}
  - {name: long, data: {lengths: {100: 5, 900: 1}}, train: {batch_size: 8}}
"""


class Plan(ProgramTest):
    def write(self, name, text):
        path = self.path / name
        path.write_text(text)
        return path

    def plan(self, *arguments, jobs=JOBS, cluster=CLUSTER, expect=0, **options):
        machines = () if cluster is None else ("--cluster", self.write("cluster.yaml", cluster))
        return self.run_program("plan", self.write("plan-jobs.yaml", jobs), *machines, *arguments, expect=expect, **options)

    def test_options_without_effect_are_refused_or_told(self):
        self.assertIn("--replica: says what --svg or --trace show", self.plan("--replica", "0", expect=2).stderr)
        self.assertIn("--set: run.threads: has no effect on `cotune plan`", self.plan("--set", "run.threads=2", expect=2).stderr)
        for before, after, message in (
                ("tinyllama-1.1b", "tinylama-1.1b", "plan-jobs.yaml:2: model.config: model preset 'tinylama-1.1b' is not known (did you mean 'tinyllama-1.1b'?); accepted: "),
                ("[20, 30, 60]", "dollie", "plan-jobs.yaml:5: jobs[0].data.lengths: length histogram 'dollie' is not known")):
            self.assertIn(message, self.plan(jobs=JOBS.replace(before, after), expect=2).stderr)
        self.assertIn("cluster.yaml:5: nodes[0].device.preset: ", self.plan(cluster=CLUSTER.replace("A40", "A41"), expect=2).stderr)

    def test_has_no_more_rows_in_a_step_than_the_data_have(self):
        self.write("ten.jsonl", json.dumps({"input_ids": [1] * 10, "labels": [1] * 10}) + "\n")
        (self.path / "ten.jsonl").write_text((self.path / "ten.jsonl").read_text() * 10)
        plans = []
        for batch_size in (10, 64):
            jobs = self.write("few.yaml", f"cotune: 1\nmodel: {{config: config.json, weights: none}}\njobs:\n"
                              f"  - {{name: few, data: {{train: ten.jsonl}}, train: {{steps: 3, batch_size: {batch_size}}}}}\n")
            plan = json.loads(self.run_program("plan", jobs, "--json").stdout)["plan"]
            plans.append((plan["predicted"], plan["replicas"]))
        self.assertEqual(*plans)

    def test_finds_shapes_beside_the_jobs_file_and_under_no_other_name(self):
        for folder, layers in ((self.path, 2), (self.path / "elsewhere", 3)):
            (folder / "shape").mkdir(parents=True)
            shape = {**CONFIG, "num_hidden_layers": layers}
            (folder / "shape" / "config.json").write_text(json.dumps(shape))
        jobs = JOBS.replace("tinyllama-1.1b", "shape")
        result = json.loads(self.plan("--json", jobs=jobs, cwd=self.path / "elsewhere").stdout)
        stages = result["plan"]["replicas"][0]["stages"]
        self.assertEqual(max(stage["layers"][1] for stage in stages), 2, stages)

    def test_follows_what_the_jobs_file_says_of_the_run(self):
        jobs = JOBS + "run: {sharing: temporal, token_budget: 1024, layout: chunked, chunk_size: 128, memory: 4GiB}\n"
        planned = lambda *arguments: json.loads(self.plan("--json", *arguments, jobs=jobs).stdout)
        result = planned()
        self.assertEqual({row["sharing"] for row in result["alternatives"]}, {"temporal"})
        plan = result["plan"]
        self.assertEqual([plan["sharing"], plan["layout"], plan["chunk_size"]], ["temporal", "chunked", 128])
        self.assertEqual({replica["token_budget"] for replica in plan["replicas"]}, {1024})
        self.assertAlmostEqual(result["tensor_bytes_limit"]["box"], 4 << 30, delta=2)
        self.assertLessEqual(plan["predicted"]["fullest_bytes"], 4 << 30)
        self.assertIn("Memory: run.memory is 4GiB: 4.00 GiB for tensors.", self.plan(jobs=jobs).stdout)
        # What --set gives wins.
        plan = planned("--set", "run.sharing=batch-all", "--set", "run.token_budget=2048", "--set", "run.chunk_size=64")["plan"]
        self.assertEqual([plan["sharing"], plan["chunk_size"]], ["batch-all", 64])
        self.assertEqual({replica["token_budget"] for replica in plan["replicas"]}, {2048})

    def test_says_when_jobs_end_at_most(self):
        jobs = JOBS.replace("{batch_size: 8}", "{batch_size: 8, steps: 400}").replace("name: short,", "name: short, deadline: 2100-01-01,")
        jobs = jobs.replace("name: long,", "name: long, deadline: 2020-01-01,")
        result = json.loads(self.plan("--json", jobs=jobs).stdout)
        step_s = result["plan"]["predicted"]["seconds"]
        self.assertEqual([(each["job"], each["steps"], each["meets_deadline"]) for each in result["ends"]], [("short", 10, True), ("long", 400, False)])
        for each in result["ends"]:
            self.assertAlmostEqual(each["at_most_s"], each["steps"] * step_s, delta=1e-9 * each["at_most_s"])
        text = self.plan(jobs=jobs).stdout
        self.assertRegex(text, r"To the end: at most \d.*, for 400 steps of long; steps are shorter once other jobs have ended.")
        self.assertRegex(text, r"  short: at most .* for 10 steps: in time for its deadline\n  long: at most .* for 400 steps: its deadline is earlier\n")
        # Epochs of lengths have no number of steps, those of data do (documents_test runs such a plan).
        jobs = JOBS.replace("train: {steps: 10}", "train: {epochs: 1}")
        self.assertEqual(json.loads(self.plan("--json", jobs=jobs).stdout)["ends"], [])
        self.assertNotIn("To the end", self.plan(jobs=jobs).stdout)

    def test_finds_the_chunk_size_that_training_would_find(self):
        jobs = JOBS + "run: {token_budget: 1024, layout: chunked, chunk_size: auto}\n"
        size = lambda text: json.loads(self.plan("--json", jobs=text).stdout)["plan"]["chunk_size"]
        self.assertEqual(size(jobs), 64)
        self.assertEqual(size(jobs.replace("[20, 30, 60]", "[20, 512]").replace("{100: 5, 900: 1}", "{100: 5, 768: 1}")), 256)

    def test_takes_the_memory_that_training_would_take_here(self):
        path = self.write("plan-jobs.yaml", JOBS)
        text = self.run_program("plan", path).stdout
        self.assertRegex(text, r"Memory: run.memory is auto: 80% of what is free on this machine, as for cotune train: \S+ \S+ for tensors.")
        guess = re.search(r"Times are a guess for this machine, every two cores as the preset cpu: (\d+) GFLOP/s in (\w+)\.", text)
        self.assertEqual(int(guess.group(1)), round(len(os.sched_getaffinity(0)) * {"bfloat16": 425, "float32": 230}[guess.group(2)]))
        few = json.loads(self.run_program("plan", path, "--json", "--set", "run.memory=3GiB", "--set", "model.config=smollm2-135m").stdout)
        self.assertLess(few["tensor_bytes_limit"]["this-machine"], 3 << 30)
        self.assertGreater(few["tensor_bytes_limit"]["this-machine"], 2 << 30)

    def test_says_which_rows_are_cut(self):
        jobs = JOBS.replace("{100: 5, 900: 1}", "{100: 3, 9000: 1}")
        self.assertRegex(self.plan(jobs=jobs, cluster=CLUSTER.replace("6GiB", "40GiB")).stdout,
                         r"Truncated rows:\n  long: 25% of the rows are longer than 2048 tokens and are cut")
        self.assertNotIn("Truncated rows", self.plan().stdout)

    def test_explains_its_choice_in_numbers_that_add_up(self):
        text = self.plan().stdout
        self.assertRegex(text, r"Plan: <\d(\+seq)?,\d>×\d.* on 4 devices of box \(A40\)")
        self.assertRegex(text, r"throughput: \d+ tokens/s = \d+ tokens / ")
        self.assertRegex(text, r"fullest device: [\d.]+ GiB of 5\.52 GiB that may be used of 6\.00 GiB")
        self.assertRegex(text, r"cost: \S+ per step, \S+ per million tokens, at 1\.5 per device hour")
        self.assertRegex(text, r"stage 0: layers 0-\d+, embedding.* = weights .* \+ adapters .* \+ activations .* \+ workspace ")
        self.assertEqual(text.count(" chosen\n"), 1)
        self.assertRegex(text, r"batch-all +gpipe .*(% slower|out of memory: stage \d of \d needs|as fast)")
        result = json.loads(self.plan("--json").stdout)
        step = result["plan"]["predicted"]
        self.assertAlmostEqual(step["device_seconds"], 4 * step["seconds"])
        self.assertAlmostEqual(step["cost"], step["device_seconds"] / 3600 * 1.5)
        slowest = max(replica["seconds"] for replica in result["plan"]["replicas"])
        self.assertAlmostEqual(step["seconds"], slowest + step["exchange_s"])
        stages = [stage for replica in result["plan"]["replicas"] for stage in replica["stages"]]
        self.assertEqual(step["fullest_bytes"], max(sum(stage["memory"].values()) for stage in stages))
        devices = [tuple(device) for stage in stages for device in stage["devices"]]
        self.assertEqual(len(devices), len(set(devices)))
        for other in result["alternatives"]:
            self.assertEqual(other["predicted"] is None, not other["replicas"])
            if other["fits"] and other["deployment"] in ("lobra", "task-fused"):
                self.assertGreaterEqual(other["predicted"]["seconds"], 0.999 * step["seconds"])
        self.assertEqual([other["rejected_for"] for other in result["alternatives"]].count(""), 1)

    def test_compare_has_every_deployment_policy_and_order_in_one_table(self):
        result = json.loads(self.plan("--compare", "--json").stdout)
        plain = [row for row in result["alternatives"] if not row["recompute"] and not row["shards_weights"]]
        rows = {(row["deployment"], row["sharing"], row["order"]) for row in plain}
        saving = [(row["deployment"], row["recompute"], row["shards_weights"]) for row in result["alternatives"] if row not in plain]
        self.assertEqual(sorted(saving), sorted((deployment, recompute, shards) for deployment in ("task-fused", "lobra")
                                                for recompute, shards in ((True, False), (False, True), (True, True))))
        orders = ("gpipe", "1f1b", "auto")
        expected = {(deployment, sharing, order) for deployment in ("task-fused", "lobra")
                    for sharing in ("separate", "temporal", "batch-all", "hybrid") for order in orders}
        expected |= {(deployment, "separate", order) for deployment in ("task-sequential", "lobra-sequential") for order in orders}
        # Two jobs on pipelines of more stages, as far as such are among the best deployments.
        self.assertLessEqual(expected, rows)
        self.assertLessEqual(rows - expected, {("task-fused", "hybrid", "split"), ("lobra", "hybrid", "split"),
                                               ("task-sequential", "separate", "interleaved"), ("lobra-sequential", "separate", "interleaved")})
        text = self.plan("--compare").stdout
        for deployment, sharing, order in rows:
            self.assertRegex(text, rf"(?m)^{deployment} +{sharing} +{order} ")
        self.assertIn("2 plans in turn", text)

    def test_interleaves_the_stages_of_a_pipeline_of_few_microbatches(self):
        jobs = JOBS.replace("tinyllama-1.1b", "llama-2-7b").replace("r: 8", "r: 8, target_modules: [q_proj, v_proj]").replace(
            "[20, 30, 60]", "[300, 500]").replace("{100: 5, 900: 1}", "[20, 30, 60]")
        cluster = CLUSTER.replace("devices: 4", "devices: 1\n    count: 4").replace("6GiB", "7GiB").replace("    link: pcie4\n", "") + "network: infiniband-100\n"
        output, svg = self.path / "interleaved.json", self.path / "interleaved.svg"
        result = json.loads(self.plan("--json", "--set", "run.recompute=never", "--output", output, "--svg", svg, jobs=jobs, cluster=cluster).stdout)
        plan = result["plan"]
        self.assertEqual(plan["order"], "interleaved")
        self.assertTrue(all(len(stage["layers"]) in (4, 8) for stage in plan["replicas"][0]["stages"]))
        others = {row["order"]: row for row in result["alternatives"] if row["deployment"] == "task-fused" and row["sharing"] == "hybrid" and row["rejected_for"]}
        for order in ("gpipe", "1f1b", "auto", "split"):
            if others[order]["fits"]:
                self.assertGreater(others[order]["predicted"]["seconds"], plan["predicted"]["seconds"])
            else:
                self.assertIn("out of memory", others[order]["rejected_for"])
            self.assertGreater(others[order]["predicted"]["fullest_bytes"], 1 << 30)
        self.assertIn("<svg", svg.read_text())
        followed = self.run_program("simulate", "--jobs", self.path / "plan-jobs.yaml", "--cluster", self.path / "cluster.yaml", "--plan", output, "--slow-link", "3-0:2")
        self.assertIn("A step of <1,4>×1", followed.stdout)
        alone = self.run_program("simulate", "--jobs", self.path / "plan-jobs.yaml", "--cluster", self.path / "cluster.yaml", "--plan", output)
        self.assertIn("1.000 times the planned", alone.stdout)

    def test_says_what_one_node_more_or_fewer_would_change(self):
        cluster = CLUSTER.replace("name: box", "name: box\n    count: 2").replace("devices: 4", "devices: 2") + "network: infiniband-100\n"
        text = self.plan(cluster=cluster).stdout
        self.assertRegex(text, r"One node of box more or fewer than 2:\n  3: .* per step, \d\.\d\d times as fast, \d+ tokens/s, cost .*\n  1: ")
        result = json.loads(self.plan("--json", cluster=cluster).stdout)
        more, fewer = result["node_changes"]
        self.assertEqual([more["from"], more["to"], fewer["to"]], [2, 3, 1])
        self.assertAlmostEqual(more["speed_up"], result["plan"]["predicted"]["seconds"] / more["predicted"]["seconds"])
        self.assertGreater(more["speed_up"], fewer["speed_up"])
        self.assertEqual([more["assumed_network"], fewer["assumed_network"]], ["", ""])

    def test_says_which_network_it_assumes_between_nodes(self):
        text = self.plan(cluster=CLUSTER).stdout
        self.assertIn("; over infiniband-200, which is assumed (`network` of the cluster file says)\n", text)
        more, = json.loads(self.plan("--json", cluster=CLUSTER).stdout)["node_changes"]
        self.assertEqual(more["assumed_network"], "infiniband-200")
        given, = json.loads(self.plan("--json", cluster=CLUSTER + "network: infiniband-200\n").stdout)["node_changes"]
        self.assertEqual(more["predicted"], given["predicted"])

    def test_a_plan_with_less_memory_is_simulated_on_its_cluster(self):
        output = self.path / "plan.json"
        self.plan("--set", "run.memory=5GiB", "--output", output)
        jobs, cluster = self.path / "plan-jobs.yaml", self.path / "cluster.yaml"
        done = self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--plan", output)
        self.assertIn("1.000 times the planned", done.stdout)
        self.assertEqual(done.stderr, "")
        slower = cluster.read_text().replace("pcie4", "ethernet-10")
        cluster.write_text(slower)
        done = self.run_program("simulate", "--jobs", jobs, "--cluster", cluster, "--plan", output)
        self.assertRegex(done.stderr, r"plan.json: was made for another cluster, and predicted .* a step there; here it is priced anew\n")

    def test_a_plan_for_this_machine_is_simulated_without_a_cluster_file(self):
        output = self.path / "plan.json"
        self.plan("--output", output, cluster=None)
        done = self.run_program("simulate", "--jobs", self.path / "plan-jobs.yaml", "--plan", output)
        self.assertIn("1.000 times the planned", done.stdout)

    def test_recomputes_where_nothing_else_fits(self):
        small = CLUSTER.replace("6GiB", "3300MiB").replace("devices: 4", "devices: 1").replace("    link: pcie4\n", "")
        self.assertEqual(json.loads(self.plan("--json", cluster=small).stdout)["plan"]["recompute"], "always")
        done = self.plan("--set", "run.recompute=never", cluster=small, expect=2)
        self.assertRegex(done.stdout, r"as it is, rows of up to \d+ tokens fit")

    def test_a_profile_prices_the_plan(self):
        (self.path / "config.json").write_text(json.dumps({**CONFIG, "num_key_value_heads": 2}))
        jobs = self.jobs_file(jobs=("plain",))
        profile = self.path / "profile.json"
        self.run_program("profile", self.path / "config.json", "--output", profile, "--seconds", "0", "--dtype", "float32")
        planned = lambda *arguments: json.loads(self.run_program("plan", jobs, "--json", *arguments).stdout)["plan"]
        priced = planned("--profile", profile)
        self.assertTrue(priced["profile"])
        self.assertEqual(priced["dtype"], "float32")
        self.assertNotEqual(priced["predicted"]["seconds"], planned("--set", "model.dtype=float32")["predicted"]["seconds"])
        done = self.run_program("plan", jobs, "--profile", profile)
        self.assertIn(f"Times are those of {profile}, measured on ", done.stdout)
        errors = self.run_program("plan", jobs, "--profile", profile, "--set", "model.dtype=bfloat16", expect=2).stderr
        self.assertIn("was measured in float32, model.dtype is bfloat16", errors)
        measured = json.loads(profile.read_text())
        measured["fingerprint"]["threads"] = 99
        profile.write_text(json.dumps(measured))
        errors = self.run_program("plan", jobs, "--profile", profile, expect=2).stderr
        self.assertRegex(errors, r"was measured under other conditions.*\n  threads: the profile has 99")
        # Of a cluster file it is taken that its devices are those of the profile, all alike; times of divided layers are estimated from those of whole ones.
        cluster = self.write("two.yaml", "cotune_cluster: 1\nnodes:\n  - {name: box, devices: 2, device: cpu, link: pcie4}\n")
        shapes = json.loads(self.run_program("plan", jobs, "--json", "--profile", profile, "--cluster", cluster).stdout)
        divided = [row for row in shapes["configurations"] if row["tensor_parallel"] > 1]
        self.assertTrue(divided)
        for row in divided:
            self.assertNotIn("profile", row.get("rejected_for") or "")
            self.assertGreater(row["chunk_tokens"], 0)
        cluster.write_text(cluster.read_text() + "  - {name: other, device: A40}\nnetwork: infiniband-100\n")
        errors = self.run_program("plan", jobs, "--profile", profile, "--cluster", cluster, expect=2).stderr
        self.assertIn("two.yaml: nodes of box and of other: a profile is of one device", errors)

    def test_writes_the_plan_and_pictures_of_its_pipeline(self):
        outputs = [self.path / name for name in ("plan.json", "plan.svg", "plan.trace.json")]
        shown = json.loads(self.plan("--json", "--output", outputs[0], "--svg", outputs[1], "--trace", outputs[2]).stdout)
        self.assertEqual(json.loads(outputs[0].read_text()), shown["plan"])
        self.assertTrue(xml.etree.ElementTree.fromstring(outputs[1].read_text()).tag.endswith("svg"))
        self.assertTrue(checked_events(outputs[2].read_text()))
        errors = self.plan("--svg", outputs[1], "--replica", "99", expect=2).stderr
        self.assertRegex(errors, r"--replica: must be below \d, .*got 99")

    def test_equal_inputs_give_equal_plans(self):
        self.assertEqual(self.plan("--json").stdout, self.plan("--json").stdout)

    def test_says_what_would_fit_where_nothing_does(self):
        small = CLUSTER.replace("6GiB", "700MiB").replace("devices: 4", "devices: 2")
        text = self.plan(cluster=small, expect=2).stdout
        self.assertIn("No plan: nothing that was tried fits.", text)
        self.assertRegex(text, r"box: rows of 900 tokens need at least [\d.]+ GiB per device, as <\d(\+seq)?,\d>(/\d)? with recomputation, .* of frozen weights of it; "
                               r"644 MiB of its 700 MiB may be used")
        self.assertRegex(text, r"box: \d+ devices would hold it as <\d(\+seq)?,\d>")
        self.assertRegex(text, r"out of memory: no configuration fits")
        done = self.plan("--json", cluster=small, expect=2)
        result = json.loads(done.stdout)
        self.assertIsNone(result["plan"])
        self.assertEqual({row["predicted"] for row in result["alternatives"] if not row["replicas"]}, {None})
        self.assertIn("would hold it", done.stderr)

    def test_nodes_without_a_rate_for_bfloat16_are_told_with_the_option_that_there_is(self):
        cluster = ("cotune_cluster: 1\nnodes:\n  - {name: old, device: {memory: 40GiB, memory_bandwidth: 1000GB/s, float32: 20TFLOP/s}}\n")
        done = self.plan("--json", cluster=cluster)
        self.assertIn("for nodes `old` have no rate for bfloat16; --set model.dtype=bfloat16 needs a cluster file without them", done.stderr)
        self.assertNotIn("--dtype", done.stderr)
        plan = json.loads(done.stdout)["plan"]
        self.assertEqual(plan["dtype"], "float32")
        self.assertIsNone(plan["predicted"]["cost"])  # the file has no price

    def test_mistakes_in_the_files_are_named_with_line_and_field(self):
        errors = self.plan(cluster=CLUSTER.replace("A40", "A4O").replace("pcie4", "7"), expect=2).stderr
        self.assertRegex(errors, r"cluster\.yaml:5: nodes\[0\]\.device\.preset: .*'A4O'.*did you mean 'A40'")
        self.assertRegex(errors, r"cluster\.yaml:6: nodes\[0\]\.link: .*accepted: nvlink-900")
        errors = self.plan(jobs=JOBS.replace("[20, 30, 60]", "[20, 0]").replace("r: 8", "r: many"), expect=2).stderr
        self.assertRegex(errors, r"plan-jobs\.yaml:3: defaults\.adapter\.r: .*many")
        self.assertRegex(errors, r"plan-jobs\.yaml:5: jobs\[0\]\.data\.lengths.*0")
        errors = self.plan(jobs=JOBS.replace("[20, 30, 60]", "no-such-set"), expect=2).stderr
        self.assertRegex(errors, r"plan-jobs\.yaml:5: jobs\[0\]\.data\.lengths: .*no-such-set")
        errors = self.plan(jobs=JOBS.replace("tinyllama-1.1b", "tinyllama-9b"), expect=2).stderr
        self.assertIn("tinyllama-9b", errors)
        errors = self.run_program("plan", self.write("plan-jobs.yaml", JOBS), "--cluster", self.path / "none.yaml", expect=2).stderr
        self.assertIn("none.yaml", errors)

    def test_unknown_lengths_are_reported_beside_all_other_mistakes(self):
        jobs = JOBS.replace("[20, 30, 60]", "no-such-set").replace("{100: 5, 900: 1}", "nor-this").replace("r: 8", "r: many")
        cluster = CLUSTER.replace("A40", "A4O").replace("name: box", "name: box\n    count: 2")
        for arguments in (("plan",), ("simulate", "--jobs")):
            errors = self.run_program(*arguments, self.write("plan-jobs.yaml", jobs), "--cluster", self.write("cluster.yaml", cluster), expect=2).stderr
            self.assertRegex(errors, r"plan-jobs\.yaml:3: defaults\.adapter\.r: .*many")
            self.assertRegex(errors, r"plan-jobs\.yaml:5: jobs\[0\]\.data\.lengths: length histogram 'no-such-set' is not known; accepted: a file, or one of ")
            self.assertRegex(errors, r"plan-jobs\.yaml:6: jobs\[1\]\.data\.lengths: length histogram 'nor-this' is not known")
            self.assertRegex(errors, r"cluster\.yaml:6: nodes\[0\]\.device\.preset: .*'A4O'")
            self.assertRegex(errors, r"cluster\.yaml:2: network: is missing: the link between the 2 nodes; accepted: ")

    def test_without_a_cluster_file_plans_for_this_machine(self):
        result = json.loads(self.run_program("plan", self.jobs_file(), "--json").stdout)
        stages = result["plan"]["replicas"][0]["stages"]
        self.assertEqual([stage["devices"] for stage in stages], [[["this-machine", 0, 0]]])
        self.assertEqual(result["plan"]["jobs"], list(METHODS))

    def test_lengths_of_real_data_are_those_of_its_tokens(self):
        # The tiny model's data are token ids, so no tokenizer is needed; text without one is an error that says so.
        lines = [json.loads(line) for line in (self.path / "plain.jsonl").read_text().splitlines()]
        longest = max(len(line["input_ids"]) for line in lines)
        jobs = self.jobs_file(jobs=("plain",))
        text = jobs.read_text().replace(", eval_fraction: 0.2", "")
        jobs.write_text(text)
        result = json.loads(self.run_program("plan", jobs, "--json").stdout)
        listed = text.replace("train: plain.jsonl", "lengths: " + json.dumps([len(line["input_ids"]) for line in lines]))
        jobs.write_text(listed)
        self.assertEqual(json.loads(self.run_program("plan", jobs, "--json").stdout)["plan"]["predicted"], result["plan"]["predicted"])
        self.assertGreaterEqual(result["plan"]["predicted"]["tokens"], longest)
        (self.path / "plain.jsonl").write_text('{"text": "words"}\n')
        jobs.write_text(text)
        self.assertIn("has no tokenizer", self.run_program("plan", jobs, expect=2).stderr)

    def test_cuts_a_model_into_as_many_stages_as_a_node_has_devices(self):
        jobs = JOBS.replace("tinyllama-1.1b", "qwen2.5-32b")
        cluster = CLUSTER.replace("devices: 4", "devices: 3").replace("6GiB", "40GiB")
        self.assertIn("Plan: <1,3>×1 on 3 devices of box", self.plan(jobs=jobs, cluster=cluster).stdout)

    def test_the_examples_are_planned(self):
        done = self.run_program("plan", EXAMPLES / "six-tasks-7b.yaml", "--cluster", EXAMPLES / "16-a100-40.yaml", "--json")
        self.assertEqual(len(json.loads(done.stdout)["plan"]["jobs"]), 6)
        done = self.run_program("plan", EXAMPLES / "six-tasks-7b.yaml", "--cluster", EXAMPLES / "one-a40.yaml", "--set",
                                "model.config=llama-2-70b", expect=2)
        self.assertIn("would hold it", done.stdout)


if __name__ == "__main__":
    unittest.main()
