#!/usr/bin/env python3
"""cotune job: jobs that come, leave, pause and go on while a run goes on, and what a resumed run makes of it.

    COTUNE=build/cotune python3 tests/cli/job_test.py [UNITTEST OPTIONS]

A run that says its lines into a pipe of 4 KiB waits for its reader: what is asked of it meanwhile is done at its next boundary.
"""
import json
import os
import random
import signal
import socket
import stat
import subprocess
import time
import unittest
from pathlib import Path

from program import LIMIT_S, METHODS, PROGRAM, ProgramTest, values_of

ENDLESS = 1_000_000  # steps


class JobTest(ProgramTest):
    def one_job(self, name, steps, save_steps=0, file=None):
        return self.jobs_file(steps=steps, save_steps=save_steps, jobs=[name], name=file or f"{name}.yaml")

    def job(self, action, run, *arguments, expect=0):
        return self.run_program("job", action, "--run", run, *arguments, expect=expect)

    def connect(self, run):
        connection = socket.socket(socket.AF_UNIX)
        self.addCleanup(connection.close)
        folder = os.open(run, os.O_PATH)  # whose path may be too long for an address
        connection.connect(f"/proc/self/fd/{folder}/control.sock")
        os.close(folder)
        return connection

    def told(self, run, **request):
        """The reply to a request, without a program that asks."""
        connection = self.connect(run)
        connection.sendall(json.dumps({"cotune": 1, **request}).encode() + b"\n")
        reply = json.loads(connection.makefile().readline())
        connection.close()
        self.assertTrue(reply["ok"], reply)
        return reply

    def listed(self, run):
        return {job["name"]: job for job in self.told(run, request="list")["jobs"]}

    def wait_for_status(self, run, job, status):
        while True:
            report = self.listed(run)[job]
            if report["status"] == status:
                return report
            self.assertNotIn(report["status"], ("failed", "refused", "cancelled", "finished"), report)
            time.sleep(0.01)

    def ask(self, run, **request):
        """Sends a request without waiting for its reply, and returns when the run has it."""
        connections = []
        for line in ({"cotune": 1, **request}, {"cotune": 1, "request": "status"}):
            connection = self.connect(run)
            connection.sendall(json.dumps(line).encode() + b"\n")
            connections.append(connection)
        connections[1].makefile().readline()  # requests are taken in the order of connections
        return connections[0]

    def reply(self, connection):
        reply = json.loads(connection.makefile().readline())
        self.assertTrue(reply["ok"], reply)
        return reply["jobs"]


class WhileARunGoesOn(JobTest):
    def test_jobs_join_pause_go_on_and_leave(self):
        run = self.path / "run"
        generator = random.Random(3)
        with open(self.path / "sparse.jsonl", "w") as data:  # longer rows than the run has had; none is cut
            for length in (200, 250, 150, 240, 220, 100, 170, 230) * 3:
                ids = [generator.randrange(3, 15) for _ in range(length)]
                data.write(json.dumps({"input_ids": ids, "labels": [-100] + ids[1:]}) + "\n")
        more = self.one_job("sparse", 100)
        self.run_program("train", more, "--set", "jobs.sparse.train.steps=4", "--output-dir", self.path / "alone")
        process = self.start_quietly(self.one_job("plain", ENDLESS), "--stay", "--threads=1", "--output-dir", run)
        mode = os.stat(run / "control.sock").st_mode
        self.assertEqual((stat.S_ISSOCK(mode), stat.S_IMODE(mode)), (True, 0o600))
        plain = self.wait_for_status(run, "plain", "running")
        self.assertEqual((plain["steps"], plain["added"], plain["checkpoint"]), (ENDLESS, False, None))

        # The model may be left out, and values of --set replace the file's.
        text = more.read_text().splitlines(keepends=True)
        more.write_text("".join(line for line in text if not line.startswith("model")))
        said = self.job("add", run, more, "--set", "jobs.sparse.train.steps=4").stdout
        self.assertRegex(said, "^sparse: starts; 4 steps\n$")
        sparse = self.wait_for_status(run, "sparse", "finished")
        self.assertTrue(sparse["added"])
        self.assertEqual(self.adapter("run", "sparse"), self.adapter("alone", "sparse"))
        self.assertEqual(self.results("run")["sparse"], self.results("alone")["sparse"])

        said = json.loads(self.job("priority", run, "plain", "7", "--json").stdout)
        self.assertEqual((said["cotune"], said["ok"], said["jobs"][0]["priority"]), (1, True, 7))
        self.assertRegex(self.job("pause", run, "plain").stdout, rf"^plain: paused at step \d+; checkpoint {run}/jobs/plain/step-\d+\n$")
        paused = self.listed(run)["plain"]
        self.assertEqual((paused["status"], paused["priority"]), ("paused", 7))
        self.assertIn("is paused already", self.job("pause", run, "plain", expect=2).stderr)
        while self.told(run, request="status")["run"]["phase"] != "idle":
            time.sleep(0.01)
        self.assertRegex(self.job("resume", run, "plain").stdout, rf"^plain: goes on at step {paused['step']} of {ENDLESS}\n$")
        self.assertIn("did you mean `plain`?", self.job("cancel", run, "plian", expect=2).stderr)
        said = self.job("cancel", run, "plain").stdout
        self.assertRegex(said, rf"^plain: cancelled at step \d+; checkpoint {run}/jobs/plain/step-\d+\n$")
        self.assertTrue(os.path.isdir(said.split()[-1]))
        table = self.job("list", run).stdout.splitlines()
        self.assertRegex(table[0], "^job +status +priority +step +loss +left$")
        self.assertRegex(table[1], r"^plain +cancelled +7 +\d+/1000000 +\d\.\d{4} *$")
        self.assertEqual([line for line in table if len(line) > 80], [])
        self.assertIn("saves every job", self.job("drain", run).stdout)
        self.assertEqual(process.wait(LIMIT_S), 0, (self.path / "log").read_text())  # every job had ended
        summary = json.loads((run / "summary.json").read_text())
        self.assertEqual({job["name"]: job["status"] for job in summary["jobs"]}, {"plain": "cancelled", "sparse": "finished"})
        self.assertFalse((run / "control.sock").exists())
        self.assertIn("nobody listens", self.job("list", run, expect=2).stderr)

    def test_jobs_that_cannot_join_are_refused_with_their_places(self):
        run = self.path / "run"
        process = self.start_quietly(self.one_job("plain", 2), "--stay", "--output-dir", run)

        def refused(file, *overrides):
            request = {"cotune": 1, "request": "add", "jobs_file": file.name, "text": file.read_text(), "folder": str(self.path),
                       "overrides": overrides}
            connection = self.connect(run)
            connection.sendall(json.dumps(request).encode() + b"\n")
            error = json.loads(connection.makefile().readline())["error"]
            self.assertEqual(error["code"], "refused")
            return error["message"]

        more = self.one_job("sparse", 4, file="more.yaml")
        self.assertRegex(refused(self.one_job("plain", 4, file="same.yaml")),
                         r"same\.yaml:5: jobs\[0\]\.name: `plain` is the name of a job of the run already")
        (self.path / "twice.yaml").write_text(more.read_text() + more.read_text().splitlines()[-1] + "\n")
        self.assertRegex(refused(self.path / "twice.yaml"), r"twice\.yaml:6: jobs\[1\]\.name: `sparse` is also the name of")
        (self.path / "other.yaml").write_text(more.read_text().replace("seed: 3", "seed: 4"))
        self.assertRegex(refused(self.path / "other.yaml"),
                         r"other\.yaml:2: model\.seed: is 4, but the run that the jobs are to join has 3: leave it out")
        self.assertRegex(refused(more, "run.token_budget=512"),
                         r"--set: run\.token_budget: is 512, but the run that the jobs are to join has 1024")
        self.assertRegex(refused(more, "jobs.sparse.train.lr=fast"), r"--set: jobs\.sparse\.train\.lr: must be")
        self.assertRegex(refused(more, "jobs.sparse.adapter.layers_to_transform=[7]"), r"layers_to_transform")
        (self.path / "sparse.jsonl").write_text('{"input_ids": [3, 4, 500], "labels": [3, 4, 500]}\n{"input_ids": 3}\n')
        done = self.job("add", run, more, "--set", "jobs.sparse.train.steps=2", "--json", expect=2)
        self.assertRegex(done.stderr, r"sparse\.jsonl:1: input_ids\[2\]: found 500(.|\n)*sparse\.jsonl:2: ")
        reply = json.loads(done.stdout)
        self.assertEqual((reply["ok"], reply["error"]["code"]), (False, "refused"))
        self.assertEqual({mistake["line"] for mistake in reply["error"]["mistakes"]}, {1, 2})
        self.assertIn("there is no command `pauze`; did you mean `pause`?", self.run_program("job", "pauze", "a", expect=2).stderr)
        self.assertIn("a command is needed: list, status, add,", self.run_program("job", expect=2).stderr)
        self.assertIn("no such file", self.job("add", run, self.path / "none.yaml", expect=2).stderr.lower())
        self.assertIn("must be a whole number from -1000000 to 1000000, got 1.5", self.job("priority", run, "plain", "1.5", expect=2).stderr)
        (self.path / "broken.yaml").write_text("\njobs: [")
        done = self.job("add", run, self.path / "broken.yaml", "--json", expect=2)
        [mistake] = json.loads(done.stdout)["error"]["mistakes"]
        self.assertEqual((Path(mistake["file"]).name, mistake["line"]), ("broken.yaml", 2))
        self.assertIn("not YAML", mistake["message"])
        self.assertEqual(list(self.listed(run)), ["plain"])
        while self.listed(run)["plain"]["status"] != "finished":
            time.sleep(0.05)
        self.told(run, request="drain")
        self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertNotIn("job_changes", json.loads((run / "run.json").read_text()))

    def test_a_job_starts_from_another_of_the_run_when_that_has_ended(self):
        run = self.path / "run"
        process = self.start_quietly(self.one_job("plain", ENDLESS), "--stay", "--output-dir", run)
        while self.listed(run)["plain"]["step"] == 0:
            time.sleep(0.01)
        self.job("pause", run, "plain")  # which saves it
        more = self.path / "more.yaml"
        more.write_text(f"cotune: 1\njobs:\n  - {{name: next, data: {{train: plain.jsonl}}, train: {{steps: 2}}, adapter: {{init_from: {run}/jobs/plain, "
                        "r: 4, alpha: 8, target_modules: all-linear}}\n")
        self.assertRegex(self.job("add", run, more, expect=2).stderr,
                         r"more\.yaml:3: jobs\[0\]\.adapter\.init_from: \S+/run/jobs/plain is of job `plain` of this run, which has not ended")
        self.assertEqual(list(self.listed(run)), ["plain"])
        self.job("cancel", run, "plain")
        self.job("add", run, more)
        self.wait_for_status(run, "next", "finished")
        self.assertEqual(list(json.loads((run / "run.json").read_text())["initial_adapters"]), ["next"])
        self.told(run, request="drain")
        self.assertEqual(process.wait(LIMIT_S), 0, (self.path / "log").read_text())

    def test_a_job_that_can_never_fit_is_refused_before_it_joins(self):
        row = json.dumps({"input_ids": [3] * 500, "labels": [3] * 500})
        (self.path / "long.jsonl").write_text((row + "\n") * 8)
        config = json.loads((self.path / "config.json").read_text())
        config.update(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8)
        (self.path / "config.json").write_text(json.dumps(config))
        head = "cotune: 1\nmodel: {config: ./config.json, weights: random, dtype: float32}\njobs:\n"
        small = f"  - {{name: small, data: {{train: plain.jsonl}}, adapter: {{r: 1}}, train: {{optimizer: sgd, steps: {ENDLESS}}}}}\n"
        large = "  - {name: large, data: {train: long.jsonl}, adapter: {r: 512, target_modules: all-linear}}\n"
        jobs, more, both = (self.path / name for name in ("jobs.yaml", "more.yaml", "both.yaml"))
        for file, text in ((jobs, small), (more, large), (both, small + large)):
            file.write_text(head + text)
        checked = json.loads(self.run_program("train", both, "--check", "--json", "--memory", "6GiB").stdout)
        of_small, of_large = (job["peak_bytes"] for job in checked["jobs"])
        outside = 6 * 2**30 - checked["memory_limit_bytes"]  # what the process takes beside its tensors
        run = self.path / "run"
        process = self.start_quietly(jobs, "--memory", f"{(outside + (2 * of_small + of_large) // 3) >> 10}KiB", "--output-dir", run)
        self.wait_for_status(run, "small", "running")
        errors = self.job("add", run, more, expect=2).stderr
        self.assertRegex(errors, r"more\.yaml:4: jobs\.large: can never run within run\.memory: it needs \d+\.\d MiB by itself")
        self.assertEqual(list(self.listed(run)), ["small"])
        self.told(run, request="drain")
        self.assertEqual(process.wait(LIMIT_S), 130)

    def test_a_paused_job_ends_with_equal_bits_and_changes_nobody(self):
        jobs = self.jobs_file(steps=40, save_steps=7)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        run = self.path / "run"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] >= 3)
        pause = self.ask(run, request="pause", job="sparse")
        self.wait_for(process, lambda event: event["event"] == "pause" and event["job"] == "sparse")
        self.assertEqual(self.reply(pause)[0]["status"], "paused")
        self.wait_for(process, lambda event: event["event"] == "step" and event["job"] == "plain" and event["step"] % 5 == 0)
        resume = self.ask(run, request="resume", job="sparse")
        self.wait_for(process, lambda event: event["event"] == "start" and event["job"] == "sparse")
        self.assertEqual(self.reply(resume)[0]["status"], "running")
        self.end(process, expect=0)
        self.assertEqual(self.adapters("run"), self.adapters("whole"))
        self.assertEqual(self.results("run"), self.results("whole"))

    def test_on_ranks_and_in_a_folder_with_a_long_path(self):
        run = self.path
        for letter in "abcd":
            run /= letter * 50
        self.run_program("train", self.one_job("sparse", 4, file="alone.yaml"), "--output-dir", self.path / "alone")
        process = self.start_quietly(self.one_job("plain", ENDLESS), "--stay", "--ranks=2", "--output-dir", run)
        self.assertRegex(self.job("add", run, self.one_job("sparse", 4)).stdout, "^sparse: ")
        self.wait_for_status(run, "sparse", "finished")
        self.assertEqual(self.told(run, request="cancel", job="plain")["jobs"][0]["status"], "cancelled")
        left = values_of((run / "jobs/sparse/adapter/adapter_model.safetensors").read_bytes())
        for name, values in values_of(self.adapter("alone", "sparse")).items():
            largest = max(map(abs, values))
            self.assertLessEqual(max(abs(a - b) for a, b in zip(values, left[name])), 1e-3 * largest)
        process.send_signal(signal.SIGTERM)  # while it waits
        self.assertEqual(process.wait(LIMIT_S), 0)

    def test_whoever_asks_a_process_that_is_stopped_is_told_that_it_does_not_answer(self):
        run = self.path / "run"
        process = self.start_quietly(self.jobs_file(steps=ENDLESS, jobs=["plain"]), "--output-dir", run)
        for action, arguments, why in (("list", (), "its process may be stopped"), ("pause", ("plain",), "in the middle of a round")):
            with self.subTest(action):
                process.send_signal(signal.SIGSTOP)
                threads = Path(f"/proc/{process.pid}/task")
                while not all("State:\tT" in (thread / "status").read_text() for thread in threads.iterdir()):
                    time.sleep(0.01)
                asking = subprocess.Popen(self.command("job", action, "--run", run, *arguments), stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True)
                self.running.append(asking)
                said = asking.stderr.readline()
                process.send_signal(signal.SIGCONT)
                self.assertIn(f"the run in {run} has not answered for 2 s: ", said)
                self.assertIn(why, said)
                answer, _ = asking.communicate(timeout=LIMIT_S)
                self.assertEqual(asking.returncode, 0)
                self.assertIn("plain", answer)
        self.assertIn(process.wait(LIMIT_S), (0, 130))  # its only job is paused


class WhenARunIsResumed(JobTest):
    def test_after_a_kill_it_goes_on_as_it_was_last_changed(self):
        jobs = self.jobs_file(steps=40, jobs=["plain", "bottleneck"])
        self.run_program("train", self.jobs_file(steps=40, name="all.yaml"), "--output-dir", self.path / "whole")
        run = self.path / "run"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] >= 3)
        more = self.one_job("sparse", 40, save_steps=3)
        asked = [self.ask(run, request="add", jobs_file="more.yaml", text=more.read_text(), folder=str(self.path)),
                 self.ask(run, request="pause", job="bottleneck"), self.ask(run, request="priority", job="plain", priority=4)]
        self.wait_for(process, lambda event: event["event"] == "start" and event["job"] == "sparse")
        for connection in asked:
            self.reply(connection)
        self.wait_for(process, lambda event: event["event"] == "step" and event["job"] == "sparse" and event["step"] == 5)
        self.kill(process)
        changes = json.loads((run / "run.json").read_text())["job_changes"]
        self.assertEqual(changes, {"added": ["sparse"], "paused": ["bottleneck"], "cancelled": [], "priorities": {"plain": 4}})
        more.unlink()

        checked = json.loads(self.run_program("train", jobs, "--resume", "--check", "--json", "--output-dir", run).stdout)
        self.assertEqual([job["name"] for job in checked["jobs"]], ["plain", "bottleneck", "sparse"])
        self.assertGreaterEqual(checked["jobs"][2]["step"], 3)
        said = self.run_program("train", jobs, "--resume", "--output-dir", run, expect=130).stdout
        self.assertIn("job `bottleneck` is still paused: --resume goes on with it", said)
        self.assertEqual(self.adapters("run", ["plain", "sparse"]), self.adapters("whole", ["plain", "sparse"]))
        summary = json.loads((run / "summary.json").read_text())
        self.assertEqual([job["status"] for job in summary["jobs"]], ["finished", "paused", "finished"])

        # Nothing else is left to do: now the paused job is meant.
        self.run_program("train", jobs, "--resume", "--output-dir", run)
        self.assertEqual(self.adapters("run"), self.adapters("whole"))
        self.assertEqual(self.results("run"), self.results("whole"))

    def test_jobs_whose_data_is_being_read_when_the_run_ends_are_told_so(self):
        (self.path / "long.jsonl").write_text('{"input_ids": [3, 4, 5], "labels": [3, 4, 5]}\n' * 400_000)
        more = self.one_job("sparse", 4, file="more.yaml")
        more.write_text(more.read_text().replace("sparse.jsonl", "long.jsonl"))
        run = self.path / "run"
        process = self.start_quietly(self.one_job("plain", ENDLESS), "--threads=1", "--output-dir", run)
        self.wait_for_status(run, "plain", "running")
        add = self.ask(run, request="add", jobs_file=more.name, text=more.read_text(), folder=str(self.path))
        self.told(run, request="drain")
        reply = json.loads(add.makefile().readline())
        self.assertEqual((reply["ok"], reply["error"]["code"]), (False, "ended"))
        self.assertEqual(process.wait(LIMIT_S), 130)
        self.assertEqual([job["name"] for job in json.loads((run / "summary.json").read_text())["jobs"]], ["plain"])

    def test_a_cancelled_job_stays_cancelled_and_a_run_may_be_drained(self):
        jobs = self.jobs_file(steps=40, save_steps=0)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        run = self.path / "run"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, lambda event: event["event"] == "step" and event["job"] == "sparse" and event["step"] >= 3)
        cancel = self.ask(run, request="cancel", job="plain")
        end = self.wait_for(process, lambda event: event["event"] == "end")
        self.assertEqual((end["job"], end["status"], end["adapter_step"]), ("plain", "cancelled", None))
        self.assertEqual(self.reply(cancel)[0]["checkpoint"], str(run / "jobs/plain" / f"step-{end['step']}"))
        drain = self.ask(run, request="drain")
        self.assertEqual(json.loads(drain.makefile().readline())["run"]["phase"], "stopping")
        output, _ = self.end(process, expect=130)
        summary = json.loads(output.splitlines()[-1])
        self.assertTrue(summary["interrupted"])
        resumed = self.run_program("train", jobs, "--resume", "--json", "--output-dir", run).stdout
        ends = {event["job"]: event["status"] for event in map(json.loads, resumed.splitlines()) if event["event"] == "end"}
        self.assertEqual(ends, {"plain": "cancelled", "bottleneck": "finished", "sparse": "finished"})
        others = ["bottleneck", "sparse"]
        self.assertEqual(self.adapters("run", others), self.adapters("whole", others))
        self.assertFalse((run / "jobs/plain/adapter").exists())
        results, whole = self.results("run"), self.results("whole")
        self.assertEqual([results[job] for job in others], [whole[job] for job in others])
        self.assertEqual(dict(results["plain"][-1])["status"], "cancelled")


if __name__ == "__main__":
    unittest.main(verbosity=2)
