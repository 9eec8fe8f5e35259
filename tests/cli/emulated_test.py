#!/usr/bin/env python3
"""cotune train --device emulated:FILE, through its command line. Devices here are so fast that no test waits for them."""
import json
import unittest

from live_views import ENDLESS, LiveViewTest
from program import LIMIT_S
from trace_rules import checked_events

CLUSTER = """cotune_cluster: 1
nodes:
  - name: box
    devices: 8
    device: {preset: A100-40, bfloat16: 200000TFLOP/s, float32: 200000TFLOP/s, memory_bandwidth: 900TB/s, launch: 0us}
    link: nvlink-600
"""
SHAPES = """cotune: 1
model: {config: llama-2-7b, weights: none}
defaults: {adapter: {r: 8, target_modules: [q_proj, v_proj]}, train: {batch_size: 4, steps: 3}}
run: {sharing: temporal}
jobs:
  - {name: short, data: {lengths: [20, 30, 60, 25]}}
  - {name: long, data: {lengths: {100: 5, 200: 1}}}
"""


class Emulated(LiveViewTest):
    def setUp(self):
        super().setUp()
        self.cluster = self.path / "cluster.yaml"
        self.cluster.write_text(CLUSTER)
        self.shapes = self.path / "shapes.yaml"
        self.shapes.write_text(SHAPES)

    def train(self, jobs, run, *options, file=None, expect=0):
        done = self.run_program("train", jobs, "--output-dir", self.path / run, "--json", "--device", f"emulated:{file or self.cluster}",
                                *options, expect=expect)
        return [json.loads(line) for line in done.stdout.splitlines()] if expect == 0 else done.stderr

    def endless(self, run):
        """Options of a run that goes on until it is asked to end."""
        return self.shapes, "--output-dir", run, "--device", f"emulated:{self.cluster}", "--set", f"defaults.train.steps={ENDLESS}"

    def asked(self, run, *command):
        return self.run_program(*command, "--run", run).stdout

    def notices(self, run):
        return [event["text"] for event in self.metrics(run) if event["event"] == "notice"]

    def test_unknown_lengths_are_named_with_their_place_beside_other_mistakes(self):
        jobs = self.path / "unknown.yaml"
        for model, message in (("llama-2-7b", None), ("llama-2-9b", "unknown.yaml:2: model.config: ")):
            jobs.write_text(SHAPES.replace("[20, 30, 60, 25]", "no-such-set").replace("llama-2-7b", model))
            errors = self.train(jobs, "unknown", expect=2)
            self.assertIn("unknown.yaml:6: jobs[0].data.lengths: length histogram 'no-such-set' is not known; accepted: ", errors)
            self.assertIn(message or "", errors)

    def test_a_7b_model_on_eight_ranks_trains_nothing_and_says_so(self):
        trace = self.path / "trace.json"
        events = self.train(self.shapes, "run", "--parallel=pp=4,tp=2", "--trace", trace)
        steps = [event for event in events if event["event"] == "step"]
        self.assertEqual(len(steps), 6)
        for step in steps:
            self.assertIsNone(step["loss"])
            self.assertTrue(step["emulated"])
        folder = self.path / "run"
        summary = json.loads((folder / "summary.json").read_text())
        self.assertTrue(summary["emulated"])
        self.assertEqual(summary["device"], "emulated A100-40")
        self.assertEqual(summary["losses"], {"short": [], "long": []})
        self.assertEqual([(rank["first_layer"], rank["part"]) for rank in summary["ranks"][:3]], [(0, 0), (0, 1), (summary["ranks"][2]["first_layer"], 0)])
        self.assertEqual(len(summary["ranks"]), 8)
        self.assertGreater(summary["ranks"][0]["collectives"], 0)
        self.assertGreater(summary["ranks_predicted_seconds"], 0)
        for job in summary["jobs"]:
            self.assertEqual((job["status"], job["step"], job["adapter_step"]), ("finished", 3, None))
        self.assertLess(summary["peak_bytes"]["weights"], 1 << 20)
        self.assertEqual(json.loads((folder / "run.json").read_text())["emulated"], str(self.cluster))
        self.assertEqual([path.name for path in folder.rglob("*") if "adapter" in path.name or "checkpoint" in path.name], [])
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertIn("emulated A100-40", next(event["text"] for event in metrics if event["event"] == "notice"))
        for event in metrics:
            self.assertTrue(event["event"] in ("notice", "plan") or event["emulated"], event)
        names = {event["args"]["name"] for event in checked_events(trace.read_text()) if event["name"] == "process_name"}
        self.assertLessEqual({"emulated, ranks", "emulated, links"}, names)
        self.assertNotIn("measured, ranks", names)

    def test_unlike_replicas_deal_rows_and_exchange_gradients(self):
        # LobRA's deployment of a 7B model: four single devices, two pairs, and eight that divide every layer.
        (self.path / "two-nodes.yaml").write_text(CLUSTER.replace("    devices: 8", "    count: 2\n    devices: 8") + "network: infiniband-100\n")
        trace, degrees = self.path / "trace.json", "dp=4,len=64+tp=2,dp=2,len=128+tp=8"
        for rule in ("balanced", "greedy"):
            events = self.train(self.shapes, rule, f"--parallel={degrees}", f"--dispatch={rule}", "--trace", trace, file=self.path / "two-nodes.yaml")
            self.assertEqual(sum(event["event"] == "step" for event in events), 6)
            summary = json.loads((self.path / rule / "summary.json").read_text())
            self.assertTrue(summary["emulated"])
            self.assertEqual([rank["replica"] for rank in summary["ranks"]], [0, 1, 2, 3, 4, 4, 5, 5] + [6] * 8)
            for rank in summary["ranks"]:
                self.assertGreater(rank["exchanged_bytes"], 0)
                self.assertEqual(rank["collectives"] > 0, rank["parts"] > 1)
            self.assertGreater(summary["ranks_predicted_seconds"], 0)
            self.assertGreater(summary["planning"]["seconds"], 0)
            for job in summary["jobs"]:
                self.assertEqual((job["status"], job["step"]), ("finished", 3))
            names = {event["args"]["name"] for event in checked_events(trace.read_text()) if event["name"] == "process_name"}
            self.assertIn("emulated, ranks", names)
        # What exchanges take over a network of a hundredth of the rate is in the prediction, and passes.
        slow = self.path / "slow.yaml"
        slow.write_text((self.path / "two-nodes.yaml").read_text().replace("infiniband-100", "{bandwidth: 0.1GB/s, latency: 10us}"))
        summaries = {}
        for network, file in (("slow", slow), ("fast", self.path / "two-nodes.yaml")):
            self.train(self.shapes, network, "--parallel=dp=2,pp=8", "--dispatch=even", file=file)
            summaries[network] = json.loads((self.path / network / "summary.json").read_text())
        predicted = summaries["slow"]["ranks_predicted_seconds"]
        self.assertGreater(predicted, 2 * summaries["fast"]["ranks_predicted_seconds"])
        self.assertGreater(summaries["slow"]["ranks"][0]["seconds"], 0.9 * predicted)
        exposed = {network: sum(rank["predicted"]["exposed"] for rank in summary["ranks"]) for network, summary in summaries.items()}
        self.assertGreater(exposed["slow"], exposed["fast"])
        for rank in summaries["slow"]["ranks"]:
            self.assertGreater(rank["exchanging_seconds"], 0)
            self.assertGreater(rank["measured"]["exposed"], 0)
            self.assertGreater(rank["predicted"]["exposed"], 0)

    def test_two_jobs_on_four_stages_wait_less_when_their_steps_are_split(self):
        jobs = self.path / "few.yaml"
        jobs.write_text(SHAPES.replace("[20, 30, 60, 25]", "{384: 4}").replace("{100: 5, 200: 1}", "{384: 4}").replace("steps: 3", "steps: 8")
                        .replace("sharing: temporal", "sharing: temporal, token_budget: 1536"))
        seconds, split = {}, {}
        for order in ("lorapp", "split", "auto"):
            self.train(jobs, order, "--parallel=pp=4,tp=1", f"--pipeline-order={order}")
            summary = json.loads((self.path / order / "summary.json").read_text())
            seconds[order], split[order] = summary["ranks_predicted_seconds"], summary["planning"]["rounds_split"]
        self.assertEqual((split["lorapp"], split["split"]), (0, 8))
        # Half of the time is idle with one microbatch a step, none with three in the steady region (mLoRA §3.2.2).
        self.assertLess(seconds["split"], 0.75 * seconds["lorapp"])
        self.assertLess(seconds["auto"], 1.001 * seconds["split"])

    def test_a_profile_stands_in_for_its_device_and_evaluations_have_no_answer(self):
        profile = self.path / "profile.json"
        self.run_program("profile", self.path / "config.json", "--cluster", self.cluster, "--output", profile)
        jobs = self.jobs_file(steps=4, jobs=("plain", "bottleneck"), train=", eval_steps: 2")
        exact = ("--set", "model.dtype=bfloat16")
        for ranks in (1, 2):
            events = self.train(jobs, f"run{ranks}", f"--ranks={ranks}", *exact, file=profile)
            evaluations = [event for event in events if event["event"] == "evaluation"]
            self.assertEqual(len(evaluations), 6)
            for event in evaluations:
                self.assertEqual((event["loss"], event["accuracy"], event["best"]), (None, None, False))
            self.assertEqual(events[-1]["device"], "emulated A100-40")
            self.assertFalse(list((self.path / f"run{ranks}").rglob("adapter*")))
        text = self.run_program("train", jobs, "--output-dir", self.path / "run1", "--overwrite", "--device", f"emulated:{profile}", *exact).stdout
        self.assertIn("Emulated, emulated A100-40: nothing was computed, and no adapter is left", text)
        self.assertNotIn("nan", text)
        # What was emulated is no run to go on with.
        self.assertIn("an emulated run", self.run_program("train", jobs, "--output-dir", self.path / "run1", "--resume", *exact, expect=2).stderr)
        # Messages are as the profile has measured them, if it has.
        with_slow_messages = json.loads(profile.read_text())
        with_slow_messages["collectives"] = [{"kind": "message", "ranks": 2, "bytes": size, "median_s": 0.2, "spread": 0, "count": 1} for size in (64, 4096)]
        slow = self.path / "slow.json"
        slow.write_text(json.dumps(with_slow_messages))
        self.train(jobs, "slow", "--ranks=2", *exact, file=slow)
        def seconds(run):
            summary = json.loads((self.path / run / "summary.json").read_text())
            return summary["ranks_predicted_seconds"], summary["ranks"][0]["seconds"]
        for usual, slowed in zip(seconds("run2"), seconds("slow")):
            self.assertGreater(slowed, usual + 4 * 0.35, "an activation and an error in each of four rounds")
        for options, why in ((("--parallel=tp=2",), "was measured with 1"), (("--set", "model.dtype=float32"), "has times of bfloat16")):
            self.assertIn(why, self.train(jobs, "none", *exact, *options, file=profile, expect=2))

    def test_a_run_that_goes_on_says_that_it_is_emulated_and_not_that_it_is_saved(self):
        run = self.path / "run"
        process = self.start_quietly(*self.endless(run), "--tensorboard")
        while json.loads(self.asked(run, "job", "status", "--json"))["run"]["rounds"] == 0:
            self.assertIsNone(process.poll())
        for command in (("status", "--json"), ("job", "status", "--json"), ("job", "list", "--json")):
            reply = json.loads(self.asked(run, *command))
            self.assertIs(reply.get("view", reply)["run"]["emulated"], True, command)
        self.assertRegex(self.asked(run, "status"), r"^cotune \S emulated \S training\b")
        self.assertIn(", training, emulated; ", self.asked(run, "job", "status"))
        self.assertIn("\nthe run is emulated: ", self.asked(run, "job", "list"))
        drained = self.asked(run, "job", "drain")
        self.assertIn(", stopping, emulated; ", drained)
        self.assertIn("\nit ends; nothing of an emulated run is saved\n", drained)
        self.assertEqual(process.wait(LIMIT_S), 130, (self.path / "log").read_text())
        status = self.asked(run, "status")
        self.assertRegex(status, r"^cotune \S emulated \S stopped\b")
        for word in ("saved", "--resume"):
            self.assertNotIn(word, status)
        self.assertIn("asked to drain: the run ends, and nothing of an emulated one is saved", self.notices(run))
        for folder in (".", "short", "long"):
            files = list((run / "tensorboard" / folder).glob("events.out.tfevents.*"))
            self.assertIn(b"emulated/text_summary", b"".join(file.read_bytes() for file in files), folder)

    def test_jobs_join_it_by_their_file_alone(self):
        run = self.path / "run"
        process = self.start_quietly(*self.endless(run))
        more = self.path / "more.yaml"
        more.write_text("cotune: 1\njobs:\n  - {name: late, data: {lengths: [40, 50]}, train: {batch_size: 2, steps: 2}}\n")
        self.run_program("job", "add", "--run", run, more)
        while json.loads(self.asked(run, "job", "list", "--json"))["jobs"][-1]["status"] != "finished":
            self.assertIsNone(process.poll())
        more.write_text("cotune: 1\njobs:\n  - {name: later, data: {train: none.jsonl}}\n")
        self.assertIn("more.yaml:3: jobs[0].data.train: ", self.run_program("job", "add", "--run", run, more, expect=2).stderr)
        self.asked(run, "job", "drain")
        self.assertEqual(process.wait(LIMIT_S), 130, (self.path / "log").read_text())

    def test_a_run_whose_jobs_are_paused_ends_without_them(self):
        run = self.path / "run"
        process = self.start_quietly(*self.endless(run))
        for job in ("short", "long"):
            paused = self.run_program("job", "pause", "--run", run, job).stdout
            self.assertRegex(paused, rf"^{job}: paused at step \d+; no checkpoint was made\n$")
        self.assertEqual(process.wait(LIMIT_S), 130, (self.path / "log").read_text())
        for job in ("short", "long"):
            self.assertIn(f"job `{job}` is still paused: nothing of an emulated run is saved", self.notices(run))
        self.assertNotIn("--resume", self.asked(run, "status"))

    def test_the_live_view_says_that_it_is_emulated_and_that_nothing_is_kept(self):
        program = self.terminal("train", *self.endless(self.path / "run"))
        program.wait_for_text("emulated · training")
        self.wait_for_row(program, "short", "running")
        program.press("c")
        program.wait_for_text("cancel short? y or n; nothing of an emulated run is kept")
        program.press("n")
        program.wait_for_text("Ctrl-C stops")
        program.press("\x03")
        self.assertEqual(program.end(), 130)
        self.assertIn("stopping: nothing of an emulated run is saved", program.screen.normal)
        self.assertNotIn("every job is saved", program.screen.normal)

    def test_what_means_nothing_is_refused(self):
        jobs = self.jobs_file(steps=4)
        refused = self.train(jobs, "none", "--resume", expect=2)
        self.assertIn("checkpoints", refused)
        self.assertIn("diff_pruning chooses its entries", refused)
        plain = self.jobs_file(steps=4, jobs=("plain",))
        for options, why in ((("--check",), "this machine's memory"), (("--restarts=2",), "from checkpoints"),
                             (("--sample-tokens=5",), "--sample-tokens"), (("--memory=4GiB",), "take no memory"),
                             (("--threads=2",), "where nothing is computed"), (("--ranks=9",), "9"),
                             (("--set", "defaults.train.load_best=true", "--set", "defaults.train.eval_steps=2"), "lowest held-out loss"),
                             (("--set", "defaults.train.early_stopping_patience=2", "--set", "defaults.train.eval_steps=2"), "stops by held-out losses")):
            with self.subTest(options):
                self.assertIn(why, self.train(plain, "none", *options, expect=2))
        self.assertIn("no such file", self.train(plain, "none", file=self.path / "missing.json", expect=2))
        self.assertFalse((self.path / "none").exists())
        # Only an emulated device does without weights and data.
        done = self.run_program("train", self.shapes, "--output-dir", self.path / "none", expect=2)
        self.assertIn("training needs weights", done.stderr)
        self.assertIn("training needs data.train", done.stderr)


if __name__ == "__main__":
    unittest.main()
