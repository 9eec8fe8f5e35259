#!/usr/bin/env python3
"""Runs that are killed, stopped and resumed: equal bits, nothing lost, nothing twice. Standard library only.

    COTUNE=build/cotune COTUNE_FAKES=build/tests/fakes python3 tests/cli/resume_test.py [UNITTEST OPTIONS]

COTUNE_KILLS sets at how many instants a run is killed (default 50).
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import unittest

from program import CONFIG, LIMIT_S, METHODS, ProgramTest

KILLS = int(os.environ.get("COTUNE_KILLS", "50"))
FAKES = pathlib.Path(os.environ.get("COTUNE_FAKES", "build/tests/fakes")).resolve()
EVERYTHING = ", eval_steps: 4, load_best_model_at_end: true, max_grad_norm: 0.5, lr_scheduler: cosine"
# Rows of up to 400 tokens, batches of four: several atoms a step, and chains under a token budget of 256.
LONG = "{method: lora, r: 3, alpha: 6, dropout: 0.2, use_rslora: true, target_modules: [q_proj, v_proj, down_proj]}"


def is_step(event, at_least=1):
    return event["event"] == "step" and event["step"] >= at_least


class Killed(ProgramTest):
    def kill_at_a_change_of_files(self, number, arguments):
        """Kills the program at its so manieth change to the file system: a write ends halfway. Returns the exit status."""
        with_asan = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")
        environment = dict(os.environ, LD_PRELOAD=FAKES / "libfake_file_changes.so", COTUNE_KILL_AT=str(number),
                           ASAN_OPTIONS=with_asan)
        done = subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=LIMIT_S, env=environment)
        self.assertIn(done.returncode, (0, -signal.SIGKILL), done.stderr)
        return done.returncode

    def kill_after_lines(self, count, arguments):
        """Kills the program when it has said so much. Returns the exit status."""
        process = self.start_program(*arguments, "--json")
        for _ in range(count):
            if not process.stdout.readline():
                break
        return self.kill(process)

    def kill_and_resume(self, run, whole, kills, seed, command):
        """Kills runs in a folder at so many instants; each that comes to its end must be the whole run, in another folder. Returns
        how often a kill left a half-written file."""
        generator = random.Random(seed)
        torn = 0
        while kills > 0:
            ended = False
            while kills > 0 and not ended:
                arguments = (*command, "--output-dir", run, *(["--resume"] if (run / "run.json").exists() else []))
                if generator.random() < 0.6:
                    ended = self.kill_at_a_change_of_files(generator.choice((generator.randrange(1, 40), generator.randrange(1, 700))),
                                                           arguments) == 0
                    torn += any(run.rglob("*.part"))
                else:
                    ended = self.kill_after_lines(generator.randrange(1, 40), arguments) == 0
                kills -= not ended
            self.run_program(*command, "--output-dir", run, *(["--resume"] if (run / "run.json").exists() else []))
            self.assertEqual(self.adapters(run.name, self.names), self.adapters(whole.name, self.names))
            self.assertEqual(self.results(run.name), self.results(whole.name))
            self.assertEqual(list(run.rglob("*.part")), [])
            for job in self.names:  # a step may have been saved again, beside its first folder
                folders = [sorted(path.name.removesuffix(".again") for path in place.glob(f"jobs/{job}/step-*"))
                           for place in (run, whole)]
                self.assertEqual(folders[0], folders[1])
            shutil.rmtree(run)
        return torn

    def test_at_random_instants_a_run_ends_with_equal_bits_and_equal_metrics(self):
        jobs = self.jobs_file(steps=12, save_steps=1, train=EVERYTHING)
        self.names = (*METHODS, "long")
        generator = random.Random(8)
        with open(self.path / "long.jsonl", "w") as data:
            for length in (400, 4, 257, 380, 390, 399, 256, 311, 30, 350):
                ids = [generator.randrange(3, 15) for _ in range(length)]
                data.write(json.dumps({"input_ids": ids, "labels": [-100] + ids[1:]}) + "\n")
        with open(jobs, "a") as file:
            file.write(f"  - {{name: long, data: {{train: long.jsonl, eval_fraction: 0.2}}, adapter: {LONG}, "
                       "train: {micro_batch_size: 2, gradient_accumulation_steps: 2}}\n")
        # As many folders as cores, each with a model of its own and its share of the kills.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            halves = []
            for i, family in enumerate(("llama", "qwen2")):  # without and with bias
                (self.path / f"{family}.json").write_text(json.dumps({**CONFIG, "model_type": family}))
                of_family = self.path / f"{family}.yaml"
                of_family.write_text(jobs.read_text().replace("./config.json", f"./{family}.json"))
                command = ("train", of_family, "--token-budget", "256", "--threads", "1")
                whole = self.path / f"whole-{family}"
                self.run_program(*command, "--output-dir", whole)
                tokens = {job["name"]: job["tokens"]["real"] for job in json.loads((whole / "summary.json").read_text())["jobs"]}
                self.assertGreater(tokens["long"], 12 * 512)  # more than two atoms a step
                halves.append(pool.submit(self.kill_and_resume, self.path / f"killed-{family}", whole, KILLS // 2 + i * (KILLS % 2), 11 + i,
                                          command))
            torn = sum(half.result() for half in halves)
        self.assertGreaterEqual(torn, KILLS // 10)

    def test_while_entries_are_selected_the_job_begins_again(self):
        jobs = self.jobs_file(steps=150, save_steps=0, jobs=["sparse"])
        jobs.write_text(jobs.read_text().replace("selection_batches: 2", "selection_batches: 150"))
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        run = self.path / "killed"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        for _ in range(10):
            self.wait_for(process, lambda event: event["event"] == "selection")
        self.kill(process)  # more selections than the pipe holds were to come
        self.assertFalse((run / "jobs" / "sparse" / "latest").exists())
        self.run_program("train", jobs, "--output-dir", run, "--resume")
        self.assertEqual(self.adapter("killed", "sparse"), self.adapter("whole", "sparse"))
        self.assertEqual(self.results("killed"), self.results("whole"))

    def test_after_the_selection_nothing_is_chosen_again(self):
        jobs = self.jobs_file(steps=150, save_steps=1000, jobs=["sparse"])
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        run = self.path / "killed"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, is_step)
        self.kill(process)  # more steps than the pipe holds were to come
        self.assertEqual((run / "jobs" / "sparse" / "latest").read_text(), "step-0\n")
        resumed = self.run_program("train", jobs, "--json", "--output-dir", run, "--resume").stdout
        self.assertNotIn("selection", {json.loads(line)["event"] for line in resumed.splitlines()})
        self.assertEqual(self.adapter("killed", "sparse"), self.adapter("whole", "sparse"))
        self.assertEqual(self.results("killed"), self.results("whole"))

    def test_what_interrupted_writes_left_is_removed(self):
        jobs = self.jobs_file(steps=4, save_steps=2)
        self.run_program("train", jobs, "--output-dir", self.path / "run")
        adapters = self.adapters("run")
        job = self.path / "run" / "jobs" / "plain"
        (job / "step-3").mkdir()
        (job / "step-3" / "adapter_model.safetensors").write_bytes(b"half")
        (job / "adapter" / "adapter_model.safetensors.99.part").write_bytes(b"half")
        (self.path / "run" / "run.json.99.part").write_bytes(b"half")
        with open(self.path / "run" / "metrics.jsonl", "a") as metrics:
            metrics.write('{"event":"step","job":"plain","st')
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume")
        self.assertEqual(self.adapters("run"), adapters)
        self.assertEqual(sorted(path.name for path in job.glob("step-*")), ["step-2", "step-4"])  # latest and previous
        self.assertEqual(list((self.path / "run").rglob("*.part")), [])
        self.results("run")


class Ended(ProgramTest):
    def test_a_run_that_had_ended_keeps_its_figures(self):
        jobs = self.jobs_file(steps=4, save_steps=2)
        self.run_program("train", jobs, "--output-dir", self.path / "run")
        summary = json.loads((self.path / "run/summary.json").read_text())
        self.assertGreater(summary["rounds"], 0)
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--resume")
        self.assertEqual(json.loads((self.path / "run/summary.json").read_text()), summary)


class Locked(ProgramTest):
    def test_a_second_process_is_refused_and_the_first_goes_on(self):
        jobs = self.jobs_file(steps=100000, save_steps=0, jobs=["plain"])
        run = self.path / "run"
        process = self.start_program("train", jobs, "--json", "--output-dir", run)
        self.wait_for(process, is_step)
        for option in ("--resume", "--overwrite"):
            errors = self.run_program("train", jobs, option, "--output-dir", run, expect=2).stderr
            self.assertRegex(errors, rf"{re.escape(str(run))}: process {process.pid} is training")
        self.wait_for(process, lambda event: is_step(event, 100))
        self.kill(process)
        shorter = self.jobs_file(steps=2, name="shorter.yaml", jobs=["plain"])
        self.run_program("train", shorter, "--overwrite", "--output-dir", run)  # the lock went with its process


class Stopped(ProgramTest):
    def stop(self, jobs, wanted, number):
        """Stops a run when the event comes, and resumes it."""
        process = self.start_program("train", jobs, "--json", "--output-dir", self.path / "stopped")
        self.wait_for(process, wanted)
        process.send_signal(number)
        output, errors = self.end(process, expect=130)
        self.assertIn("stopping", errors)
        self.assertTrue(json.loads(output.strip().splitlines()[-1])["interrupted"])
        saved = {path.parent.name for path in (self.path / "stopped").glob("jobs/*/latest")}
        self.run_program("train", jobs, "--output-dir", self.path / "stopped", "--resume")
        return saved

    def test_while_the_program_loads_it_ends_with_a_word(self):
        jobs = self.jobs_file(steps=36)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start_program("train", jobs, "--output-dir", self.path / "none")
            while "libcotune_commands.so" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():  # which brings libtorch
                self.assertIsNone(process.poll())
            process.send_signal(number)
            _, errors = self.end(process, expect=130)
            self.assertEqual(errors, "stopped before training began; nothing was changed\n")
            self.assertFalse((self.path / "none").exists())

    def test_in_training_every_job_is_saved_and_goes_on(self):
        jobs = self.jobs_file(steps=36, save_steps=0, train=EVERYTHING)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            saved = self.stop(jobs, lambda event: is_step(event, 3), number)
            self.assertEqual(saved, {"plain", "bottleneck", "sparse"})
            self.assertEqual(self.adapters("stopped"), self.adapters("whole"))
            self.assertEqual(self.results("stopped"), self.results("whole"))
            shutil.rmtree(self.path / "stopped")

    def test_at_the_first_evaluation_the_run_goes_on_with_it(self):
        jobs = self.jobs_file(steps=60, save_steps=0, jobs=["plain", "bottleneck"])
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        self.stop(jobs, lambda event: event["event"] == "start" and event["job"] == "bottleneck", signal.SIGTERM)
        self.assertEqual(self.results("stopped"), self.results("whole"))

    def test_a_second_signal_ends_the_program_and_a_resumed_run_still_ends_with_equal_bits(self):
        jobs = self.jobs_file(steps=200, save_steps=2, jobs=["plain"])
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        process = self.start_program("train", jobs, "--json", "--output-dir", self.path / "twice")
        self.wait_for(process, lambda event: is_step(event, 3))
        process.send_signal(signal.SIGTERM)
        said = process.stderr.readline().decode()
        self.assertIn("second signal", said)
        # It has 200 lines to write into a pipe of 4 KiB that nobody reads: it is still there.
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
        self.assertIn(process.returncode, (130, -signal.SIGTERM))
        self.run_program("train", jobs, "--output-dir", self.path / "twice", "--resume")
        self.assertEqual(self.adapter("twice", "plain"), self.adapter("whole", "plain"))
        self.assertEqual(self.results("twice"), self.results("whole"))

    def test_while_loading_the_program_ends_at_once(self):
        fifo = self.path / "fifo.yaml"  # the program waits in it for its jobs file
        os.mkfifo(fifo)
        process = self.start_program("train", fifo, "--output-dir", self.path / "run")
        with open(fifo, "w"):  # returns once the program has opened it
            process.send_signal(signal.SIGINT)
            _, errors = self.end(process, expect=130)
        self.assertIn("before training", errors)
        self.assertFalse((self.path / "run").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
