#!/usr/bin/env python3
"""`cotune status`, `watch`, `report`, `job` and `evaluate` where there is no run: they say what was looked for, where, and what to do.

    COTUNE=build/cotune python3 tests/cli/no_run_test.py [UNITTEST OPTIONS]
"""
import os
import unittest

from program import ProgramTest

ABOUT_RUNS = "--run takes the output folder of `cotune train`, which is runs/latest unless it is told otherwise; "
ASKS = (("status",), ("watch",), ("report",), ("job", "list"), ("evaluate",))


class NoRun(ProgramTest):
    def refused(self, *arguments):
        return self.run_program(*arguments, expect=2, cwd=self.path).stderr

    def make_run(self, name, second):
        folder = self.path / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (second, second))

    def test_without_a_folder_the_default_one_is_named_and_what_begins_a_run(self):
        for command in (("status",), ("watch",), ("report",), ("job", "list"), ("job", "pause", "sql")):
            with self.subTest(command):
                self.assertEqual(self.refused(*command), f"runs/latest: holds no run: there is no folder {self.path}/runs/latest. {ABOUT_RUNS}"
                                                        "`cotune train JOBS_FILE` begins one\n")

    def test_names_move_no_cursor(self):
        for ask in ASKS:
            with self.subTest(ask):
                errors = self.refused(*ask, "--run", "no\x1b[2Jne\u009b\n")
                self.assertIn("no\\x1b[2Jne\\u009b", errors)
                self.assertNotRegex(errors, "[\x1b\u009b]")

    def test_the_newest_runs_nearby_are_named(self):
        for second, name in enumerate(("oldest", "runs/second", "third", "runs/newest"), start=1):
            self.make_run(name, second)
        nearby = f"{ABOUT_RUNS}runs nearby, the newest first: "
        for ask in ASKS:
            with self.subTest(ask):
                self.assertEqual(self.refused(*ask, "--run", "other"), f"other: holds no run: there is no folder {self.path}/other. {nearby}"
                                                                       "runs/newest, third, runs/second\n")
        self.assertEqual(self.refused("status", "--run", "runs"), f"runs: holds no run: run.json is missing in {self.path}/runs. {nearby}"
                                                                  "runs/newest, third, runs/second\n")
        (self.path / "elsewhere/old").mkdir(parents=True)
        self.make_run("elsewhere/new", 9)
        self.assertIn(f"{nearby}{self.path}/elsewhere/new, runs/newest, third\n", self.refused("status", "--run", self.path / "elsewhere/old"))

    def test_what_stands_in_place_of_a_run_is_told(self):
        (self.path / "link").symlink_to("gone")
        for name, trouble in (("jobs.yaml", "{} is a file, no folder"), ("link", "{} is a link to gone, which does not exist"),
                              ("runs", "run.json is missing in {}")):
            self.jobs_file()
            (self.path / "runs").mkdir(exist_ok=True)
            for ask in (("status",), ("watch",), ("report",), ("job", "list")):
                with self.subTest(name=name, ask=ask):
                    self.assertIn(f"{name}: holds no run: {trouble.format(self.path / name)}. --run", self.refused(*ask, "--run", name))

    def test_of_a_killed_run_the_command_is_told_that_goes_on_with_it(self):
        process = self.start_program("train", self.jobs_file(steps=100000), "--output-dir", self.path / "run", "--json")
        self.wait_for(process, lambda event: event["event"] == "checkpoint")
        self.kill(process)
        goes_on = f"`cotune train JOBS_FILE --resume --output-dir {self.path}/run` goes on with it"
        said = self.run_program("status", "--run", self.path / "run").stdout
        self.assertIn("not running, and it did not end", said)
        self.assertIn(goes_on, said)
        self.assertIn("`cotune status --run run`", self.refused("watch", "--run", "run"))
        (self.path / "run").rename(self.path / "my run")
        quoted = f"--output-dir '{self.path}/my run'"
        self.assertIn(f"`cotune train JOBS_FILE --resume {quoted}` goes on with it", self.run_program("status", "--run", self.path / "my run").stdout)
        self.assertIn(f"--resume {quoted}` goes on", self.refused("job", "list", "--run", self.path / "my run"))
        (self.path / "my run").rename(self.path / "run")
        self.run_program("train", self.jobs_file(steps=2), "--output-dir", self.path / "run", "--overwrite")
        self.assertNotIn("--resume", self.run_program("status", "--run", self.path / "run").stdout)


if __name__ == "__main__":
    unittest.main()
