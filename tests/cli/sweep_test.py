#!/usr/bin/env python3
"""Sweeps: candidates that train, are halved, resumed and compared, and the best one's adapter.

    COTUNE=build/cotune python3 tests/cli/sweep_test.py [UNITTEST OPTIONS]
"""
import json
import re
import signal
import subprocess
import sys
import time
import unittest

import needs
from program import LIMIT_S, ProgramTest, ROOT
from terminal_screen import TerminalProgram
from tiny_models import copy_model, text_of

GRID = "grid: {adapter.r: [2, 4], train.lr: [1e-5, 3e-3, 3e-2]}"
NAMES = [f"sql-r{r}-lr{lr}" for r in (2, 4) for lr in ("1e-05", "0.003", "0.03")]

# The loss of a model with an adapter on prompts and completions, by transformers and PEFT; a token is a character.
JUDGE = """
import json, sys, peft, torch, transformers
model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32), sys.argv[2]).eval()
losses = []
for record in map(json.loads, open(sys.argv[3])):
    ids = list(map(ord, record["prompt"] + record["completion"])) + [2]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    losses += [-logits[at - 1, ids[at]].item() for at in range(len(record["prompt"]), len(ids))]
print(sum(losses) / len(losses))
"""


def statuses(sweep):
    return {each["job"]: each["status"] for each in sweep["candidates"]}


def decided(sweep):
    """What was found and decided, without when."""
    return {each["job"]: (each["values"], each["rank"], each["status"], each["step"], each["reason"], each["rungs"]) for each in sweep["candidates"]}


class Sweep(ProgramTest):
    def sweep_file(self, sweep, steps=8, train="", name="jobs.yaml", model="{config: ./config.json, weights: random, seed: 3, dtype: float32}"):
        path = self.path / name
        path.write_text(f"cotune: 1\nmodel: {model}\njobs:\n  - name: sql\n    data: {{train: plain.jsonl, eval_fraction: 0.3}}\n"
                        f"    train: {{steps: {steps}, batch_size: 4{train}}}\n    sweep: {{{sweep}}}\n")
        return path

    def train(self, jobs, run, *arguments, expect=0):
        return self.run_program("train", jobs, "--output-dir", self.path / run, *arguments, expect=expect).stdout

    def wait_for_rung(self, process, step):
        """Of a run into `run` that was started quietly: until a candidate has been judged there."""
        metrics = self.path / "run/metrics.jsonl"
        while not metrics.exists() or not re.search(rf'"event": ?"rung",.*"step": ?{step}\b', metrics.read_text()):
            self.assertIsNone(process.poll(), (self.path / "log").read_text())
            time.sleep(0.01)  # leaves it the processor

    def sweep(self, run, name="sql"):
        return json.loads((self.path / run / "sweeps" / name / "sweep.json").read_text())

    def test_a_grid_trains_and_leaves_the_best(self):
        said = self.train(self.sweep_file(GRID), "run")
        sweep = self.sweep("run")
        self.assertEqual({each["job"] for each in sweep["candidates"]}, set(NAMES))
        self.assertEqual(sweep["options"], ["adapter.r", "train.learning_rate"])
        losses = [each["eval_loss"] for each in sweep["candidates"]]
        self.assertEqual(losses, sorted(losses))
        self.assertEqual([each["rank"] for each in sweep["candidates"]], list(range(1, 7)))
        self.assertEqual(set(statuses(sweep).values()), {"finished"})
        best = sweep["best"]
        self.assertEqual(best, sweep["candidates"][0]["job"])
        for file in ("adapter_model.safetensors", "adapter_config.json"):
            self.assertEqual((self.path / "run/sweeps/sql" / file).read_bytes(), (self.path / "run/jobs" / best / "adapter" / file).read_bytes())
        alone = (self.path / "run/jobs" / best / "adapter/cotune.yaml").read_text()
        self.assertIn("of: sql", alone)
        self.assertEqual((self.path / "run/sweeps/sql/cotune.yaml").read_text(), alone.replace(f"{self.path}/run-{best}\n", f"{self.path}/run-sql-best\n"))
        summary = json.loads((self.path / "run/summary.json").read_text())
        self.assertEqual(summary["sweeps"], [sweep])
        table = said[said.index("sweep sql"):].splitlines()
        self.assertRegex(table[0], r"^sweep sql +r +learning_rate +loss +step +ended$")
        self.assertRegex(table[1], rf"^{re.escape(best.removeprefix('sql-'))} ")
        self.assertIn(f"best     {best}, in ", said)
        self.assertLessEqual(max(map(len, table[:7])), 80)
        self.run_program("train", self.path / "run/sweeps/sql/cotune.yaml")
        self.assertEqual(self.adapter("run-sql-best", best), self.adapter("run", best))

    def test_candidates_are_listed_before_they_train(self):
        jobs = self.sweep_file(GRID + ", max_concurrent: 2, halving: {first_steps: 2}")
        said = self.run_program("train", "--check", jobs).stdout
        self.assertIn("sweep sql: 6 candidates of adapter.r, train.learning_rate; 2 at a time; rungs at steps 2, 6\n", said)
        self.assertIn("6 jobs are ready to train", said)
        for name in NAMES:
            self.assertRegex(said, rf"(?m)^{re.escape(name)}( |:|$)")
        check = json.loads(self.run_program("train", "--check", "--json", jobs).stdout)
        self.assertEqual([(each["name"], each["sweep"]) for each in check["jobs"]], [(name, "sql") for name in NAMES])
        late = self.sweep_file(GRID + ", halving: {first_steps: 8}")
        self.assertIn("jobs.yaml:7: jobs[0].sweep.halving.first_steps: no candidate of `sql` comes to a rung: they have at most 8 steps",
                      self.run_program("train", late, "--output-dir", self.path / "run", expect=2).stderr)
        self.assertFalse((self.path / "run").exists())
        without = self.sweep_file(GRID)
        without.write_text(without.read_text().replace(", eval_fraction: 0.3", ""))
        self.assertIn("candidates are compared by what they make of held-out examples", self.run_program("train", "--check", without, expect=2).stderr)

    def test_many_candidates_are_few_words_wherever_jobs_are_on_one_line(self):
        jobs = self.sweep_file("random: {train.lr: {log_uniform: [1e-4, 1e-2]}}, samples: 48", steps=1)
        jobs.write_text(jobs.read_text() + "  - {name: other, data: {train: plain.jsonl}, train: {steps: 1, batch_size: 4}}\n")
        cluster = self.path / "cluster.yaml"
        cluster.write_text("cotune_cluster: 1\nnodes: [{name: here, count: 1, devices: 1, device: cpu}]\n")
        plan = ("--plan", self.path / "plan.json", "--cluster", cluster)
        self.run_program("plan", jobs, "--cluster", cluster, "--output", self.path / "plan.json")
        for command in (("train", "--check", jobs), ("train", jobs, "--output-dir", self.path / "run"), ("plan", jobs),
                        ("simulate", "--jobs", jobs, *plan)):
            with self.subTest(command[:2]):
                said = self.run_program(*command).stdout
                self.assertIn("sql (48 candidates)", said)
                self.assertLess(max(line.count("sql-0") for line in said.splitlines()), 3)
        with_others = self.sweep_file("random: {train.lr: {log_uniform: [1e-4, 1e-2]}}, samples: 47", steps=1, name="others.yaml")
        errors = self.run_program("simulate", "--jobs", with_others, *plan, expect=2).stderr
        self.assertIn("the plan is of the jobs sql-001, sql-002, sql-003, sql-004, sql-005, 44 more, the jobs file has sql-001, ", errors)

    def test_seeds_are_drawn_from_a_range_and_options_of_the_run_are_not(self):
        self.train(self.sweep_file("random: {train.seed: {uniform: [0, 9007199254740992]}, train.lr: {log_uniform: [1e-4, 1e-2]}}, samples: 3", steps=2), "run")
        seeds = [int(each["values"]["train.seed"]) for each in self.sweep("run")["candidates"]]
        self.assertEqual(len(set(seeds)), 3)
        self.assertGreater(max(seeds), 2**32)
        refused = self.sweep_file("random: {run.memory: {uniform: [1, 2]}, train.lr: {uniform: [1e-4, 1e-3]}}, samples: 3")
        self.assertIn("jobs.yaml:7: jobs[0].sweep.random.run.memory: is an option of the run, the same for all candidates; a sweep tries options of its job: "
                      "tenant, priority, deadline, and those of data, adapter and train", self.run_program("train", refused, "--check", expect=2).stderr)

    def test_halving_stops_the_rest_and_candidates_keep_their_bits(self):
        self.train(self.sweep_file(GRID + ", halving: {first_steps: 2}"), "run", "--json")
        sweep = self.sweep("run")
        alive = set(NAMES)
        for step, left in ((2, 2), (6, 1)):
            rungs = {each["job"]: rung for each in sweep["candidates"] for rung in each["rungs"] if rung["step"] == step}
            self.assertEqual(set(rungs), alive)
            alive = set(sorted(rungs, key=lambda job: rungs[job]["loss"])[:left])
            self.assertEqual({job for job, rung in rungs.items() if rung["goes_on"]}, alive)
        self.assertEqual({job for job, status in statuses(sweep).items() if status == "finished"}, alive)
        self.assertEqual(sweep["candidates"][0]["rank"], 1)
        plans = json.loads((self.path / "run/summary.json").read_text())["plans"]
        self.assertIn("4 jobs stopped early", [plan["cause"] for plan in plans])
        stopped = [each for each in sweep["candidates"] if each["status"] == "stopped_early"]
        self.assertEqual(sorted(each["step"] for each in stopped), [2, 2, 2, 2, 6])
        self.assertTrue(all(re.fullmatch(r"halving at step \d, rank \d of \d", each["reason"]) for each in stopped))
        alone = ("cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\njobs:\n")
        for each in sweep["candidates"]:
            alone += (f"  - {{name: {each['job']}, data: {{train: plain.jsonl, eval_fraction: 0.3}}, adapter: {{r: {each['values']['adapter.r']}}}, "
                      f"train: {{steps: {each['step']}, batch_size: 4, lr: {each['values']['train.learning_rate']}}}}}\n")
        (self.path / "alone.yaml").write_text(alone)
        self.train(self.path / "alone.yaml", "alone")
        for each in sweep["candidates"]:
            self.assertEqual(self.adapter("run", each["job"]), self.adapter("alone", each["job"]))
        rungs = [event for event in self.metrics("run") if event["event"] == "rung"]
        self.assertEqual([(event["job"], event["step"]) for event in rungs[:6]], [(name, 2) for name in NAMES])

    def test_a_place_goes_to_the_next_candidate_at_once(self):
        jobs = self.sweep_file("random: {train.lr: {log_uniform: [1e-5, 3e-2]}}, samples: 6, max_concurrent: 2, halving: {first_steps: 2, factor: 2}")
        events = [json.loads(line) for line in self.train(jobs, "run", "--json").splitlines()]
        running, most, started, steps_with_a_free_place, others_running = set(), 0, [], 0, []
        for event in events:
            if event["event"] == "start":
                others_running.append(len(running))
                running.add(event["job"])
                started.append(event["job"])
            elif event["event"] == "end":
                running.discard(event["job"])
            elif event["event"] == "step" and len(running) < 2 and len(started) < 6:
                steps_with_a_free_place += 1
            most = max(most, len(running))
        self.assertEqual(most, 2)
        self.assertEqual(steps_with_a_free_place, 0)
        self.assertGreater(others_running[2:].count(1), 0)  # beside one that goes on: not when all before it have ended
        self.assertEqual(started, [f"sql-{number:03}" for number in range(1, 7)])
        first_stop = next(event for event in events if event["event"] == "rung" and not event["goes_on"])
        self.assertEqual((first_stop["step"], first_stop["of"]), (2, 2))
        self.assertIn("stopped_early", statuses(self.sweep("run")).values())

    def test_synchronous_halving_decides_alike_however_many_train_at_a_time(self):
        results = []
        for most in (0, 1, 2):
            jobs = self.sweep_file(f"{GRID}, max_concurrent: {most}, halving: {{first_steps: 2, mode: synchronous}}")
            self.train(jobs, f"run-{most}")
            results.append(decided(self.sweep(f"run-{most}")))
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0], results[2])
        self.assertEqual(self.adapters("run-0", NAMES), self.adapters("run-1", NAMES))
        self.assertEqual(sum(status == "finished" for status in statuses(self.sweep("run-1")).values()), 1)

    def test_waiting_candidates_that_lose_a_rung_end_when_it_is_judged(self):
        for best in ("", ", eval_steps: 1, load_best_model_at_end: true"):
            loaded = self.sweep_file(GRID + ", halving: {first_steps: 2, mode: synchronous}", train=best)
            self.train(loaded, "together" + best[:1], "--json")
            for most in (1, 2, 4):
                with self.subTest(best, max_concurrent=most):
                    jobs = self.sweep_file(f"{GRID}, max_concurrent: {most}, halving: {{first_steps: 2, mode: synchronous}}", train=best)
                    events = [json.loads(line) for line in self.train(jobs, f"run-{most}{best[:1]}", "--json").splitlines()]
                    lost = {event["job"] for event in events if event["event"] == "rung" and event["step"] == 2 and not event["goes_on"]}
                    self.assertEqual(len(lost), 4)
                    ended = set()
                    for event in events:
                        if event["event"] == "end":
                            self.assertTrue((self.path / f"run-{most}{best[:1]}/jobs" / event["job"] / "adapter/adapter_config.json").exists())
                            ended.add(event["job"])
                        if event["event"] == "step" and event["step"] > 2:
                            self.assertLessEqual(lost, ended)
                    self.assertEqual(sum(event["event"] == "start" and event["job"] in lost for event in events), 4)
                    self.assertEqual(self.adapters(f"run-{most}{best[:1]}", NAMES), self.adapters("together" + best[:1], NAMES))

    def stop_and_resume(self, jobs, run, lines, how, *arguments):
        process = self.start_program("train", jobs, "--output-dir", self.path / run, "--json", *arguments)
        for _ in range(lines):
            if not process.stdout.readline():
                break
        if how == signal.SIGKILL:
            self.kill(process)
        else:
            process.send_signal(how)
            output, errors = process.communicate(timeout=LIMIT_S)
            self.assertIn(process.returncode, (0, 130), output + errors)
        if (self.path / run / "run.json").exists():
            self.train(jobs, run, "--resume")
        else:
            self.train(jobs, run)

    def test_a_run_that_is_stopped_anywhere_and_resumed_decides_alike(self):
        for mode in ("asynchronous", "synchronous"):
            jobs = self.sweep_file(f"{GRID}, max_concurrent: 3, halving: {{first_steps: 2, mode: {mode}}}")
            self.train(jobs, f"whole-{mode}")
            for lines in (1, 5, 12, 20, 30, 45):
                with self.subTest(mode, lines=lines):
                    run = f"{mode}-{lines}"
                    self.stop_and_resume(jobs, run, lines, signal.SIGTERM)
                    self.assertEqual(decided(self.sweep(run)), decided(self.sweep(f"whole-{mode}")))
                    self.assertEqual(self.adapters(run, NAMES), self.adapters(f"whole-{mode}", NAMES))
                    self.assertEqual(self.results(run), self.results(f"whole-{mode}"))

    def test_a_run_that_is_killed_anywhere_and_resumed_decides_alike_where_candidates_wait(self):
        jobs = self.sweep_file(f"{GRID}, max_concurrent: 3, halving: {{first_steps: 2, mode: synchronous}}", train=", save_steps: 3")
        self.train(jobs, "whole")
        for lines in (8, 17, 26, 40):
            with self.subTest(lines=lines):
                self.stop_and_resume(jobs, f"run-{lines}", lines, signal.SIGKILL)
                self.assertEqual(decided(self.sweep(f"run-{lines}")), decided(self.sweep("whole")))
                self.assertEqual(self.adapters(f"run-{lines}", NAMES), self.adapters("whole", NAMES))

    def test_a_resumed_run_may_try_more(self):
        jobs = self.sweep_file("random: {train.lr: {log_uniform: [1e-5, 3e-2]}}, samples: 2")
        self.train(jobs, "run")
        before = {name: self.adapter("run", name) for name in ("sql-001", "sql-002")}
        self.train(jobs, "run", "--resume", "--set", "jobs.sql.sweep.samples=4", "--set", "jobs.sql.sweep.max_concurrent=1")
        self.assertEqual(set(statuses(self.sweep("run")).items()), {(f"sql-{number:03}", "finished") for number in range(1, 5)})
        self.assertEqual({name: self.adapter("run", name) for name in before}, before)
        errors = self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume", expect=2).stderr
        self.assertIn("jobs.sql-003: is in the run, and missing now", errors)
        errors = self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume", "--set", "jobs.sql.sweep.samples=4",
                                  "--set", "jobs.sql.sweep.halving.first_steps=2", expect=2).stderr
        self.assertIn("jobs.sql-001.sweep.halving.first_steps: 0, now 2", errors)
        (self.path / "other.yaml").write_text(jobs.read_text().replace("name: sql", "name: other"))
        self.train(self.path / "other.yaml", "run", "--overwrite")
        self.assertEqual([path.name for path in (self.path / "run/sweeps").iterdir()], ["other"])

    def test_a_damaged_record_is_refused_by_a_check_as_by_a_start(self):
        jobs = self.sweep_file(f"{GRID}, halving: {{first_steps: 2}}")
        self.train(jobs, "run")
        (self.path / "run/sweeps/sql/sweep.json").write_text("{")
        for options in (("--check",), ()):
            errors = self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume", *options, expect=2).stderr
            self.assertIn("run/sweeps/sql/sweep.json: is not the record of a sweep", errors)

    def test_failed_candidates_have_no_rank_and_are_not_waited_for(self):
        jobs = self.sweep_file("grid: {train.lr: [1e-3, 1e38, 3e-3]}, halving: {first_steps: 4, mode: synchronous, factor: 2}")
        self.train(jobs, "run", expect=1)
        sweep = self.sweep("run")
        self.assertEqual(sorted(statuses(sweep).values()), ["failed", "finished", "stopped_early"])
        failed = next(each for each in sweep["candidates"] if each["status"] == "failed")
        self.assertIsNone(failed["rank"])
        self.assertEqual(failed["rungs"], [])

    def test_refused_candidates_let_the_others_go_on(self):
        config = json.loads((self.path / "config.json").read_text())
        config.update(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8)
        (self.path / "config.json").write_text(json.dumps(config))
        checked = json.loads(self.run_program("train", self.sweep_file("grid: {adapter.r: [8, 512]}"), "--check", "--json", "--memory", "6GiB").stdout)
        small, large = (job["peak_bytes"] for job in checked["jobs"])
        self.assertLess(1.5 * small, large)
        # What the process takes beside its tensors, and a limit between the two candidates.
        limit = f"{(6 * 2**30 - checked['memory_limit_bytes'] + (small + large) // 2) >> 10}KiB"
        for number, (sweep, left) in enumerate([
                ("grid: {adapter.r: [8, 512, 16]}, max_concurrent: 1", ["finished", "finished"]),
                ("grid: {adapter.r: [8, 16, 512]}, max_concurrent: 1, halving: {first_steps: 2, factor: 2, mode: synchronous}",
                 ["finished", "stopped_early"])]):
            with self.subTest(sweep):
                self.train(self.sweep_file(sweep), f"run-{number}", "--memory", limit, expect=1)
                ended = statuses(self.sweep(f"run-{number}"))
                self.assertEqual(ended.pop("sql-r512"), "refused")
                self.assertEqual(sorted(ended.values()), left)

    def test_resuming_takes_up_the_paused_one_that_all_wait_for(self):
        jobs = self.sweep_file(f"{GRID}, halving: {{first_steps: 60, mode: synchronous}}", steps=70)
        process = self.start_program("train", jobs, "--output-dir", self.path / "run", "--json")
        self.wait_for(process, lambda event: event["event"] == "step")
        pause = self.start_program("job", "pause", "--run", self.path / "run", NAMES[2])
        self.wait_for(process, lambda event: event["event"] == "pause")
        self.end(pause, 0)
        self.end(process, 130)
        self.assertEqual(sorted(set(statuses(self.sweep("run")).values())), ["paused", "waiting"])
        self.train(jobs, "run", "--resume")
        self.assertEqual(sorted(set(statuses(self.sweep("run")).values())), ["finished", "stopped_early"])

    def test_only_a_sweep_that_changed_is_written(self):
        jobs = self.sweep_file(GRID + ", halving: {first_steps: 2}")
        jobs.write_text(jobs.read_text() + "  - name: long\n    data: {train: plain.jsonl, eval_fraction: 0.3}\n"
                        "    train: {steps: 4000, batch_size: 4}\n    sweep: {grid: {adapter.r: [2]}}\n")
        process = self.start_program("train", jobs, "--output-dir", self.path / "run", "--json")
        for _ in NAMES:
            self.wait_for(process, lambda event: event["event"] == "end")
        self.assertEqual(sorted(path.name for path in (self.path / "run/sweeps").iterdir()), ["sql"])
        process.send_signal(signal.SIGTERM)
        self.end(process, 130)
        self.assertEqual(statuses(self.sweep("run", "long")), {"long-r2": "running"})

    def test_the_table_of_a_stopped_run_names_who_is_ahead(self):
        jobs = self.sweep_file(GRID + ", halving: {first_steps: 2}", steps=4000)
        process = self.start_quietly(jobs, "--output-dir", self.path / "run")
        self.wait_for_rung(process, 6)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=LIMIT_S), 130)
        said = (self.path / "log").read_text()
        sweep = self.sweep("run")
        by_loss = sorted(sweep["candidates"], key=lambda each: each["eval_loss"])
        self.assertEqual(by_loss[0]["status"], "running")
        self.assertNotEqual(by_loss[0]["job"], sweep["best"])
        table = said[said.index("sweep sql"):].splitlines()
        self.assertEqual([line.split()[0] for line in table[1:7]], [each["job"].removeprefix("sql-") for each in by_loss])
        self.assertEqual(table[7], f"best     {sweep['best']}, in {self.path}/run/sweeps/sql: of those that have left an adapter")
        self.assertEqual(table[8], f"ahead    {by_loss[0]['job']}, which goes on with --resume")

    def test_stopped_candidates_count_among_those_that_train_at_a_time(self):
        jobs = self.sweep_file(f"{GRID}, max_concurrent: 1, halving: {{first_steps: 2, mode: synchronous}}")
        events = [json.loads(line) for line in self.train(jobs, "run", "--json").splitlines()]
        loaded = set()
        for event in events:
            if event["event"] == "start":
                loaded.add(event["job"])
            elif event["event"] in ("end", "wait"):
                loaded.discard(event["job"])
            self.assertLessEqual(len(loaded), 1, event)

    def test_ranks_decide_alike(self):
        jobs = self.sweep_file(GRID + ", halving: {first_steps: 2}")
        self.train(jobs, "one")
        self.train(jobs, "two", "--ranks", "2")
        one, two = self.sweep("one"), self.sweep("two")
        self.assertEqual(statuses(one), statuses(two))
        self.assertEqual(one["best"], two["best"])

    def test_a_sweep_joins_a_run(self):
        jobs = self.jobs_file(steps=3, jobs=["plain"])
        process = self.start_program("train", jobs, "--output-dir", self.path / "run", "--json", "--set", "run.stay=true")
        self.wait_for(process, lambda event: event["event"] == "end")
        sweep = self.sweep_file(GRID + ", halving: {first_steps: 2}", name="sweep.yaml")
        added = self.run_program("job", "add", "--run", self.path / "run", sweep).stdout
        self.assertEqual(added.count("starts; 8 steps"), 6)
        ended = 0
        while ended < 6:
            self.wait_for(process, lambda event: event["event"] == "end")
            ended += 1
        late = self.sweep_file("grid: {adapter.r: [3]}, halving: {first_steps: 8}", name="late.yaml")
        late.write_text(late.read_text().replace("name: sql", "name: late"))
        self.assertIn("no candidate of `late` comes to a rung: they have at most 8 steps",
                      self.run_program("job", "add", "--run", self.path / "run", late, expect=2).stderr)
        again = self.sweep_file("grid: {adapter.r: [3]}", name="again.yaml")
        self.assertIn("the run has a sweep `sql` already", self.run_program("job", "add", "--run", self.path / "run", again, expect=2).stderr)
        self.run_program("job", "drain", "--run", self.path / "run")
        self.end(process, 0)
        self.assertEqual(sum(status == "finished" for status in statuses(self.sweep("run")).values()), 1)

    def test_the_report_compares_candidates(self):
        self.train(self.sweep_file(GRID + ", halving: {first_steps: 2}"), "run")
        self.run_program("report", "--run", self.path / "run", "--output", self.path / "page.html")
        page = (self.path / "page.html").read_text()
        section = page[page.index("<h2>Sweep sql</h2>"):page.index("<h2>Jobs</h2>")]
        best = self.sweep("run")["best"]
        self.assertLess(section.index(f"<b>{best}</b>, best"), min(section.index(f">{name}</td>") for name in NAMES if name != best))
        for title in ("held-out loss of each candidate", "held-out loss over adapter.r", "held-out loss over train.learning_rate"):
            self.assertIn(title, section)
        self.assertNotIn("log10", section)
        for rate in ("1e-5", "3e-3", "0.03"):
            self.assertIn(f">{rate}</text>", section)
        shapes = re.compile(r'<svg class="swatch"[^>]*>(.*?)</svg>(?:<b>)?(sql-[^<,]*)')
        swatches = {name: shape.replace(" faint", "") for shape, name in shapes.findall(section)}
        self.assertEqual((set(swatches), len(set(swatches.values()))), (set(NAMES), len(NAMES)))
        jobs = page[page.index("<h2>Jobs</h2>"):page.index("<h2>Losses</h2>")]
        self.assertEqual({name: shape for shape, name in shapes.findall(jobs)}, swatches)  # a candidate's own everywhere
        self.assertIn("halving at step 2, rank", section)

    def test_the_report_charts_what_candidates_are_compared_by(self):
        self.train(self.sweep_file(GRID + ", metric: eval_accuracy", train=", eval_steps: 4"), "run")
        self.run_program("report", "--run", self.path / "run", "--output", self.path / "page.html")
        page = (self.path / "page.html").read_text()
        section = page[page.index("<h2>Sweep sql</h2>"):page.index("<h2>Jobs</h2>")]
        shown = re.findall(r'aria-label="([^"]*)" data-x="[^"]*" data-y="([^,]*),([^,]*),', section)
        self.assertEqual([title for title, *_ in shown], [f"held-out rows right, in %, {of}" for of in
                                                         ("of each candidate", "over adapter.r", "over train.learning_rate")])
        shares = [100 * each["eval_accuracy"] for each in self.sweep("run")["candidates"]]
        for title, low, high in shown:
            self.assertLessEqual(float(low), min(shares) + 1e-9, title)
            self.assertGreaterEqual(float(high), max(shares) - 1e-9, title)
            self.assertLess(float(high), 200, title)  # and no loss

    def test_the_table_is_as_wide_as_the_terminal(self):
        jobs = self.sweep_file("grid: {adapter.target_modules: [[q_proj, k_proj, v_proj, o_proj], [gate_proj, up_proj, down_proj]], adapter.r: [2, 4]}", steps=2)
        jobs.write_text(jobs.read_text().replace("name: sql", "name: structured-query-language-for-us"))
        widths = {}
        for columns in (80, 120, 200):
            program = TerminalProgram(self.command("train", jobs, "--overwrite", "--output-dir", self.path / "run"), columns=columns)
            self.addCleanup(program.close)
            self.assertEqual(program.end(), 0)
            said = program.screen.normal.replace("\r", "")
            table = said[said.index("sweep structured"):].splitlines()[:5]
            widths[columns] = max(map(len, table))
            self.assertLessEqual(widths[columns], columns)
            self.assertEqual("[q_proj, k_proj, v_proj, o_proj]" in "\n".join(table), columns > 80)
            results = re.findall(r"(?m)^(st\S*r[24]) +finished +2 ", said)
            self.assertEqual(len(results), 4, said)
            self.assertEqual(any(name.startswith("structured-query-language-for-us-") for name in results), columns > 80, results)
        self.assertLess(widths[80], widths[120])

    def test_the_live_view_says_how_far_a_sweep_is_and_which_candidate_stands_best(self):
        jobs = self.sweep_file(GRID + ", max_concurrent: 2", steps=1_000_000, train=", eval_steps: 1")
        program = TerminalProgram(self.command("train", jobs, "--output-dir", self.path / "run", "--threads=1"), columns=130)
        self.addCleanup(program.close)

        def frame_with(counts):
            """A whole frame with these counts and two candidates that have come apart, after two steps: after one what is held out may be the base model's.
            The one that stands best, and the lines."""
            for lines in program.screen.frames:
                held_out = {match[1]: (match[2], match[3]) for match in
                            (re.match(r"[ ▶] (sql-r\S+) +(\w+) +(?:[2-9]|\d\d+)/.*? (\d+\.\d{4}) +\d\.\d\de-", line) for line in lines) if match}
                told = re.match(rf"sweep sql · least held out (\d+\.\d{{4}}): (\S+) · {counts}$", lines[3])
                of_running = {loss for status, loss in held_out.values() if status == "running"}
                if told and len(of_running) == 2:
                    self.assertEqual(told[1], min(loss for status, loss in held_out.values() if status != "cancelled"), lines)
                    self.assertEqual(held_out[told[2]][1], told[1], lines)
                    return told[2], lines
            return None

        program.wait_for(lambda _: frame_with("2 running, 4 waiting"))
        best, lines = frame_with("2 running, 4 waiting")
        self.assertIn("4 jobs wait: sweep: `sql` trains 2 at a time", lines)
        self.run_program("job", "cancel", "--run", self.path / "run", best)
        program.wait_for(lambda _: frame_with("2 running, 3 waiting, 1 cancelled"))
        other, lines = frame_with("2 running, 3 waiting, 1 cancelled")
        self.assertNotEqual(other, best)
        self.assertIn("3 jobs wait: sweep: `sql` trains 2 at a time", lines)
        self.assertRegex(self.run_program("status", "--run", self.path / "run").stdout,
                         r"\nsweep sql · least held out \d+\.\d{4}: sql-r\S+ · 2 running, 3 waiting, 1 cancelled\n")
        program.resize(48, 24)
        program.wait_for(lambda screen: re.search(r"(?m)^sweep sql · least held out \d+\.\d{4}: sql-r\S+$", screen.text()))
        program.press("\x03")
        self.assertEqual(program.end(), 130)

    def test_the_best_answers_and_loads_in_peft(self):
        model = copy_model(self.path / "model")
        rows = [json.dumps({"prompt": f"List {i}.", "completion": f" SELECT {i};"}) for i in range(30)]
        (self.path / "plain.jsonl").write_text("\n".join(rows) + "\n")
        jobs = self.sweep_file("grid: {adapter.r: [2, 4], train.lr: [3e-3, 1e-2]}", model="{path: model}")
        self.train(jobs, "run")
        folder = self.path / "run/sweeps/sql"
        self.run_program("generate", "--adapter", folder, "--prompt", "List 3.", "--max-new-tokens", "4")
        needs.require(self, "transformers")
        lines = self.run_program("evaluate", "--adapter", folder, "--data", self.path / "plain.jsonl", "--json", "--dtype", "float32").stdout.splitlines()
        losses = {line["adapter"]: line["loss"] for line in map(json.loads, lines)}
        with_adapter = losses.pop(next(name for name in losses if name != "base"))
        self.assertNotAlmostEqual(with_adapter, losses["base"], delta=1e-2)
        done = subprocess.run([sys.executable, "-c", JUDGE, model, folder, "plain.jsonl"], cwd=self.path, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertAlmostEqual(with_adapter, float(done.stdout), delta=1e-4)

    def test_the_example_is_accepted(self):
        copy_model(self.path / "models-of-examples")
        data = self.path / "data"
        data.mkdir()
        for name in ("sql", "support", "support-held-out"):
            (data / f"{name}.jsonl").write_text("".join(json.dumps({"text": text_of(range(40, 60 + i))}) + "\n" for i in range(40)))
        example = (ROOT / "examples/sweep.yaml").read_text()
        (self.path / "sweep.yaml").write_text(example.replace("models/my-model", "models-of-examples"))
        said = self.run_program("train", "--check", self.path / "sweep.yaml").stdout
        self.assertIn("sweep sql: 6 candidates of adapter.r, adapter.alpha, train.learning_rate; rungs at steps 50, 150, 450\n", said)
        self.assertIn("sweep support: 12 candidates of ", said)
        self.assertIn("18 jobs are ready to train", said)


if __name__ == "__main__":
    unittest.main()
