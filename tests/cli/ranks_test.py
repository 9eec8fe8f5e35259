"""cotune train on several ranks, through its command line."""
import json
import unittest

from program import METHODS, ProgramTest


class Ranks(ProgramTest):
    def train(self, run, *options, expect=0):
        jobs = self.jobs_file(steps=12)
        done = self.run_program("train", jobs, "--output-dir", self.path / run, "--json", "--token-budget=256", *options,
                                expect=expect)
        return [json.loads(line) for line in done.stdout.splitlines()] if expect == 0 else done

    def test_two_ranks_leave_what_one_leaves_and_say_what_they_did(self):
        self.train("one")
        events = self.train("two", "--ranks=2", "--pipeline-order=1f1b")
        self.assert_alike("two", "one")
        ranks = events[-1]["ranks"]
        self.assertEqual([(rank["first_layer"], rank["last_layer"]) for rank in ranks], [(0, 0), (1, 1)])
        for rank in ranks:
            self.assertGreaterEqual(rank["seconds"], rank["waited_seconds"])
            self.assertGreater(rank["peak_bytes"], 0)
            self.assertLessEqual(rank["peak_bytes"], rank["predicted_peak_bytes"])
        # Both at once took no more than each at its worst.
        summary = json.loads((self.path / "two" / "summary.json").read_text())
        rounds = ("activations", "chain_kv", "workspace", "logits")
        self.assertGreaterEqual(sum(rank["peak_bytes"] for rank in ranks), max(summary["peak_bytes"][kind] for kind in rounds))
        self.assertNotIn("ranks", json.loads((self.path / "one" / "summary.json").read_text()))

    def test_as_many_groups_as_stages_where_that_is_asked_for(self):
        self.train("one")
        events = self.train("grouped", "--ranks=2", "--pipeline-order=lorapp", "--fusion=stages")
        self.assert_alike("grouped", "one")
        plan = next(event for event in events if event["event"] == "plan")
        self.assertEqual((len(plan["hybrid_tasks"]), plan["choice"]), (2, "as many as stages"))
        self.assertIn("fusion: stages says so; ", plan["reason"])
        done = self.train("refused", "--sharing=temporal", "--fusion=stages", expect=2)
        self.assertIn("`fusion` belongs to sharing hybrid; run.sharing is temporal", done.stderr)

    def test_ranks_that_divide_layers_leave_what_one_leaves(self):
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        events = self.train("four", "--parallel=pp=2,tp=2", *exact)
        self.assert_alike("four", "one", 1e-8)
        ranks = events[-1]["ranks"]
        self.assertEqual([(rank["first_layer"], rank["part"], rank["parts"]) for rank in ranks],
                         [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)])
        for rank in ranks:
            self.assertGreater(rank["collectives"], 0)
        trace = self.path / "trace.json"
        self.train("half", "--parallel=tp=2", "--ranks=2", "--trace", trace, *exact)
        self.assert_alike("half", "one", 1e-8)
        forwards = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "forward"]
        self.assertEqual({event["tid"] & 0xFFFFF for event in forwards}, {2, 4})  # tracks of one rank differ above

    def test_interleaved_microbatches_leave_equal_adapters(self):
        exposed = []
        for interleave in ("never", "always", "auto"):
            events = self.train(interleave, "--parallel=tp=2", "--sharing=temporal", f"--interleave={interleave}")
            self.assert_alike(interleave, "never", 0)
            exposed.append(events[-1]["ranks"][0]["exposed_seconds"])
        self.assertGreater(min(exposed), 0)
        done = self.train("refused", "--ranks=2", "--interleave=always", expect=2)
        self.assertIn("`interleave` belongs to ranks that divide layers, such as run.parallel tp=2", done.stderr)
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        self.train("replicas", "--parallel=dp=1+tp=2", "--interleave=always", "--sharing=temporal", *exact)
        self.assert_alike("replicas", "one", 1e-8)
        done = self.train("refused", "--parallel=tp=2", "--interleave=always", "--recompute=always", expect=2)
        self.assertIn("rounds that recompute activations wait for every all-reduce", done.stderr)

    def test_ranks_that_divide_the_tokens_too_leave_what_one_leaves(self):
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        for run, parallel in (("two", "tp=2,seq"), ("four", "pp=2,tp=2,seq"), ("unlike", "dp=1+tp=2,seq")):
            with self.subTest(parallel):
                ranks = self.train(run, f"--parallel={parallel}", *exact)[-1]["ranks"]
                self.assert_alike(run, "one", 1e-8)
                self.assertGreater(ranks[-1]["collectives"], 0)
        self.train("again", "--parallel=tp=2,seq", "--recompute=always", "--layout=padded", *exact)
        self.assert_alike("again", "one", 1e-8)
        for wrong, why in (("seq", "seq beside tp"), ("pp=2,seq", "seq beside tp"), ("tp=2,seq,seq", "seq beside tp")):
            done = self.train("none", f"--parallel={wrong}", expect=2)
            self.assertIn("--parallel", done.stderr)
            self.assertIn(why, done.stderr)
        done = self.train("none", "--parallel=tp=2,seq", "--interleave=always", expect=2)
        self.assertIn("--interleave: is always, but run.parallel is tp=2,seq, and ranks with seq wait for every collective; accepted are auto "
                      "and never", done.stderr)

    def test_a_run_goes_on_divided_in_another_way(self):
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        for first, then in (("tp=2", "pp=2"), ("tp=2,seq", "tp=2"), ("dp=2", "dp=2+pp=2")):
            process = self.start_program("train", self.jobs_file(steps=12), "--output-dir", self.path / first, "--json",
                                         "--token-budget=256", f"--parallel={first}", *exact)
            self.wait_for(process, lambda event: event["event"] == "checkpoint")
            self.kill(process)
            self.train(first, "--resume", f"--parallel={then}", *exact)
            self.assert_alike(first, "one", 1e-8)

    def test_replicas_leave_what_one_rank_leaves(self):
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        trace = self.path / "trace.json"
        events = self.train("three", "--parallel=dp=1+pp=2", "--dispatch=even", "--trace", trace, *exact)
        self.assert_alike("three", "one", 1e-8)
        ranks = events[-1]["ranks"]
        self.assertEqual([(rank["replica"], rank["first_layer"]) for rank in ranks], [(0, 0), (1, 0), (1, 1)])
        for rank in ranks:
            self.assertGreater(rank["exchanged_bytes"], 0)
            self.assertGreater(rank["exchanging_seconds"], 0)
            for shares in (rank["measured"], rank["predicted"]):
                self.assertGreater(shares["exposed"], 0)
        forwards = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "forward"]
        self.assertEqual({event["tid"] & 0xFFFFF for event in forwards}, {2, 4, 6})
        self.train("unlike", "--parallel=dp=2,len=20+tp=2", "--dispatch=greedy", *exact)
        self.assert_alike("unlike", "one", 1e-8)

    def test_ranks_may_have_several_stages_each(self):
        done = self.train("three", "--parallel=pp=2,vp=2", expect=2)
        self.assertIn("--parallel: is pp=2,vp=2, but the model has 2 layers: at most one stage for each", done.stderr)
        done = self.train("three", "--parallel=pp=2,vp=2", "--pipeline-order=lorapp", expect=2)
        self.assertIn("run.pipeline_order lorapp wants one stage a rank; accepted with several are auto, split (interleaved 1F1B) and gpipe", done.stderr)
        config = json.loads((self.path / "config.json").read_text())
        (self.path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        for name, parallel, layers in (("two", "pp=2,vp=2", [[[0, 0], [2, 2]], [[1, 1], [3, 3]]]),
                                       ("three", "pp=2,vp=2+tp=2", [[[0, 0], [2, 2]], [[1, 1], [3, 3]], [[0, 3]], [[0, 3]]])):
            with self.subTest(parallel):
                ranks = self.train(name, f"--parallel={parallel}", *exact)[-1]["ranks"]
                self.assertEqual([rank["layers"] for rank in ranks], layers)
                self.assert_alike(name, "one", 1e-8)

    def test_the_planner_chooses_how_ranks_divide_the_model(self):
        exact = ("--set", "model.dtype=float64")
        self.train("one", *exact)
        done = self.run_program("train", self.jobs_file(steps=12), "--output-dir", self.path / "auto", "--json", "--token-budget=256",
                                "--ranks=2", "--parallel=auto", *exact)
        self.assertRegex(done.stderr, r"run.parallel: dp=\d,pp=\d,tp=\d.*, for which \S+ s a round are predicted")
        self.assertEqual(len(json.loads(done.stdout.splitlines()[-1])["ranks"]), 2)
        self.assert_alike("auto", "one", 1e-8)
        alone = self.run_program("train", self.jobs_file(), "--output-dir", self.path / "none", "--parallel=auto", expect=2).stderr
        self.assertIn("--parallel: `auto` belongs to several ranks; run.ranks is 1", alone)

    def test_prices_follow_what_was_measured_and_change_no_bit(self):
        events = self.train("refitted")
        self.train("fixed", "--replan=never")
        for method in METHODS:
            adapters = [(self.path / run / "jobs" / method / "adapter" / "adapter_model.safetensors").read_bytes()
                        for run in ("refitted", "fixed")]
            self.assertEqual(*adapters, method)
        errors = events[-1]["prediction_errors"]
        self.assertGreater(errors["rounds"], 0)
        self.assertGreater(errors["before"], 0)
        self.assertGreaterEqual(errors["after"], 0)
        peaks = events[-1]["peak_prediction_errors"]
        self.assertGreater(peaks["rounds"], 0)
        self.assertLess(peaks["after"], peaks["before"])
        self.assertEqual(events[-1]["swaps"], [])
        log = [json.loads(line) for line in (self.path / "refitted" / "metrics.jsonl").read_text().splitlines()]
        refits = [event for event in log if event["event"] == "refit"]
        self.assertGreater(len(refits), 0)
        self.assertEqual(refits, [event for event in events if event["event"] == "refit"])
        told = [event for event in log if event["event"] == "peak"]
        self.assertLess(told[-1]["correction_bytes"], 0)
        self.assertEqual(told, [event for event in events if event["event"] == "peak"])
        fixed = json.loads((self.path / "fixed" / "summary.json").read_text())
        for errors in (fixed["prediction_errors"], fixed["peak_prediction_errors"]):
            self.assertEqual(errors, {"rounds": 0, "before": None, "after": None})
        done = self.train("none", "--replan=sometimes", expect=2)
        self.assertIn("--replan", done.stderr)

    def test_peaks_of_ranks_follow_what_was_measured(self):
        for parallel in ("pp=2", "tp=2", "dp=2"):
            with self.subTest(parallel):
                events = self.train(parallel, f"--parallel={parallel}", "--rounds-at-once=1")
                peaks = events[-1]["peak_prediction_errors"]
                self.assertGreater(peaks["rounds"], 0)
                self.assertLess(peaks["after"], peaks["before"])

    def test_a_trace_shows_what_was_planned_and_what_was_done(self):
        trace = self.path / "trace.json"
        self.train("two", "--ranks=2", "--recompute=always", "--trace", trace)
        events = json.loads(trace.read_text())["traceEvents"]
        names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
        planned, measured = names["planned, ranks"], names["measured, ranks"]
        for process in (planned, measured):
            forwards = [event for event in events if event["pid"] == process and event.get("cat") == "forward"]
            self.assertEqual({event["tid"] & 0xFFFFF for event in forwards}, {2, 4})  # tracks of one rank differ above
        count = lambda process, kind: sum(event["pid"] == process and event.get("cat") == kind for event in events)
        self.assertEqual(count(planned, "optimizer_step"), count(measured, "optimizer_step"))
        self.assertGreater(count(measured, "forward"), count(planned, "forward"))  # evaluations have no plan of their own
        self.assertGreater(count(measured, "recompute"), 0)
        self.assertGreaterEqual(min(event["dur"] for event in events if event.get("ph") == "X"), 0)

    def test_as_many_rounds_as_asked_for_follow_without_a_flush(self):
        flushes = {}
        for rounds in (1, 3):
            trace = self.path / "trace.json"
            self.train(f"at-once-{rounds}", "--ranks=2", f"--rounds-at-once={rounds}", "--trace", trace)
            events = json.loads(trace.read_text())["traceEvents"]
            measured = next(event["pid"] for event in events if event.get("args", {}).get("name") == "measured, ranks")
            actions = [event["args"]["action"] for event in sorted((event for event in events if event["pid"] == measured and event.get("tid") == 2
                                                                    and event.get("ph") == "X"), key=lambda event: event["ts"])]
            flushes[rounds] = sum(after <= before for before, after in zip(actions, actions[1:]))  # actions are numbered anew
        self.assert_alike("at-once-3", "at-once-1", 0)
        self.assertGreater(flushes[1], flushes[3])
        done = self.train("none", "--rounds-at-once=2", expect=2)
        self.assertIn("`rounds_at_once` belongs to several ranks; run.ranks is 1; with --plan, too, run.ranks or run.parallel says", done.stderr)

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        self.train("one")
        process = self.start_program("train", self.jobs_file(steps=12), "--output-dir", self.path / "both", "--json",
                                     "--token-budget=256")
        self.wait_for(process, lambda event: event["event"] == "checkpoint")
        self.kill(process)
        self.train("both", "--resume", "--ranks=2")
        self.assert_alike("both", "one")

    def test_what_cannot_be_divided_is_refused(self):
        done = self.train("none", "--ranks=3", expect=2)
        self.assertIn("--ranks", done.stderr)
        self.assertIn("the model has 2 layers", done.stderr)
        for wrong, why in (("tp=3", "has 2 heads, 1 kv head and 96 inner features; accepted are tp 1, 2"),
                           ("pp=3,tp=2", "the model has 2 layers"), ("tp=two", "degrees such as pp=2,tp=2"),
                           ("dp=2+tp=3", "accepted are tp 1, 2"), ("dp=2,len=9", "beside some replicas but not all")):
            done = self.train("none", f"--parallel={wrong}", expect=2)
            self.assertIn("--parallel", done.stderr)
            self.assertIn(why, done.stderr)
        done = self.train("none", "--parallel=tp=2", "--ranks=4", expect=2)
        self.assertIn("is 2 ranks, but run.ranks is 4", done.stderr)
        done = self.train("none", "--parallel=tp=2", "--sample-tokens=4", expect=2)
        self.assertIn("--sample-tokens", done.stderr)
        done = self.train("none", "--pipeline-order=gpipe", expect=2)
        self.assertIn("belongs to several ranks", done.stderr)
        done = self.train("none", "--parallel=pp=2", "--dispatch=even", expect=2)
        self.assertIn("belongs to several replicas", done.stderr)
        self.assertFalse((self.path / "none").exists())

    def test_check_counts_the_memory_of_all_ranks(self):
        def together(*options):
            jobs = self.jobs_file()
            done = self.run_program("train", jobs, "--check", "--json", "--token-budget=256", *options)
            return json.loads(done.stdout)["peak_bytes"]
        self.assertGreater(together("--ranks=2"), together())
        self.assertGreater(together("--parallel=tp=2"), together())
        self.assertGreater(together("--parallel=dp=2"), together())
        config = json.loads((self.path / "config.json").read_text())
        (self.path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 8}))
        self.assertLess(together("--parallel=tp=2,seq"), together("--parallel=tp=2", "--interleave=never"))


if __name__ == "__main__":
    unittest.main()
