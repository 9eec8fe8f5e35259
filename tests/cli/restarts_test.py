#!/usr/bin/env python3
"""cotune train --restarts: runs that crash are started again, and end as if nothing had been. Standard library only.

    COTUNE=build/cotune COTUNE_FAKES=build/tests/fakes python3 tests/cli/restarts_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import needs
from program import LIMIT_S, ProgramTest
from rank_launch import EXACT, LaunchTest, free_port
from supervised import run_of
from terminal_screen import TerminalProgram

FAKES = pathlib.Path(os.environ.get("COTUNE_FAKES", "build/tests/fakes")).resolve()


def is_checkpoint(event):
    return event["event"] == "checkpoint"


def opened_by(process):
    """Paths of the files that it has open."""
    folder, paths = f"/proc/{process}/fd", []
    for name in os.listdir(folder):
        try:
            paths.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    return paths


def has_pending_signals(process):
    fields = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return any(int(fields[key], 16) != 0 for key in ("SigPnd", "ShdPnd"))


class Restarts(ProgramTest):
    def start(self, *options, run="run", steps=12, restarts=3, save_steps=3, **how):
        return self.start_program("train", self.jobs_file(steps=steps, save_steps=save_steps), "--output-dir", self.path / run, "--json",
                                  f"--restarts={restarts}", *options, **how)

    def crash(self, process, number=signal.SIGKILL, other_than=None):
        """Kills the process that trains at its next checkpoint. Returns its id."""
        self.wait_for(process, is_checkpoint)
        trains = run_of(process, other_than)
        os.kill(trains, number)
        return trains

    def test_crashes_leave_equal_bits_and_one_stream_of_lines(self):
        self.run_program("train", self.jobs_file(steps=40, save_steps=3), "--output-dir", self.path / "whole", "--json")
        process = self.start(steps=40)
        first = self.crash(process)
        event = self.wait_for(process, lambda event: event["event"] == "restart")
        self.assertEqual((event["restart"], event["of"]), (1, 3))
        self.crash(process, signal.SIGSEGV, first)
        output, errors = self.end(process, 0)
        self.assertTrue(all(json.loads(line) for line in output.splitlines()))
        self.assertIn("the run has ended by signal 9 (Killed): restart 1 of 3, from every job's last checkpoint\n", errors)
        self.assertIn("the run has ended by signal 11 (Segmentation fault): restart 2 of 3, from", errors)
        self.assertEqual(self.adapters("run"), self.adapters("whole"))
        self.assertEqual(self.results("run"), self.results("whole"))

    def test_killed_as_soon_as_its_folder_holds_it_it_goes_on(self):
        for attempt in range(3):
            with self.subTest(attempt):
                process = self.start(run=f"run{attempt}", steps=6)
                while not (self.path / f"run{attempt}" / "run.json").exists():
                    self.assertIsNone(process.poll())
                trains = run_of(process)
                if trains is not None:
                    os.kill(trains, signal.SIGKILL)
                for _ in process.stdout:
                    pass
                self.assertEqual(process.wait(timeout=LIMIT_S), 0, process.stderr.read())
                process.stderr.close()

    def test_goes_on_where_nobody_reads_what_is_told(self):
        process = self.start(steps=40)
        process.stderr.close()
        self.crash(process)
        for _ in process.stdout:
            pass
        self.assertEqual(process.wait(timeout=LIMIT_S), 0)

    def test_after_the_last_restart_the_exit_code_is_of_the_signal(self):
        process = self.start(steps=4000, restarts=1)
        self.crash(process, other_than=self.crash(process))
        _, errors = self.end(process, 128 + signal.SIGKILL)
        self.assertIn("by signal 9 (Killed), after as many restarts as --restarts allows (1); --resume goes on", errors)

    def test_where_nothing_is_saved_it_ends_with_the_third_start(self):
        environment = dict(os.environ, LD_PRELOAD=FAKES / "libfake_file_changes.so", COTUNE_KILL_AT="12",
                           ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
        jobs = self.jobs_file(save_steps=0, jobs=["plain"])
        done = subprocess.run(self.command("train", jobs, "--output-dir", self.path / "run", "--restarts=9"), env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL, done.stderr)
        self.assertIn("restart 2 of 9", done.stderr)
        self.assertNotIn("restart 3 of 9", done.stderr)
        self.assertIn("3 starts in a row have saved nothing: it is not started again", done.stderr)

    def test_a_mistake_is_not_tried_again(self):
        done = self.run_program("train", self.path / "none.yaml", "--restarts=3", expect=2)
        self.assertNotIn("restart", done.stderr)
        done = self.run_program("train", self.jobs_file(steps=4), "--restarts=-1", expect=2)
        self.assertIn("--restarts", done.stderr)

    def test_a_start_that_got_no_further_than_loading_does_not_go_on_with_the_run_it_overwrites(self):
        run, fifo = self.path / "run", self.path / "fifo.yaml"
        self.run_program("train", self.jobs_file(steps=3), "--output-dir", run)
        jobs = self.jobs_file(steps=6)
        self.run_program("train", jobs, "--output-dir", self.path / "whole")
        os.mkfifo(fifo)  # each start waits in it for its jobs file
        process = self.start_program("train", fifo, "--output-dir", run, "--overwrite", "--restarts=1")
        with open(fifo, "w") as text:  # returns once the first one has opened it
            first = run_of(process)
            os.kill(first, signal.SIGKILL)
            second = run_of(process, first)
            while str(fifo.resolve()) not in opened_by(second):
                self.assertIsNone(process.poll())
                time.sleep(0.005)
            text.write(jobs.read_text())
        _, errors = self.end(process, 0)
        self.assertIn("restart 1 of 1, from its beginning", errors)
        self.assertEqual(self.adapters("run"), self.adapters("whole"))

    def test_a_signal_stops_it_whoever_gets_it(self):
        whole = self.jobs_file(steps=200, save_steps=0)
        self.run_program("train", whole, "--output-dir", self.path / "whole")
        for kind in ("supervisor", "run", "both"):
            with self.subTest(kind):
                process = self.start(steps=200, save_steps=0, start_new_session=True)
                self.wait_for(process, lambda event: event["event"] == "step")
                if kind == "both":  # as a terminal does
                    os.killpg(process.pid, signal.SIGINT)
                else:
                    os.kill(process.pid if kind == "supervisor" else run_of(process), signal.SIGTERM)
                output, errors = self.end(process, 130)
                self.assertTrue(json.loads(output.splitlines()[-1])["interrupted"])
                self.assertEqual(errors.count("stopping: every job is saved first"), 1)
                self.run_program("train", whole, "--output-dir", self.path / "run", "--resume")
                self.assertEqual(self.adapters("run"), self.adapters("whole"))
                shutil.rmtree(self.path / "run")

    def test_a_second_signal_stops_it_at_once(self):
        process = self.start(steps=4000)
        self.wait_for(process, lambda event: event["event"] == "step")
        process.send_signal(signal.SIGTERM)
        self.assertIn(b"second signal", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.end(process, 128 + signal.SIGTERM)

    def test_where_the_supervisor_is_killed_the_run_stops(self):
        process = self.start(steps=4000, save_steps=0)
        self.wait_for(process, lambda event: event["event"] == "step")
        process.kill()
        output, _ = process.communicate(timeout=LIMIT_S)  # the run has them too
        self.assertTrue(json.loads(output.splitlines()[-1])["interrupted"])
        self.run_program("train", self.jobs_file(steps=4), "--output-dir", self.path / "run", "--overwrite")  # nobody trains there

    def test_jobs_that_were_added_live_on_and_the_run_can_be_asked(self):
        process = self.start(steps=4000)
        self.wait_for(process, is_checkpoint)
        more = self.jobs_file(steps=100, name="more.yaml", jobs=["plain"])
        more.write_text(more.read_text().replace("name: plain", "name: late"))
        adding = self.start_program("job", "add", "--run", self.path / "run", more)
        self.wait_for(process, lambda event: event["event"] == "step" and event["job"] == "late")
        self.end(adding, 0)
        os.kill(run_of(process), signal.SIGKILL)
        self.wait_for(process, lambda event: event["event"] == "restart")
        self.wait_for(process, lambda event: event["event"] == "step" and event["job"] == "late")
        self.run_program("job", "drain", "--run", self.path / "run")
        self.end(process, 130)
        self.assertTrue((self.path / "run" / "jobs" / "late" / "latest").exists())

    def test_a_terminal_is_mended_and_the_live_view_comes_again(self):
        jobs = self.jobs_file(steps=1_000_000, save_steps=0)
        program = TerminalProgram(self.command("train", jobs, "--output-dir", self.path / "run", "--threads=1", "--restarts=2"))
        self.addCleanup(program.close)
        program.wait_for_text("running", "tok/s")
        os.kill(int((self.path / "run" / "lock").read_text()), signal.SIGKILL)
        program.wait_for(lambda screen: "restart 1 of 2" in screen.normal)
        program.wait_for_text("running", "tok/s")
        program.press("\x03")
        self.assertEqual(program.end(), 130)


class RanksRestart(LaunchTest):
    def test_all_ranks_start_again_when_one_is_killed(self):
        ranks = self.train("run", "--restarts=3", *EXACT, steps=36)
        killed = None
        for victim in (1, 0, 1):
            self.wait_for(ranks[0], is_checkpoint)
            killed = run_of(ranks[victim])
            os.kill(killed, signal.SIGKILL)
            self.wait_for(ranks[0], lambda event: event["event"] == "restart")
        (output, first), (_, second) = self.end_all(ranks)
        self.assertEqual(json.loads(output.splitlines()[-1])["event"], "summary")
        self.assertIn("restart 3 of 3", first)
        self.assertIn("rank 1 has ended by signal 9 (Killed): restart 1 of 3\n", second)
        self.assert_like_one_rank("run", *EXACT, steps=36, bound=1e-10)

    def test_a_rank_that_stands_still_is_killed_and_all_start_again(self):
        ranks = self.train("run", "--restarts=2", "--hang-timeout=3", *EXACT, steps=36)
        self.wait_for(ranks[0], is_checkpoint)
        os.kill(run_of(ranks[1]), signal.SIGSTOP)
        (_, first), (_, second) = self.end_all(ranks)
        self.assertIn("restart 1 of 2", first)
        self.assertIn("rank 1 did not run any more, and was killed: restart 1 of 2", second)
        self.assert_like_one_rank("run", *EXACT, steps=36, bound=1e-10)

    def test_a_mistake_ends_all(self):
        ranks = self.launch("train", self.jobs_file(), "--output-dir", self.path / "none", "--restarts=3", "--set", "run.layout=zigzag")
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [2, 2], written)
        self.assertEqual(written[1], (b"", b""))

    def test_where_nothing_is_saved_all_end_with_the_third_start(self):
        fake = {"LD_PRELOAD": str(FAKES / "libfake_file_changes.so"), "COTUNE_KILL_AT": "12",
                "ASAN_OPTIONS": "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")}
        jobs = self.jobs_file(save_steps=0, jobs=["plain"])
        ranks = self.launch("train", jobs, "--output-dir", self.path / "run", "--restarts=9", extra=fake)
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [128 + signal.SIGKILL, 1], written)
        self.assertIn("3 starts in a row have saved nothing", written[0][1].decode())

    def test_a_signal_to_all_stops_all(self):
        ranks = self.train("run", "--restarts=3", steps=4000)
        self.wait_for(ranks[0], is_checkpoint)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        written = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [130, 130], written)

    def test_a_second_signal_to_all_stops_all_at_once(self):
        ranks = self.train("run", "--restarts=3", steps=4000)
        self.wait_for(ranks[0], is_checkpoint)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        self.assertIn(b"second signal", ranks[0].stderr.readline())
        while has_pending_signals(ranks[1]):  # two that are pending would be one
            time.sleep(0.005)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        written = [rank.communicate(timeout=120) for rank in ranks]  # nobody waits for a rank that does not come back
        self.assertIn(ranks[0].returncode, (130, 128 + signal.SIGTERM), written)
        self.assertNotIn(b"restart", written[1][1])

    def test_a_signal_to_another_rank_stops_nothing_and_its_crash_is_resumed(self):
        ranks = self.train("run", "--restarts=3", *EXACT, steps=36)
        self.wait_for(ranks[0], is_checkpoint)
        for number in (signal.SIGTERM, signal.SIGHUP):
            ranks[1].send_signal(number)
        self.wait_for(ranks[0], is_checkpoint)
        os.kill(run_of(ranks[1]), signal.SIGKILL)
        self.wait_for(ranks[0], lambda event: event["event"] == "restart")
        (output, _), (_, second) = self.end_all(ranks)
        self.assertFalse(json.loads(output.splitlines()[-1])["interrupted"])
        self.assertIn("rank 1 has ended by signal 9 (Killed): restart 1 of 3\n", second)
        self.assert_like_one_rank("run", *EXACT, steps=36, bound=1e-10)

    def test_under_torchrun_it_notices_nothing(self):
        needs.require(self, "torchrun")
        run = self.path / "run"
        train = self.command("train", self.jobs_file(steps=36), "--output-dir", run, "--token-budget=256", "--restarts=2", "--json", *EXACT)
        process = subprocess.Popen([needs.installed_program("torchrun"), "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
                                    "--no-python", *train],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, pipesize=4096)
        self.running.append(process)
        self.wait_for(process, is_checkpoint)
        os.kill(int((run / "lock").read_text()), signal.SIGKILL)
        _, errors = self.end(process, 0)
        self.assertIn("rank 0 has ended by signal 9 (Killed): restart 1 of 2", errors)
        self.assert_like_one_rank("run", *EXACT, steps=36, bound=1e-10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
