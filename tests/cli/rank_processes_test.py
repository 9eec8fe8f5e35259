"""cotune train as several processes, as torchrun and Slurm start them, through its command line."""
import json
import os
import shutil
import signal
import socket
import subprocess
import unittest

import needs
from program import CONFIG, LIMIT_S
from rank_launch import EXACT, LaunchTest, free_port, slurm, torchrun
from tiny_models import write_model


class RankProcesses(LaunchTest):
    def test_leave_what_one_rank_leaves(self):
        for launcher in (torchrun, slurm):
            with self.subTest(launcher=launcher.__name__):
                run = launcher.__name__
                (first, _), (second, _) = self.end_all(self.train(run, launcher=launcher))
                self.assertEqual(second, "")
                ranks = json.loads(first.splitlines()[-1])["ranks"]
                self.assertEqual([(rank["first_layer"], rank["last_layer"]) for rank in ranks], [(0, 0), (1, 1)])
                self.assertEqual({rank["host"] for rank in ranks}, {socket.gethostname()})
                for rank in ranks:
                    for shares in (rank["measured"], rank["predicted"]):
                        self.assertAlmostEqual(shares["busy"] + shares["exposed"] + shares["bubble"], 1)
                        self.assertGreater(shares["busy"], 0)
                    self.assertGreater(rank["predicted_peak_bytes"], rank["weight_bytes"])
                self.assert_like_one_rank(run)

    def test_processes_that_divide_layers_leave_what_one_rank_leaves(self):
        written = self.end_all(self.train("four", "--parallel=pp=2,tp=2", *EXACT, size=4))
        self.assertEqual([errors for _, errors in written[1:]], [""] * 3)
        ranks = json.loads(written[0][0].splitlines()[-1])["ranks"]
        self.assertEqual([(rank["first_layer"], rank["part"], rank["parts"]) for rank in ranks],
                         [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)])
        for rank in ranks:
            self.assertGreater(rank["collectives"], 0)
        self.assert_like_one_rank("four", *EXACT, bound=1e-10)

    def test_four_processes_that_are_stages_or_divide_layers_leave_what_one_rank_leaves(self):
        (self.path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                                                           "head_dim": 16}))
        for parallel in ("pp=4", "tp=4"):
            with self.subTest(parallel):
                written = self.end_all(self.train(parallel, f"--parallel={parallel}", *EXACT, steps=4, size=4))
                self.assertEqual(len(json.loads(written[0][0].splitlines()[-1])["ranks"]), 4)
                self.assert_like_one_rank(parallel, *EXACT, steps=4, bound=1e-10)

    def test_processes_leave_what_one_rank_leaves_in_every_order(self):
        for order in ("gpipe", "lorapp", "muxtune"):
            with self.subTest(order):
                self.end_all(self.train(order, "--parallel=pp=2", f"--pipeline-order={order}", *EXACT, steps=6))
                self.assert_like_one_rank(order, *EXACT, steps=6, bound=1e-10)

    def test_processes_that_divide_the_tokens_too_leave_what_one_rank_leaves(self):
        self.end_all(self.train("slices", "--parallel=pp=2,tp=2,seq", *EXACT, size=4))
        self.assert_like_one_rank("slices", *EXACT, bound=1e-10)

    def test_processes_that_are_replicas_leave_what_one_rank_leaves(self):
        written = self.end_all(self.train("unlike", "--parallel=dp=1+pp=2", "--dispatch=even", *EXACT, size=3))
        self.assertEqual([errors for _, errors in written[1:]], [""] * 2)
        ranks = json.loads(written[0][0].splitlines()[-1])["ranks"]
        self.assertEqual([rank["replica"] for rank in ranks], [0, 1, 1])
        for rank in ranks:
            self.assertGreater(rank["exchanged_bytes"], 0)
            self.assertGreater(rank["exchanging_seconds"], 0)
            for shares in (rank["measured"], rank["predicted"]):
                self.assertGreater(shares["exposed"], 0)
                self.assertAlmostEqual(shares["busy"] + shares["exposed"] + shares["bubble"], 1)
            self.assertEqual(rank["messages"] > 0, rank["replica"] == 1, "only that replica has stages")
            self.assertEqual(rank["message_bytes"] > 64 * rank["messages"], rank["replica"] == 1)
            self.assertGreater(rank["peak_bytes"], 0)
        self.assert_like_one_rank("unlike", *EXACT, bound=1e-10)

    def test_processes_are_divided_anew_when_a_job_has_left(self):
        for name, rows, length in (("wide", 64, 60), ("one", 24, 400)):
            ids = [[3 + (row * 7 + i * i) % 12 for i in range(length)] for row in range(rows)]
            (self.path / f"{name}.jsonl").write_text("".join(json.dumps({"input_ids": each, "labels": each}) + "\n" for each in ids))
        jobs = self.path / "leaving.yaml"
        jobs.write_text("cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float64}\n"
                        "defaults: {adapter: {r: 4, target_modules: all-linear}, train: {lr: 1e-3, epsilon: 1e-5}}\njobs:\n"
                        "  - {name: wide, data: {train: wide.jsonl}, train: {batch_size: 32, steps: 4}}\n"
                        "  - {name: one, data: {train: one.jsonl}, train: {batch_size: 1, steps: 300}}\n")
        (first, _), (second, _) = self.end_all(self.launch("train", jobs, "--output-dir", self.path / "two", "--json", "--parallel=auto",
                                                           "--rounds-at-once=2"))
        self.assertEqual(second, "")
        events = [json.loads(line) for line in first.splitlines()]
        swaps = [event for event in events if event["event"] == "swap"]
        self.assertTrue(swaps, "many rows are for replicas, one row is for ranks that divide layers")
        self.assertEqual(swaps[0]["before"], "dp=2,pp=1,tp=1")
        self.assertIn("tp=2", swaps[0]["after"])
        self.assertIn("`wide` leaves", swaps[0]["cause"])
        for rank in events[-1]["ranks"]:
            self.assertEqual(rank["parts"], 2)
            self.assertLessEqual(rank["peak_bytes"], rank["predicted_peak_bytes"])
        self.run_program("train", jobs, "--output-dir", self.path / "one", "--threads=1")
        self.assert_alike("two", "one", 1e-10, ("wide", "one"))

    def test_peaks_of_processes_follow_what_the_one_took_that_took_most(self):
        for parallel in ("pp=2", "tp=2"):
            with self.subTest(parallel):
                (first, _), _ = self.end_all(self.train(parallel, f"--parallel={parallel}", "--rounds-at-once=1"))
                peaks = json.loads(first.splitlines()[-1])["peak_prediction_errors"]
                self.assertGreater(peaks["rounds"], 0)
                self.assertLess(peaks["after"], peaks["before"])

    def test_processes_under_torchrun_itself_divide_layers(self):
        needs.require(self, "torchrun")
        done = subprocess.run([needs.installed_program("torchrun"), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
                               "--no-python", *self.command("train", self.jobs_file(steps=12), "--output-dir", self.path / "two",
                                                            "--token-budget=256", "--parallel=tp=2", *EXACT)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assert_like_one_rank("two", *EXACT, bound=1e-10)

    def test_a_killed_part_or_replica_ends_all_and_the_run_goes_on(self):
        for parallel, then in (("tp=2", "pp=2"), ("dp=2", "dp=2")):
            with self.subTest(parallel):
                ranks = self.train(parallel, f"--parallel={parallel}", *EXACT)
                self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
                ranks[1].send_signal(signal.SIGKILL)
                ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
                if ranks[1].returncode == 0:
                    self.skipTest("the run had ended before it could be killed")
                self.assertEqual(ranks[0].returncode, 1, ended)
                self.end_all(self.train(parallel, "--resume", f"--parallel={then}", *EXACT))
                self.assert_like_one_rank(parallel, *EXACT, bound=1e-10)

    def test_a_mistake_is_told_once_and_ends_all(self):
        (first, second) = self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--set", "run.layout=zigzag")
        self.assertIn("zigzag", first.communicate(timeout=LIMIT_S)[1].decode())
        self.assertEqual(first.returncode, 2)
        self.assertEqual(second.communicate(timeout=LIMIT_S), (b"", b""))
        self.assertEqual(second.returncode, 2)
        ranks = self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--ranks=2", "--sample-tokens=4", size=3)
        errors = ranks[0].communicate(timeout=LIMIT_S)[1].decode()
        self.assertIn("is 2, but 3 processes were launched", errors)
        self.assertIn("--sample-tokens: needs the whole model in one process", errors)
        ranks = self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--parallel=tp=3", size=3)
        errors = ranks[0].communicate(timeout=LIMIT_S)[1].decode()
        self.assertIn("has 2 heads, 1 kv head and 96 inner features; accepted are tp 1, 2", errors)
        ranks = self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--parallel=pp=2,tp=2")
        self.assertIn("`pp=2,tp=2` is 4 ranks, but run.ranks is 2", ranks[0].communicate(timeout=LIMIT_S)[1].decode())
        self.assertFalse((self.path / "none").exists())
        done = self.run_program("train", self.jobs_file(), "--output-dir", self.path / "none", "--hang-timeout=5", expect=2)
        self.assertIn("--hang-timeout: is of ranks that watch each other, and there is one alone", done.stderr)
        done = self.run_program("train", self.jobs_file(), "--output-dir", self.path / "none", "--hang-timeout=nan", expect=2)
        self.assertIn("--hang-timeout: must be a number from 1 to 86400, got nan", done.stderr)

    def test_a_master_whose_name_nobody_knows_is_told_at_once_and_ends_all(self):
        for launcher in (torchrun, slurm):
            ranks = self.train("none", launcher=launcher, extra={"MASTER_ADDR": "nosuchhost.invalid"})
            first_line = ranks[1].stderr.readline().decode()
            self.assertIn("rank 1 of 2, master nosuchhost.invalid:", first_line)
            self.assertRegex(first_line, r"the name of the master, `nosuchhost\.invalid`, cannot be looked up: .+; trying again for up to 40 s")
            for rank, (_, errors) in enumerate(self.end_all(ranks, expect=1)):
                self.assertRegex(errors, rf"rank {rank} of 2, master nosuchhost\.invalid:\d+: the name of the master, `nosuchhost\.invalid`, cannot be "
                                         r"looked up: .+ \(tried for 40 s\)")
            self.assertFalse((self.path / "none").exists())

    def test_check_trains_nothing(self):
        def peak(*options):
            (first, _), (second, _) = self.end_all(
                self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--check", "--json", *options))
            self.assertEqual(second, "")
            return json.loads(first)["peak_bytes"]

        threads = self.run_program("train", self.jobs_file(), "--output-dir", self.path / "none", "--check", "--json", "--parallel=tp=2")
        self.assertGreater(peak(), 0)
        self.assertLess(peak("--parallel=tp=2"), json.loads(threads.stdout)["peak_bytes"])  # of one process, which has one part
        self.assertFalse((self.path / "none").exists())

    def test_a_killed_rank_ends_all_and_the_run_goes_on_when_it_is_started_again(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                run = f"killed{victim}"
                ranks = self.train(run)
                self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
                ranks[victim].send_signal(signal.SIGKILL)
                ended = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
                other = 1 - victim
                if ranks[victim].returncode == 0:
                    self.skipTest("the run had ended before it could be killed")
                self.assertEqual(ranks[victim].returncode, -signal.SIGKILL)
                self.assertEqual(ranks[other].returncode, 1, ended)
                self.assertIn(f"rank {other}", ended[other][1].decode())
                # As torchrun and Slurm start it again: the same command, and a count.
                first, _ = self.end_all(self.train(run, extra={"TORCHELASTIC_RESTART_COUNT": "1"}))
                self.assertIn("was started again", first[1])
                self.assert_like_one_rank(run)
                # What another launch had begun is not gone on with, whatever the count is.
                first, second = self.train(run, extra={"TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "another"})
                errors = first.communicate(timeout=LIMIT_S)[1].decode()
                second.communicate(timeout=LIMIT_S)
                self.assertEqual(first.returncode, 2, errors)
                self.assertIn("holds a run already", errors)

    def test_a_single_process_goes_on_when_its_launcher_starts_it_again(self):
        command = ("train", self.jobs_file(steps=12), "--output-dir", self.path / "single", "--token-budget=256", "--overwrite")
        place = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        self.run_program(*command, env=place)
        launch = json.loads((self.path / "single" / "run.json").read_text())["launch"]
        again = self.run_program(*command, env={**place, "TORCHELASTIC_RESTART_COUNT": "1"})
        self.assertIn("was started again", again.stderr)
        self.assertEqual(json.loads((self.path / "single" / "run.json").read_text())["launch"], launch)
        batch = self.run_program(*command, env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"})
        self.assertNotIn("was started again", batch.stderr)  # torchrun's, and not this one's
        batch = self.run_program(*command, env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"})
        self.assertIn("was started again", batch.stderr)

    def test_a_silent_rank_ends_all(self):
        ranks = self.train("silent", "--hang-timeout=8", steps=4000)
        self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
        ranks[1].send_signal(signal.SIGSTOP)
        _, errors = ranks[0].communicate(timeout=LIMIT_S)
        ranks[1].kill()
        self.assertEqual(ranks[0].returncode, 1, errors)
        self.assertIn(f"rank 1 on {socket.gethostname()} has not been heard of for", errors.decode())

    def test_a_signal_to_all_saves_and_ends_all(self):
        ranks = self.train("stopped", steps=4000)
        self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
        for rank in reversed(ranks):
            rank.send_signal(signal.SIGTERM)
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [130, 130], written)
        self.assertTrue((self.path / "stopped" / "jobs" / "plain" / "latest").exists())

    def test_a_first_rank_that_cannot_go_on_ends_all(self):
        self.end_all(self.train("run"))
        checkpoint = self.path / "run" / "jobs" / "plain" / "step-12" / "adapter_model.safetensors"
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
        first, second = self.train("run", "--resume")
        errors = first.communicate(timeout=LIMIT_S)[1].decode()
        self.assertEqual(first.returncode, 2, errors)
        self.assertIn("adapter_model.safetensors", errors)
        self.assertEqual(second.communicate(timeout=LIMIT_S)[1], b"")
        self.assertEqual(second.returncode, 2)

    def test_a_job_joins_with_longer_rows_than_the_others_have(self):
        ranks = self.train("run", steps=4000)
        self.wait_for(ranks[0], lambda event: event["event"] == "checkpoint")
        ids = list(range(3, 15)) * 20
        (self.path / "long.jsonl").write_text("".join(json.dumps({"input_ids": ids, "labels": ids}) + "\n" for _ in range(4)))
        more = self.path / "more.yaml"
        more.write_text("cotune: 1\njobs: [{name: late, data: {train: long.jsonl}, adapter: {method: lora, r: 4}, "
                        "train: {batch_size: 2, steps: 1000, lr: 1e-3}}]\n")
        adding = self.start_program("job", "add", "--run", self.path / "run", more)
        event = self.wait_for(ranks[0], lambda event: event["event"] == "step" and event["job"] == "late")
        self.assertGreater(event["loss"], 0)
        self.end(adding, 0)
        self.run_program("job", "drain", "--run", self.path / "run")
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [130, 130], written)
        self.assertTrue((self.path / "run" / "jobs" / "late" / "latest").exists())

    def test_what_another_rank_cannot_load_is_told_by_the_first(self):
        (first, second) = self.train("none", "--memory=130MiB")
        output, errors = first.communicate(timeout=LIMIT_S)
        second.communicate(timeout=LIMIT_S)
        self.assertNotEqual(first.returncode, 0, output)
        self.assertEqual(second.returncode, first.returncode)
        self.assertNotEqual(errors, b"")

    def test_all_end_with_the_code_of_a_run_whose_job_failed(self):
        jobs = self.jobs_file(steps=12, jobs=("plain",))
        jobs.write_text(jobs.read_text().replace("lr: 3e-3", "lr: 1e38, lr_scheduler_type: constant"))
        ranks = self.launch("train", jobs, "--output-dir", self.path / "run", "--json", "--restarts=2")
        (first, errors), (_, second) = self.end_all(ranks, expect=1)
        self.assertEqual([job["status"] for job in json.loads(first.splitlines()[-1])["jobs"]], ["failed"])
        self.assertNotIn("restart", first + errors + second)


class ModelsOfRanks(LaunchTest):
    """Each rank reads a model of its own, below its working directory."""

    def setUp(self):
        super().setUp()
        for rank in (0, 1):
            (self.path / f"{rank}").mkdir()
            write_model(self.path / f"{rank}" / "model", layers=2)
        self.jobs = self.path / "jobs.yaml"
        self.jobs.write_text("cotune: 1\nmodel: {path: /proc/self/cwd/model, dtype: float32}\njobs:\n  - {name: plain, data: {train: plain.jsonl}, "
                             "adapter: {r: 2}, train: {batch_size: 4, steps: 4}}\n")

    def weights(self, rank):
        return self.path / f"{rank}" / "model" / "model.safetensors"

    def launch_there(self, *options):
        return self.launch("train", self.jobs, "--output-dir", self.path / "run", *options,
                           before=lambda rank: ["env", "--chdir", self.path / f"{rank}"])

    def other_model(self, kind):
        """Rank 1 gets it; returns what is said of it."""
        if kind == "other weights":
            data = bytearray(self.weights(1).read_bytes())
            data[-2] ^= 1
            self.weights(1).write_bytes(data)
            return r"it has the same shape, and other weights or settings \(fingerprint \w+; that one has \w+\)"
        shutil.rmtree(self.path / "1" / "model")
        if kind == "none":
            return "no such file or folder"
        write_model(self.path / "1" / "model", layers=3)
        return r"it has 3 layers, hidden .+; that one has 2 layers, hidden"

    def test_that_are_equal_copies_train(self):
        self.end_all(self.launch_there())

    def test_that_differ_are_found_before_anything_is_written(self):
        self.end_all(self.launch_there())
        left = {path: path.read_bytes() for path in (self.path / "run").rglob("*")
                if path.is_file() and path.name != "lock"}  # it names the last process that had the folder
        for kind in ("other weights", "another shape", "none"):
            said = self.other_model(kind)
            for options in (("--overwrite",), ("--overwrite", "--check"), ("--overwrite", "--parallel=dp=2")):
                with self.subTest(kind=kind, options=options):
                    for _, errors in self.end_all(self.launch_there(*options), expect=2):
                        self.assertIn(f"rank 1 on {socket.gethostname()}: ", errors)
                        self.assertIn("/proc/self/cwd/model", errors)
                        self.assertRegex(errors, said)
                    self.assertEqual({path: path.read_bytes() for path in left}, left)


if __name__ == "__main__":
    unittest.main()
