#!/usr/bin/env python3
"""cotune simulate through the command line: traces, rate tables, comparisons, charts, one step, and what it refuses."""
import csv
import json
import unittest
import xml.etree.ElementTree

from program import ProgramTest

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

    def test_dedicated_durations_are_those_of_the_trace(self):
        self.simulate(self.trace, "--sharing", "separate", "--jobs-csv", self.path / "jobs.csv")
        for job, minutes in zip(self.rows("jobs.csv"), (60, 30, 45, 10)):
            self.assertAlmostEqual(float(job["ran_min"]), minutes, delta=0.01)

    def test_compare_is_a_line_for_every_policy_and_sharing(self):
        results = self.results(self.trace, "--compare", "--most-jobs", 3)
        self.assertEqual(len({(each["policy"], each["sharing"]) for each in results}), 6 * 5)
        self.assertTrue(all(each["finished"] == 4 for each in results))
        text = self.simulate(self.trace, "--compare", "--policy", "fcfs,priority", "--sharing", "separate,temporal").stdout
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

    def test_a_step_runs_with_stragglers(self):
        jobs = self.file("jobs.yaml", JOBS)
        planned = json.loads(self.simulate("--jobs", jobs, "--json").stdout)
        slow = json.loads(self.simulate("--jobs", jobs, "--slow", "1:3", "--json").stdout)
        self.assertEqual(slow["planned_seconds"], planned["seconds"])
        self.assertGreater(slow["seconds"], planned["seconds"])
        late = json.loads(self.simulate("--jobs", jobs, "--slow", "1:3:1000000:1000001", "--json").stdout)
        self.assertEqual(late["seconds"], planned["seconds"])
        text = self.simulate("--jobs", jobs, "--slow", "1:3", "--svg", self.path / "charts", "--perfetto", self.path / "trace.json").stdout
        self.assertIn("as planned, without stragglers", text)
        self.assertTrue(xml.etree.ElementTree.parse(self.path / "charts" / "step.svg").getroot().tag.endswith("svg"))
        self.assertTrue(json.loads((self.path / "trace.json").read_text()))

    def test_a_plan_takes_what_it_says_and_longer_with_a_slow_stage(self):
        jobs = self.file("jobs.yaml", JOBS)
        plan = self.path / "plan.json"
        self.run_program("plan", jobs, "--cluster", self.cluster, "--output", plan)
        predicted = json.loads(plan.read_text())["predicted"]["seconds"]
        usual = json.loads(self.simulate("--jobs", jobs, "--plan", plan, "--json").stdout)
        self.assertAlmostEqual(usual["step_s"], predicted)
        slow = json.loads(self.simulate("--jobs", jobs, "--plan", plan, "--slow", "0:2", "--json").stdout)
        self.assertAlmostEqual(slow["planned_step_s"], predicted)
        self.assertGreater(slow["step_s"], 1.2 * predicted)
        self.assertRegex(self.simulate("--jobs", jobs, "--plan", plan, "--slow", "0:2").stdout, r"A step of <.*; \d\.\d+ times the planned ")
        self.assertIn("plan.json: there is no rank 999", self.simulate("--jobs", jobs, "--plan", plan, "--slow", "999:2", expect=2).stderr)
        self.assertIn("all the time: RANK:FACTOR", self.simulate("--jobs", jobs, "--plan", plan, "--slow", "0:2:1:5", expect=2).stderr)
        self.assertIn("--svg", self.simulate("--jobs", jobs, "--plan", plan, "--svg", self.path / "x", expect=2).stderr)
        other = self.file("other.yaml", JOBS.replace("llama-2-7b", "llama-2-13b"))
        self.assertIn("plan.json: the plan was made for another model", self.simulate("--jobs", other, "--plan", plan, expect=2).stderr)

    def test_mistakes_are_named(self):
        jobs = self.file("jobs.yaml", JOBS)
        bad = self.file("bad.csv", "arrival_min,duration_min,tokens\n0,ten,64\n")
        for arguments, message in (
                ((bad,), "bad.csv:2: duration_min: must be minutes, above 0, got `ten`"),
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
