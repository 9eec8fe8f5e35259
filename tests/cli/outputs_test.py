#!/usr/bin/env python3
"""Files that commands are told to write: what else stands there is refused and stays. Standard library only.

    COTUNE=build/cotune python3 tests/cli/outputs_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

from program import ProgramTest
from tiny_models import copy_model


class Outputs(ProgramTest):
    def setUp(self):
        super().setUp()
        self.jobs = self.jobs_file(steps=2, jobs=["plain"])
        self.model = copy_model(self.path / "model")
        self.prompts = self.path / "prompts.jsonl"
        self.prompts.write_text('{"prompt": "x"}\n')

    def refused(self, file, *arguments):
        """The command is told to write the file, which is something else."""
        before = file.read_bytes()
        errors = self.run_program(*arguments, expect=2).stderr
        self.assertEqual(file.read_bytes(), before, arguments)
        return errors

    def test_are_never_the_commands_own_inputs(self):
        jobs, run = self.jobs, self.path / "run"
        weights, config = self.model / "model.safetensors", self.model / "config.json"
        for file, arguments in (
                (jobs, ("train", jobs, "--output-dir", run, "--trace", jobs)),
                (jobs, ("plan", jobs, "--output", jobs)), (jobs, ("plan", jobs, "--svg", jobs)), (config, ("plan", jobs, "--trace", config)),
                (weights, ("profile", self.model, "--output", weights, "--seconds", "0.1")),
                (config, ("profile", self.model, "--output", config, "--seconds", "0.1"))):
            self.assertIn("only such a file is replaced; name another one, or remove it", self.refused(file, *arguments))
        self.assertFalse(run.exists())
        self.assertIn("is the file of the prompts", self.refused(self.prompts, "generate", "--model", self.model, "--prompts", self.prompts,
                                                                 "--output", self.prompts, "--overwrite"))
        questions = self.path / "questions.jsonl"
        questions.write_text('{"prompt": "x", "completion": "a"}\n')
        self.assertIn("is not answers of this command", self.refused(questions, "evaluate", "--model", self.model, "--data", questions,
                                                                     "--choices", "a,b", "--answers", questions))

    def test_are_files_apart(self):
        file = self.path / "x"
        errors = self.run_program("plan", self.jobs, "--svg", file, "--trace", self.path / "." / "x", expect=2).stderr
        self.assertIn("is that of --svg, too; give each a file of its own", errors)
        errors = self.run_program("simulate", "--philly", "--cluster", self.jobs, "--csv", file, "--save-trace", file, expect=2).stderr
        self.assertIn("is that of --save-trace, too", errors)
        self.assertFalse(file.exists())

    def test_are_no_other_files_of_a_run(self):
        run = self.path / "run"
        self.run_program("train", self.jobs, "--output-dir", run)
        for name in ("run.json", "summary.json", "metrics.jsonl"):
            self.assertIn("is not a report", self.refused(run / name, "report", "--run", run, "--output", run / name))
        self.assertIn("is a folder", self.run_program("report", "--run", run, "--output", run, expect=2).stderr)
        self.assertIn("is no folder", self.run_program("report", "--run", run, "--output", run / "none/x", expect=2).stderr)

    def test_are_not_standard_output_unless_a_folder_is_named(self):
        run = self.path / "run"
        self.run_program("train", self.jobs, "--output-dir", run)
        for option, arguments in (("--trace", ("train", self.jobs, "--output-dir", self.path / "other")), ("--output", ("plan", self.jobs)),
                                  ("--output", ("report", "--run", run)), ("--output", ("generate", "--model", self.model, "--prompts", self.prompts)),
                                  ("--answers", ("evaluate", "--run", run, "--exact-match")), ("--output", ("merge", "--model", self.model)),
                                  ("--output", ("manual",))):
            with self.subTest(arguments[0]):
                self.assertIn(f"{option}: `-` is not standard output here: give a name; `./-` makes what",
                              self.run_program(*arguments, option, "-", cwd=self.path, expect=2).stderr)
        self.assertFalse((self.path / "-").exists())
        self.run_program("report", "--run", run, "--output", "./-", cwd=self.path)
        self.assertTrue((self.path / "-").read_text().startswith("<!DOCTYPE html>"))

    def test_of_before_are_replaced_and_so_are_empty_ones(self):
        run, page, trace, plan, profile = (self.path / name for name in ("run", "page.html", "trace.json", "plan.json", "profile.json"))
        for file in (page, trace, plan, profile):
            file.touch()
        for _ in range(2):
            self.run_program("train", self.jobs, "--output-dir", run, "--overwrite", "--trace", trace)
            self.run_program("report", "--run", run, "--output", page)
            self.run_program("plan", self.jobs, "--output", plan, "--svg", self.path / "plan.svg", "--trace", trace)
            self.run_program("profile", self.model, "--output", profile, "--seconds", "0.1")
        self.assertIn("cotune_plan", json.loads(plan.read_text()))
        self.assertIn("cotune_profile", json.loads(profile.read_text()))

    def test_of_a_chat_are_new_or_its_own(self):
        def chat(*lines, expect=0):
            return self.run_program("generate", "--model", self.model, "--chat", "--max-new-tokens", "2", "--temperature", "0", expect=expect,
                                    stdin_text="".join(line + "\n" for line in lines)).stderr
        before = self.prompts.read_text()
        self.assertIn("is there already; name another file", chat("hi", f"/save {self.prompts}", expect=2))
        self.assertEqual(self.prompts.read_text(), before)
        own = self.path / "own.jsonl"
        chat("hi", f"/save {own}", "more", f"/save {own}", "/exit", "/never heard")
        self.assertEqual(len(json.loads(own.read_text())["messages"]), 4)


if __name__ == "__main__":
    unittest.main()
