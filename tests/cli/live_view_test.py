#!/usr/bin/env python3
"""The live view of `cotune train` and `cotune watch` in a pseudo-terminal, and `cotune status`.

    COTUNE=build/cotune python3 tests/cli/live_view_test.py [UNITTEST OPTIONS]
"""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import termios
import time
import unittest

from live_views import ENDLESS, JOBS, LiveViewTest
from program import LIMIT_S


class OfTraining(LiveViewTest):
    def test_every_job_has_a_row_that_fits_the_window_also_when_its_size_changes(self):
        program = self.train()
        for job in JOBS:
            self.wait_for_row(program, job, "running", f"/{ENDLESS}")
        program.wait_for_text("trend", "held out", "tok/s", "memory ", "3 running", "▁")
        program.resize(46, 12)
        program.wait_for(lambda screen: screen.fits and "trend" not in screen.text() and "plain" in screen.text())
        program.resize(40, 20)
        program.wait_for(lambda screen: screen.fits and {"j k choose  p pause  r resume  c cancel", "q lines instead  Ctrl-C saves and stops"} <= set(screen.lines()))
        self.assertIn("memory", program.screen.text())
        program.resize(20, 5)
        program.wait_for(lambda screen: screen.fits and "plain" in screen.text())
        program.resize(130, 30)
        program.wait_for_text("trend", "lr", "j k choose")
        program.press("\x03")
        self.assertEqual(program.end(), 130)
        self.assertIn("stopping: every job is saved first", program.screen.normal)  # said on standard error meanwhile
        self.assertRegex(program.screen.normal, r"plain +starts: 1000000 steps")
        self.assertIn("Stopped and saved in", program.screen.normal)
        self.assertTrue((self.path / "run/summary.json").exists())

    def test_keys_pause_resume_and_cancel_the_chosen_job(self):
        program = self.train()
        self.wait_for_row(program, "bottleneck", "running", f"/{ENDLESS}")
        self.assertTrue(self.row(program, "plain").startswith("▶"))
        program.press("\x1b[B")  # the arrow down
        program.wait_for(lambda _: self.row(program, "bottleneck").startswith("▶"))
        program.press("p")
        self.wait_for_row(program, "bottleneck", "paused")
        program.wait_for_text("bottleneck: paused at step")
        program.press("p")
        program.wait_for_text("is paused already")
        program.press("r")
        self.wait_for_row(program, "bottleneck", "running")
        program.press("\x1bOA")  # the arrow up, as other terminals send it
        program.wait_for(lambda _: self.row(program, "plain").startswith("▶"))
        program.press("c")
        program.wait_for_text("cancel plain?")
        program.press("n")
        program.wait_for_text("j k choose")
        self.assertIn("running", self.row(program, "plain"))
        program.press("cy")
        self.wait_for_row(program, "plain", "cancelled")
        program.press("c")
        program.wait_for_text("`plain` has ended: cancelled at step")
        program.press("q")
        program.wait_for(lambda screen: not screen.is_alternate and re.search(r"bottleneck +\d+/1000000 +loss", screen.normal))
        self.assertIn("cancelled at step", program.screen.normal)
        self.assertEqual(termios.tcgetattr(program.slave), program.attributes)
        program.press("\x03")
        self.assertEqual(program.end(), 130)

    def test_training_does_not_wait_for_a_terminal_that_holds_its_output_back(self):
        program = self.train(jobs=("plain",))
        self.wait_for_row(program, "plain", "running", f"/{ENDLESS}")
        program.press("\x13")
        while program.read():  # until nothing comes any more
            pass
        steps_made = lambda: int(re.findall(r'"event":"step","job":"plain","step":(\d+)', (self.path / "run/metrics.jsonl").read_text())[-1])
        held_at = steps_made()
        while steps_made() < held_at + 1000:
            self.assertIsNone(program.process.poll())
            time.sleep(0.1)
        self.assertFalse(program.read(timeout=0))
        program.press("\x11")
        program.wait_for(lambda _: int(re.search(r" (\d+)/", self.row(program, "plain"))[1]) >= held_at + 1000)
        program.press("\x03")
        self.assertEqual(program.end(), 130)

    def test_at_the_end_the_terminal_is_as_before_and_has_the_events_and_the_report(self):
        program = self.train(steps=3)
        self.assertEqual(program.end(), 0)
        for text in ("finished at step 3", "held-out loss", "Done in", "time by operator"):
            self.assertIn(text, program.screen.normal)

    def test_signals_that_kill_give_the_terminal_back(self):
        for number in (signal.SIGABRT, signal.SIGQUIT, signal.SIGSEGV, signal.SIGBUS, signal.SIGALRM, signal.SIGUSR1):
            with self.subTest(number):
                program = self.train("--overwrite")
                self.wait_for_row(program, "plain", "running")
                program.process.send_signal(number)
                self.assertEqual(program.end(), -number)
        program = self.train("--overwrite")
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        program.process.send_signal(signal.SIGTERM)
        self.assertEqual(program.end(), 130)

    def test_a_session_that_ends_by_two_signals_is_saved(self):
        program = self.train(steps=ENDLESS)
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        for number in (signal.SIGTERM, signal.SIGHUP):
            program.process.send_signal(number)
        self.assertEqual(program.end(), 130)
        self.assertTrue((self.path / "run/summary.json").exists())

    def test_an_error_gives_the_terminal_back_and_is_told(self):
        program = self.train()
        program.wait_for(lambda _: re.search(rf" [1-9]\d*/{ENDLESS}", self.row(program, "plain")))
        shutil.rmtree(self.path / "run" / "jobs")
        (self.path / "run" / "jobs").write_text("no folder")
        program.press("p")
        self.assertEqual(program.end(), 1)
        self.assertIn("The run ends here", program.screen.normal)

    def test_stopped_by_the_terminal_it_gives_the_screen_back_until_it_goes_on(self):
        program = self.train(in_shell=True)
        for stops in (1, 2):
            self.wait_for_row(program, "plain", f"/{ENDLESS}")
            program.press("\x1a")
            program.wait_for(lambda screen: not screen.is_alternate and screen.cursor_shown and screen.normal.count("stopped") == stops)
            self.assertEqual(termios.tcgetattr(program.slave), program.attributes)
            program.press("fg\n")
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        program.press("\x03")
        self.assertEqual(program.end(), 130)

    def test_without_a_shell_that_could_have_it_go_on_it_does_not_stop(self):
        program = self.train()
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        program.press("\x1a")
        program.wait_for(lambda screen: screen.is_alternate and screen.times_taken == 2)
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        program.press("\x03")
        self.assertEqual(program.end(), 130)

    def test_when_the_terminal_is_closed_every_job_is_saved(self):
        program = self.train()
        self.wait_for_row(program, "plain", f"/{ENDLESS}")
        program.hang_up()
        self.assertIn(program.process.wait(LIMIT_S), (1, 130))
        self.assertTrue(json.loads((self.path / "run/summary.json").read_text())["interrupted"])

    def test_lines_are_printed_where_they_are_asked_for_and_where_no_screen_is(self):
        for arguments, environment in ((("--plain",), {}), ((), {"TERM": "dumb"}), (("--json",), {})):
            with self.subTest(arguments=arguments, environment=environment):
                program = self.train("--overwrite", *arguments, steps=2, **environment)
                self.assertEqual(program.end(), 0)
                self.assertIn('"event": "step"'.replace(" ", "") if arguments == ("--json",) else "loss", program.screen.normal)
                self.assertNotIn("\x1b", program.screen.normal)
        program = self.train("--overwrite", steps=2, standard_input=subprocess.DEVNULL)  # no keys
        self.assertEqual(program.end(), 0)
        self.assertNotIn("\x1b", program.screen.normal)
        piped = self.run_program("train", self.path / "jobs.yaml", "--output-dir", self.path / "run", "--overwrite").stdout
        self.assertNotIn("\x1b", piped)

    def test_without_colour_or_unicode_where_the_environment_says_so(self):
        program = self.train(jobs=("plain",), NO_COLOR="1", LC_ALL="C")
        program.wait_for(lambda screen: "> plain" in screen.text() and f"/{ENDLESS}" in screen.text())
        self.assertTrue(program.screen.text().isascii())
        program.press("\x03")
        self.assertEqual(program.end(), 130)


class FromAnotherTerminal(LiveViewTest):
    def start_quietly(self, *arguments, steps=ENDLESS):
        process = subprocess.Popen(self.command("train", self.jobs_file(steps=steps, save_steps=0), "--output-dir", self.path / "run",
                                                "--threads=1", *arguments),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors())
        self.running.append(process)
        self.wait_for_socket(process)
        return process

    def wait_for_socket(self, process):
        self.wait_until(process, lambda: (self.path / "run/control.sock").exists())

    def wait_until(self, process, holds):
        end = time.monotonic() + LIMIT_S
        while not holds():
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                self.fail((process.wait(), (self.path / "errors").read_text()))
            time.sleep(0.01)

    def errors(self):
        file = open(self.path / "errors", "w")
        self.addCleanup(file.close)
        return file

    def status(self, *arguments):
        return self.run_program("status", "--run", self.path / "run", *arguments).stdout

    def view(self):
        return json.loads(self.status("--json"))["view"]

    def test_watch_shows_the_run_and_takes_keys(self):
        process = self.start_quietly()
        program = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_row(program, "sparse", "running", f"/{ENDLESS}")
        self.select(program, "sparse")
        program.press("p")
        self.wait_for_row(program, "sparse", "paused")
        program.wait_for_text("sparse: paused at step")
        statuses = {job["name"]: job["status"] for job in self.view()["jobs"]}
        self.assertEqual(statuses, {"plain": "running", "bottleneck": "running", "sparse": "paused"})
        program.press("q")
        self.assertEqual(program.end(), 0)
        self.assertIn("2 running, 1 paused", program.screen.normal)
        self.assertIsNone(process.poll())

        program = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_row(program, "plain", "running")
        program.press("\x03")  # leaves the view, not the run
        self.assertEqual(program.end(), 0)
        self.assertIsNone(process.poll())

        program = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_row(program, "plain", "running")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(program.end(), 0)
        self.assertIn("stopped and saved; --resume goes on with it", program.screen.normal)
        self.assertEqual(process.wait(), 130)

    def test_watch_shows_what_happened_before_it_came_and_while_it_is_there(self):
        for options in ((), ("--json",)):
            process = self.start_quietly(*options)
            self.run_program("job", "pause", "--run", self.path / "run", "sparse")
            program = self.terminal("watch", "--run", self.path / "run", rows=40)
            program.wait_for(lambda screen: all(re.search(event, screen.text(), re.M) for event in (r"^plain +starts: ", r"^sparse +paused at step \d+$")))
            self.run_program("job", "priority", "--run", self.path / "run", "plain", "7")
            program.wait_for_text("priority of job `plain`: 7, before 0")
            program.press("q")
            self.assertEqual(program.end(), 0)
            self.assertNotIn("priority of job", program.screen.normal)  # the terminal of training has it
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(), 130)
            shutil.rmtree(self.path / "run")

    def test_status_says_of_a_run_that_starts_that_it_does(self):
        run = self.path / "run"
        run.mkdir()
        with (run / "lock").open("w") as lock:  # as a process that loads the model for the first time has it
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertRegex(self.status(), "^cotune · a process is loading the model")
            self.assertEqual(self.view()["run"]["phase"], "loading")
        self.assertIn("holds no run", self.run_program("status", "--run", run, expect=2).stderr)

    def test_status_says_nothing_of_the_run_that_one_that_starts_replaces(self):
        self.run_program("train", self.jobs_file(steps=2), "--output-dir", self.path / "run")
        self.assertIn("finished", self.status())
        with (self.path / "run" / "lock").open("w") as lock:  # as a process that loads the model over it has it
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertRegex(self.status(), "^cotune · a process is loading the model")
            self.assertEqual(self.view()["jobs"], [])

    def test_watch_stays_while_a_run_loads(self):
        run = self.path / "run"
        run.mkdir()
        with (run / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            program = self.terminal("watch", "--run", run)
            program.wait_for_text("loading the model")
            with self.assertRaises(subprocess.TimeoutExpired):
                program.process.wait(timeout=2.5)
            program.press("q")
            self.assertEqual(program.end(), 0)

    def test_a_run_whose_socket_cannot_be_reached_is_shown_from_its_files(self):
        process = self.start_quietly()
        self.wait_until(process, lambda: self.view()["run"]["rounds"] > 2)
        (self.path / "run/control.sock").unlink()  # as on another machine that shares the folder, or a file system without sockets
        self.assertRegex(self.status(), rf"^cotune · training(.|\n)*  plain +running +\d+/{ENDLESS}")
        self.assertEqual((self.view()["run"]["pid"], self.view()["run"]["phase"]), (0, "training"))
        program = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_row(program, "plain", "running")
        before = self.row(program, "plain")
        program.wait_for(lambda _: self.row(program, "plain") not in (before, ""))
        program.press("p")
        program.wait_for_text("the run cannot be asked")
        process.kill()
        self.assertEqual(program.end(), 0)
        self.assertIn("not running, and it did not end", program.screen.normal)

    def test_a_run_of_another_user_is_shown_from_its_files_and_not_changed(self):
        process = self.start_quietly()
        self.wait_until(process, lambda: self.view()["run"]["rounds"] > 2)
        other = {}
        self.path.chmod(0o755)
        if os.geteuid() == 0:
            other = {"user": 65534}
            if subprocess.run(self.command("--version"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **other).returncode != 0:
                self.skipTest("the program is not another user's to start")
        else:
            (self.path / "run/control.sock").chmod(0)
        self.assertRegex(self.run_program("status", "--run", self.path / "run", **other).stdout, r"^cotune . training(.|\n)*  plain +running")
        folder = self.path / "pages"
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        self.run_program("report", "--run", self.path / "run", "--output", folder / "page.html", **other)
        self.assertIn("<b>training</b>", (folder / "page.html").read_text())
        self.assertIn("cannot connect: Permission denied: a run is changed by the user who trains it",
                      self.run_program("job", "pause", "plain", "--run", self.path / "run", expect=2, **other).stderr)

    def test_status_says_of_every_run_how_it_stands(self):
        self.assertIn("holds no run", self.run_program("status", "--run", self.path, expect=2).stderr)
        process = self.start_quietly()
        self.wait_until(process, lambda: self.view()["run"]["rounds"] > 2)
        text = self.status()
        self.assertRegex(text, r"^cotune · training · \d+ rounds in")
        self.assertRegex(text, rf"  plain +running +\d+/{ENDLESS} +\d\.\d{{4}}")
        self.assertNotIn("\x1b", text)
        plain = self.view()["jobs"][0]
        self.assertGreater(len(plain["losses"]), 1)
        self.assertGreater(plain["learning_rate"], 0)
        self.assertGreater(self.view()["memory"]["used_bytes"], 0)

        process.kill()
        process.wait()
        self.assertRegex(self.status(), "not running, and it did not end; --resume goes on with it")
        killed = self.view()
        self.assertEqual((killed["run"]["pid"], killed["run"]["phase"]), (0, "killed"))
        self.assertEqual({job["status"] for job in killed["jobs"]}, {"stopped"})
        self.assertGreaterEqual(killed["jobs"][0]["step"], plain["step"])
        self.assertEqual(killed["jobs"][0]["steps"], ENDLESS)

        self.run_program("train", self.jobs_file(steps=5, save_steps=0), "--output-dir", self.path / "run", "--overwrite")
        ended = self.view()
        self.assertEqual((ended["run"]["phase"], ended["run"]["jobs"]), ("ended", {"finished": 3}))
        self.assertEqual([job["step"] for job in ended["jobs"]], [5, 5, 5])
        self.assertTrue(ended["jobs"][0]["adapter"].endswith("run/jobs/plain/adapter"))
        self.assertEqual(self.terminal("watch", "--run", self.path / "run").end(), 0)
        self.assertIn("no terminal", self.run_program("watch", "--run", self.path / "run", expect=2).stderr)

    def test_of_several_ranks_every_view_says_how_busy_each_is(self):
        line = r"2 ranks busy: 0 \d+% \(layers 0-0\), 1 \d+% \(layers 1-1\)"
        training = self.train("--ranks=2", "--parallel=pp=2")
        training.wait_for(lambda screen: screen.is_alternate and re.search(line, screen.text()))
        watching = self.terminal("watch", "--run", self.path / "run")
        watching.wait_for(lambda screen: re.search(line, screen.text()))
        watching.press("q")
        self.assertEqual(watching.end(), 0)
        self.assertRegex(self.status(), line)
        for rank, of in enumerate(self.view()["ranks"]):
            self.assertEqual((of["layers"], of["part"], of["parts"]), ([[rank, rank]], 0, 1))
            self.assertAlmostEqual(of["busy"] + of["exposed"] + of["bubble"], 1)
        training.press("\x03")
        self.assertEqual(training.end(), 130)
        self.assertRegex(self.status(), line)
        summary = json.loads((self.path / "run/summary.json").read_text())
        self.assertEqual([rank["busy"] for rank in self.view()["ranks"]], [rank["measured"]["busy"] for rank in summary["ranks"]])

    def test_a_run_that_does_not_answer_is_told_of_and_can_be_left(self):
        process = self.start_quietly()
        self.wait_until(process, lambda: self.view()["run"]["rounds"] > 2)
        program = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_row(program, "plain", "running")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        program.wait_for_text("its process does not answer", "plain")
        program.press("j")
        program.wait_for(lambda _: self.row(program, "bottleneck").startswith("▶"))
        self.assertRegex(self.status(), r"^cotune · its process does not answer(.|\n)*  plain +running")
        self.assertEqual(self.view()["run"]["phase"], "unresponsive")
        process.send_signal(signal.SIGCONT)
        program.wait_for_text("training")
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        program.press("q")
        self.assertEqual(program.end(), 0)
        self.assertIn("its process does not answer", program.screen.normal)

    def test_a_resumed_run_shows_the_losses_from_before(self):
        jobs = self.jobs_file(steps=ENDLESS, save_steps=2)
        process = self.start_program("train", jobs, "--json", "--output-dir", self.path / "run", "--threads=1")
        self.wait_for(process, lambda event: event["event"] == "step" and event["step"] == 40)
        process.send_signal(signal.SIGTERM)
        self.end(process, expect=130)
        made = {job["name"]: job["step"] for job in self.view()["jobs"]}
        process = subprocess.Popen(self.command("train", jobs, "--resume", "--output-dir", self.path / "run"), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=self.errors(), pipesize=4096)
        self.running.append(process)  # waits for its reader
        self.wait_for_socket(process)
        for job in self.view()["jobs"]:
            self.assertGreaterEqual(job["step"], made[job["name"]])
            self.assertGreaterEqual(len(job["losses"]), 20)


if __name__ == "__main__":
    unittest.main()
