#!/usr/bin/env python3
"""cotune simulate through the command line: traces, rate tables, comparisons, charts, one step, and what it refuses."""
import csv
import json
import re
import unittest
import xml.etree.ElementTree

from program import ProgramTest
from trace_rules import checked_events

CLUSTER = "cotune_cluster: 1\nnodes: [{count: 1, devices: 8, device: A40, link: pcie4}]\n"
TRACE = """arrival_min,duration_min,job,tenant,priority,deadline_min,rows,tokens,width,gpu
0,60,a,acme,0,90,8,64,16,V100
1,30,b,acme,1,,16,128,16,V100
2,45,c,solo,0,60,8,256,8,V100
3,10,d,solo,2,15,8,64,16,V100
"""
JOBS = """cotune: 1
model: {config: llama-2-7b, weights: none}
defaults: {train: {batch_size: 16, steps: 10}, adapter: {r: 16, target_modules: all-linear}}
jobs:
  - {name: short, data: {lengths: {64: 1}}}
  - {name: long, data: {lengths: {256: 1}}}
"""


class SimulateTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cluster = self.file("cluster.yaml", CLUSTER)
        self.trace = self.file("trace.csv", TRACE)

    def file(self, name, text):
        path = self.path / name
        path.write_text(text)
        return path

    def simulate(self, *arguments, expect=0):
        return self.run_program("simulate", "--cluster", self.cluster, *arguments, expect=expect)

    def rows(self, name):
        with open(self.path / name, newline="") as file:
            return list(csv.DictReader(file))

    def results(self, *arguments):
        return json.loads(self.simulate(*arguments, "--json").stdout)["results"]

    def test_a_trace_gives_tables_csv_json_and_charts(self):
        done = self.simulate(self.trace, "--csv", self.path / "all.csv", "--jobs-csv", self.path / "jobs.csv", "--svg", self.path / "charts")
        self.assertIn("columns that are not read: gpu", done.stderr)
        self.assertIn("finished              4, refused 0", done.stdout)
        row, = self.rows("all.csv")
        result, = self.results(self.trace)
        self.assertEqual(float(row["completion_mean_min"]), result["completion_mean_min"])
        jobs = self.rows("jobs.csv")
        self.assertEqual([job["job"] for job in jobs], ["a", "b", "c", "d"])
        for job in jobs:
            self.assertGreater(float(job["finished_min"]), float(job["started_min"]))
        self.assertEqual([(each["name"], each["jobs"]) for each in result["tenants"]], [("acme", 2), ("solo", 2)])
        for each in result["tenants"]:
            self.assertIn(each["name"], done.stdout)
            self.assertGreater(each["slowdown"], 0.99)
        for name in ("completion", "timeline", "summary", "tenants"):
            self.assertTrue(xml.etree.ElementTree.parse(self.path / "charts" / f"{name}.svg").getroot().tag.endswith("svg"))

    def test_what_fits_nowhere_is_told_with_what_would_hold_it(self):
        small = self.file("small.yaml", "cotune_cluster: 1\nnodes: [{name: n, devices: 1, device: {preset: A40, memory: 4GiB}}]\n")
        arguments = ("simulate", "--cluster", small, self.trace, "--instance", "1x1")
        done = self.run_program(*arguments).stdout
        self.assertRegex(done, r"refused +\d jobs?: does not fit into the memory of an instance, even alone: it takes [0-9.]+ GiB where 3.68 GiB may")
        self.assertRegex(done, r"What would hold all 3 kinds that fit nowhere:\n  n: memory [0-9.]+ GiB per device in place of 4.00 GiB")
        self.assertRegex(done, r"  n: \d+ nodes in place of 1, over infiniband-200, which is assumed, with instances of ")
        result = json.loads(self.run_program(*arguments, "--json").stdout)
        self.assertEqual(sum(each["jobs"] for each in result["results"][0]["refusals"]), 4)
        self.assertIn("What would hold", result["advice"])
        self.assertIn("What would hold", self.run_program(*arguments, "--replan").stdout)

    def test_a_step_that_is_too_large_in_one_microbatch_is_told_the_number_that_holds_it(self):
        trace = self.file("large.csv", "arrival_min,duration_min,rows,tokens\n0,60,512,2048\n0,60,4,4096\n")
        cluster = self.file("a40.yaml", "cotune_cluster: 1\nnodes: [{name: n, devices: 1, device: A40}]\n")
        arguments = ("simulate", "--cluster", cluster, trace, "--instance", "1x1")
        done = self.run_program(*arguments, "--microbatches", "1").stdout
        found = re.search(r"What would hold (?:it|all 2 kinds that fit nowhere):\n  steps in (\d+) microbatches \(--microbatches; they are in 1\)\n", done)
        self.assertTrue(found, done)
        self.assertIn("refused 0", self.run_program(*arguments, "--microbatches", found.group(1)).stdout)
        self.assertIn("refused 1", self.run_program(*arguments, "--microbatches", int(found.group(1)) // 2).stdout)

    def test_a_job_that_an_instance_cannot_hold_is_told_the_instance_that_can(self):
        trace = self.file("wide.csv", "arrival_min,duration_min,rows,tokens\n0,60,64,1024\n")
        cluster = self.file("two.yaml", "cotune_cluster: 1\nnodes: [{name: n, devices: 4, device: {preset: A40, memory: 11GiB}, link: pcie4}]\n")
        done = self.run_program("simulate", "--cluster", cluster, trace, "--instance", "1x1").stdout
        found = re.search(r"What would hold it:\n  instances of (\d+x\d+) devices \(--instance; they are of 1x1\)"
                          r"(?: and steps in (\d+) microbatches \(--microbatches; they are in \d+\))?\n", done)
        self.assertTrue(found, done)
        microbatches = ("--microbatches", found.group(2)) if found.group(2) else ()
        self.assertIn("refused 0", self.run_program("simulate", "--cluster", cluster, trace, "--instance", found.group(1), *microbatches).stdout)

    def test_memory_and_nodes_that_it_says_hold_a_job_do(self):
        trace = self.file("long.csv", "arrival_min,duration_min,rows,tokens\n0,5,8,4096\n0,5,128,2048\n")

        def cluster(nodes, memory):
            return self.file("larger.yaml", f"cotune_cluster: 1\nnodes: [{{name: n, count: {nodes}, devices: 2, device: {{preset: A40, memory: {memory}}},"
                             " link: pcie4}]\nnetwork: infiniband-100\n")

        done = self.run_program("simulate", "--cluster", cluster(2, "8GiB"), trace, "--instance", "1x4", "--microbatches", 1).stdout
        self.assertIn("What would hold all 2 kinds that fit nowhere:\n", done)
        for nodes, memory, line in ((2, None, r"  n: memory ([0-9.]+ GiB) per device in place of 8.00 GiB(.*)\n"),
                                    (None, "8GiB", r"  n: (\d+) nodes in place of 2(.*)\n")):
            found = re.search(line, done)
            self.assertTrue(found, done)
            instance = re.search(r"instances of (\d+x\d+) devices", found.group(2))
            microbatches = re.search(r"steps in (\d+) microbatches", found.group(2))
            followed = cluster(nodes or found.group(1), memory or found.group(1).replace(" ", ""))
            again = self.run_program("simulate", "--cluster", followed, trace, "--instance", instance.group(1) if instance else "1x4",
                                     "--microbatches", microbatches.group(1) if microbatches else 1).stdout
            self.assertIn("refused 0", again)

    def test_dedicated_durations_are_those_of_the_trace(self):
        self.simulate(self.trace, "--sharing", "separate", "--jobs-csv", self.path / "jobs.csv")
        for job, minutes in zip(self.rows("jobs.csv"), (60, 30, 45, 10)):
            self.assertAlmostEqual(float(job["ran_min"]), minutes, delta=0.01)

    def test_compare_is_a_line_for_every_policy_and_sharing(self):
        results = self.results(self.trace, "--compare", "--most-jobs", 3)
        self.assertEqual(len({(each["policy"], each["sharing"]) for each in results}), 6 * 5)
        self.assertTrue(all(each["finished"] == 4 for each in results))
        text = self.simulate(self.trace, "--policy", "fcfs,priority", "--sharing", "separate,temporal").stdout
        self.assertEqual(len(text.splitlines()), 1 + 4 + 1)

    def test_the_same_seed_gives_the_same_trace_and_a_saved_trace_the_same_result(self):
        arguments = ("--philly", "--days", "0.02", "--sharing", "temporal", "--seed", "5")
        first = self.results(*arguments, "--save-trace", self.path / "philly.csv")
        self.assertEqual(self.results(*arguments), first)
        again, = self.results(self.path / "philly.csv", "--sharing", "temporal")
        self.assertAlmostEqual(again["completion_mean_min"], first[0]["completion_mean_min"], delta=1e-3 * first[0]["completion_mean_min"])
        self.assertEqual(again["jobs"], first[0]["jobs"])

    def test_a_rate_table_is_saved_read_and_refused_for_something_else(self):
        rates = self.path / "rates.json"
        arguments = (self.trace, "--sharing", "temporal")
        table, = self.results(*arguments, "--rates", "table", "--save-rates", rates)
        read, = self.results(*arguments, "--rates", rates)
        self.assertEqual(read, table)
        slower = self.file("slower.yaml", CLUSTER.replace("pcie4", "ethernet-10"))
        self.assertIn("rates.json: instance: must be", self.run_program("simulate", "--cluster", slower, *arguments, "--rates", rates, expect=2).stderr)
        done = self.simulate(self.trace, "--sharing", "hybrid", "--rates", rates, expect=2)
        self.assertIn("rates.json: instance: must be", done.stderr)
        self.assertIn("--rates", self.simulate(self.trace, "--compare", "--rates", rates, expect=2).stderr)

    def test_admission_by_deadlines_misses_none_that_it_admits(self):
        result, = self.results(self.trace, "--refuse-late")
        self.assertEqual(result["deadlines_missed"], result["refused"])

    def test_dedicated_priorities_share_with_nobody(self):
        self.simulate(self.trace, "--dedicate-priority", 1, "--jobs-csv", self.path / "jobs.csv")
        jobs = {job["job"]: job for job in self.rows("jobs.csv")}
        self.assertAlmostEqual(float(jobs["b"]["ran_min"]), 30, delta=0.01)

    def step(self, *arguments):
        return json.loads(self.simulate("--jobs", self.file("jobs.yaml", JOBS), *arguments, "--json").stdout)

    def picture(self, path):
        self.assertTrue(xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg"))

    def test_a_step_runs_with_stragglers_and_slow_links(self):
        planned = self.step()
        self.assertEqual(planned["step_s"], planned["planned_step_s"])
        slow = self.step("--slow", "1:3")
        self.assertEqual(slow["planned_step_s"], planned["step_s"])
        self.assertGreater(slow["step_s"], planned["step_s"])
        self.assertEqual(self.step("--slow", "1:3:1000000:1000001")["step_s"], planned["step_s"])
        link = self.step("--slow-link", "2-1:50")
        self.assertEqual(link["planned_step_s"], planned["step_s"])
        self.assertGreater(link["step_s"], planned["step_s"])
        self.assertGreater(self.step("--slow-link", "2-1:50", "--slow", "1:3")["step_s"], slow["step_s"])
        text = self.simulate("--jobs", self.path / "jobs.yaml", "--slow", "1:3", "--svg", self.path / "charts", "--perfetto", self.path / "trace.json").stdout
        self.assertRegex(text, r"A step of <1,4>.*; \d\.\d+ times the planned ")
        self.assertIn("rank 3", text)
        groupings = self.step()["groupings"]
        chosen, rejected = ([each for each in groupings if bool(each["rejected_for"]) == is_rejected] for is_rejected in (False, True))
        self.assertEqual(len(chosen), 1)
        self.assertAlmostEqual(chosen[0]["seconds"], planned["planned_step_s"], delta=1e-9)
        self.assertTrue(rejected)
        self.assertTrue(all(each["fullest_bytes"] > 0 and each["seconds"] > 0 for each in rejected))
        self.assertIn("Other groupings of the jobs, with everything at its speed:\n", text)
        for each in rejected[:8]:
            self.assertIn(f": {each['rejected_for']}\n", text)
        self.picture(self.path / "charts" / "replica-0.svg")
        self.assertTrue(checked_events((self.path / "trace.json").read_text()))

    def test_a_step_follows_what_the_jobs_file_says_of_the_run(self):
        usual = self.step()
        self.assertEqual((usual["sharing"], usual["layout"], usual["recompute"]), ("hybrid", "ragged", False))
        separate = self.step("--set", "run.sharing=separate", "--svg", self.path / "charts")
        self.assertEqual(separate["sharing"], "separate")
        self.assertGreater(separate["step_s"], usual["step_s"])
        for job in ("short", "long"):
            self.picture(self.path / "charts" / f"replica-0-{job}.svg")
        fused, padded = (self.step("--set", "run.sharing=batch-all", "--set", f"run.layout={layout}") for layout in ("ragged", "padded"))
        self.assertGreater(padded["step_s"], fused["step_s"])
        budget = self.step("--set", "run.token_budget=1024")
        self.assertEqual(budget["replicas"][0]["token_budget"], 1024)
        self.assertNotEqual(budget["step_s"], usual["step_s"])
        recomputed = self.step("--set", "run.recompute=always")
        self.assertTrue(recomputed["recompute"])
        self.assertGreater(recomputed["step_s"], usual["step_s"])
        chunked = self.step("--set", "run.layout=chunked", "--set", "run.chunk_size=128")
        self.assertEqual(chunked["layout"], "chunked")

    def test_a_step_of_jobs_with_data_of_their_own(self):
        model = self.model_with_text()
        (self.path / "rows.jsonl").write_text("".join(json.dumps({"text": "word " * n}) + "\n" for n in range(1, 9)))
        jobs = self.file("own.yaml", f"cotune: 1\nmodel: {{path: {model}}}\njobs:\n  - {{name: own, data: {{train: rows.jsonl}}, train: {{steps: 4}}}}\n")
        result = json.loads(self.simulate("--jobs", jobs, "--instance", "1x1", "--json").stdout)
        self.assertEqual(result["jobs"], ["own"])
        self.assertGreater(result["tokens"], 8)

    def test_a_plan_takes_what_it_says_and_longer_with_what_is_slow(self):
        jobs = self.file("jobs.yaml", JOBS)
        plan = self.path / "plan.json"
        self.run_program("plan", jobs, "--cluster", self.cluster, "--output", plan)
        predicted = json.loads(plan.read_text())["predicted"]["seconds"]
        usual = self.step("--plan", plan)
        self.assertAlmostEqual(usual["step_s"], predicted)
        slow = self.step("--plan", plan, "--slow", "0:2")
        self.assertAlmostEqual(slow["planned_step_s"], predicted)
        self.assertGreater(slow["step_s"], 1.2 * predicted)
        self.assertLess(self.step("--plan", plan, "--slow", "0:2:0:5")["step_s"], slow["step_s"])
        self.assertGreater(self.step("--plan", plan, "--slow-link", "0-1:100")["exchange_s"], 50 * usual["exchange_s"])
        replicas = len(usual["replicas"])
        text = self.simulate("--jobs", jobs, "--plan", plan, "--slow", "0:2", "--replica", 1, "--svg", self.path / "charts",
                             "--perfetto", self.path / "trace.json").stdout
        self.assertRegex(text, r"A step of <.*; \d\.\d+ times the planned ")
        self.assertIn("\nreplica 1, microbatches of at most ", text)
        self.assertIn("rank 0", text)
        for replica in range(replicas):
            self.picture(self.path / "charts" / f"replica-{replica}.svg")
        names = {event["args"]["name"] for event in checked_events((self.path / "trace.json").read_text()) if event["name"] == "process_name"}
        self.assertTrue({f"replica {replica}, ranks" for replica in range(replicas)} <= names, names)
        for arguments, message in (
                (("--slow", "999:2"), "plan.json: --slow: there is no rank 999"),
                (("--replica", "99"), f"--replica: must be below {replicas}"),
                (("--replica", "0", "--json"), "--replica"),
                (("--instance", "1x4"), "--instance"),
                (("--dtype", "float32"), "--dtype"),
                (("--set", "run.layout=padded"), "--set: run.layout: has no effect on `cotune simulate --plan`, which reads of `run` nothing")):
            with self.subTest(message):
                self.assertIn(message, self.simulate("--jobs", jobs, "--plan", plan, *arguments, expect=2).stderr)
        other = self.file("others.yaml", CLUSTER.replace("A40, link", "A40, name: others, link"))
        done = self.run_program("simulate", "--jobs", jobs, "--plan", plan, "--cluster", other, expect=2)
        self.assertRegex(done.stderr, r"plan.json: devices: the plan is of nodes `.*`, the cluster has others")
        other = self.file("other.yaml", JOBS.replace("llama-2-7b", "llama-2-13b"))
        self.assertIn("plan.json: model: the plan was made for another model: must be ", self.simulate("--jobs", other, "--plan", plan, expect=2).stderr)

    def test_one_deployment_for_all_jobs_is_planned_anew_as_they_arrive_and_leave(self):
        arguments = (self.trace, "--replan", "--csv", self.path / "all.csv")
        text = self.simulate(*arguments).stdout
        self.assertRegex(text, r"when it pays +4 +0 ")
        results = self.results(*arguments)
        self.assertEqual([each["moves_when"] for each in results], ["when forced", "always", "when it pays"])
        forced, always, pays = results
        self.assertEqual(forced["moved"], forced["forced"])
        self.assertGreaterEqual(always["moved"], pays["moved"])
        self.assertEqual([float(row["end_min"]) for row in self.rows("all.csv")], [each["end_min"] for each in results])
        self.simulate(*arguments, "--jobs-csv", self.path / "jobs.csv", "--svg", self.path / "charts")
        jobs = self.rows("jobs.csv")
        for each in results:
            own = [row for row in jobs if row["moves_when"] == each["moves_when"]]
            self.assertEqual(len(own), 4)
            took = [float(row["finished_min"]) - float(row["arrival_min"]) for row in own]
            self.assertAlmostEqual(sum(took) / len(took), each["completion_mean_min"], delta=1e-6 * each["completion_mean_min"])
            self.assertEqual(max(float(row["finished_min"]) for row in own), each["end_min"])
        for chart in ("completion.svg", "timeline.svg"):
            picture = (self.path / "charts" / chart).read_text()
            for rule in ("when forced", "always", "when it pays"):
                self.assertIn(rule, picture)
        self.assertGreater(self.results(*arguments, "--restart", "100")[0]["moving_min"], forced["moving_min"])
        self.assertIn("--replan: columns that are not read: priority, deadline_min\n", self.simulate(*arguments).stderr)
        small = self.file("small.yaml", CLUSTER.replace("A40", "RTX4090"))
        message = self.run_program("simulate", "--cluster", small, self.trace, "--replan", "--instance", "1x1", "--model", "llama-2-13b", expect=2).stderr
        self.assertRegex(message, r"--instance: a job of kind lora\S+ does not fit on one alone, and durations of the trace are counted by steps there; give a larger one")
        for option in (("--policy", "fcfs"), ("--compare",), ("--rates", "table"), ("--window", "5")):
            self.assertIn(option[0], self.simulate(*arguments, *option, expect=2).stderr)

    def test_instances_of_one_device_are_filled_to_the_brim(self):
        for sharing in ("batch-all", "hybrid", "temporal", "batch-all/padded"):
            with self.subTest(sharing):
                text = self.simulate("--philly", "--days", "0.2", "--instance", "1x1", "--sharing", sharing).stdout
                self.assertIn("finished", text)

    def test_instances_of_any_number_of_stages(self):
        three = self.file("three.yaml", CLUSTER.replace("devices: 8", "devices: 3"))
        jobs = self.file("jobs.yaml", JOBS)
        for cluster in (three, self.cluster):
            step = self.run_program("simulate", "--cluster", cluster, "--jobs", jobs, "--instance", "1x3").stdout
            self.assertIn("A step of <1,3>×1, ", step)
            trace = self.run_program("simulate", "--cluster", cluster, self.trace, "--instance", "1x3").stdout
            self.assertIn("finished              4, refused 0", trace)
        message = self.run_program("simulate", "--cluster", three, "--jobs", jobs, "--instance", "1x4", expect=2).stderr
        self.assertIn("--instance: must be a TPxPP that the model and the nodes allow, such as 1x1, 1x2, 1x3, 2x1; got `1x4`", message)
        message = self.simulate(self.trace, "--instance", "1x12", expect=2).stderr
        self.assertIn("--instance: 12 devices must be at most the 8 of a node, or whole nodes of the 1 there are", message)

    def test_a_trace_needs_a_cluster(self):
        self.assertIn("--cluster: is required for a trace", self.run_program("simulate", self.trace, expect=2).stderr)

    def test_options_without_effect_are_refused(self):
        jobs = self.file("jobs.yaml", JOBS)
        for arguments, message in (
                ((self.trace, "--seed", "1"), "--seed requires --philly"),
                ((self.trace, "--days", "1"), "--days requires --philly"),
                ((self.trace, "--restart", "5"), "--restart: has no effect where no policy pushes jobs out"),
                ((self.trace, "--most-jobs", "2", "--sharing", "separate"), "--most-jobs: has no effect on `separate`"),
                ((self.trace, "--compare", "--policy", "fcfs", "--sharing", "temporal"), "--compare: has nothing to add"),
                ((self.trace, "--perfetto", "x"), "--perfetto requires --jobs"),
                ((self.trace, "--profile", "x"), "--profile requires --jobs"),
                ((self.trace, "--slow-link", "0-1:2"), "--slow-link requires --jobs"),
                ((self.trace, "--replica", "0"), "--replica requires"),
                (("--jobs", jobs, "--replica", "0"), "--replica requires --plan"),
                (("--jobs", jobs, "--microbatches", "8"), "--jobs excludes --microbatches"),
                (("--jobs", jobs, "--rates", "table"), "--jobs excludes --rates"),
                (("--jobs", jobs, "--set", "run.memory=8GiB"), "--set: run.memory: has no effect on `cotune simulate --jobs`, which reads of `run` run.chunk_size, "),
                (("--jobs", jobs, "--set", "model.dtype=float32", "--dtype", "bfloat16"), "--dtype: is bfloat16, but model.dtype is float32")):
            with self.subTest(message):
                self.assertIn(message, self.simulate(*arguments, expect=2).stderr)

    def test_mistakes_of_cluster_and_trace_are_reported_at_once(self):
        cluster = self.file("wrong.yaml", "cotune_cluster: 1\nnodes: [{count: 2, device: A4O}]\n")
        trace = self.file("wrong.csv", "arrival_min,duration_min,tokens\n0,ten,64\n0,1,-1\n")
        for more in ((), ("--replan",)):
            errors = self.run_program("simulate", "--cluster", cluster, trace, *more, expect=2).stderr
            for message in ("wrong.yaml:2: nodes[0].device: device 'A4O' is not known", "wrong.yaml:2: network: is missing",
                            "wrong.csv:2: duration_min: must be minutes, from 0.000001 to 1000000000, got `ten`", "wrong.csv:3: tokens: must be"):
                self.assertIn(message, errors)

    def test_mistakes_are_named(self):
        jobs = self.file("jobs.yaml", JOBS)
        two = self.file("two.yaml", "cotune_cluster: 1\nnodes: [{device: A40}, {device: H100}]\nnetwork: infiniband-100\n")
        for arguments in ((self.trace,), ("--jobs", jobs), (self.trace, "--replan")):
            errors = self.run_program("simulate", "--cluster", two, *arguments, expect=2).stderr
            self.assertRegex(errors, r"two.yaml: nodes: must be one group of like nodes, which .* takes, got 2 groups: nodes-0, nodes-1")
        rates = self.file("rates.json", '{"cotune_rates": "x"}')
        long = self.file("long.csv", "arrival_min,duration_min,tokens\n0,1,64\n0,1,9000\n")
        bad = self.file("bad.csv", "arrival_min,duration_min,tokens\n0,ten,64\n")
        for arguments, message in (
                ((long,), "long.csv:3: tokens: must be at most 4096, the model's context, got 9000"),
                ((self.trace, "--rates", rates), "rates.json: cotune_rates: must be 1"),
                (("--jobs", jobs, "--set", "model.dtype=float64"), "cluster.yaml: nodes[0].device.float64: is missing, and model.dtype asks for float64; the device has a rate for bfloat16, float32"),
                ((bad,), "bad.csv:2: duration_min: must be minutes, from 0.000001 to 1000000000, got `ten`"),
                ((self.trace, "--policy", "lottery"), "there are fcfs, priority"),
                ((self.trace, "--sharing", "together"), "separate, temporal, batch-all, hybrid"),
                ((self.trace, "--instance", "4"), "--instance: must be TPxPP"),
                ((self.trace, "--instance", "3x1"), "must divide the model's 32 heads"),
                ((self.trace, "--philly"), "give one of"),
                ((), "give one of"),
                (("--jobs", jobs, "--slow", "9:2"), "there is no rank 9"),
                (("--jobs", jobs, "--slow", "1"), "RANK:FACTOR"),
                (("--jobs", jobs, "--policy", "fcfs"), "--policy"),
                ((self.trace, "--slow", "1:2"), "--slow"),
                ((self.trace, "--compare", "--jobs-csv", self.path / "x.csv"), "--jobs-csv")):
            with self.subTest(message):
                self.assertIn(message, self.simulate(*arguments, expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
