#!/usr/bin/env python3
"""README.md's jobs file and its command lines, run as they stand there, on a tiny model under the names that it uses.

    COTUNE=build/cotune python3 tests/cli/readme_test.py [UNITTEST OPTIONS]
"""
import json
import pathlib
import re
import shlex
import sys
import unittest

from program import ProgramTest
from tiny_models import copy_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from check_readme import code_blocks  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = ("train", "watch", "status", "report", "job", "data", "generate", "evaluate", "merge", "export", "plan", "simulate", "profile")


def command_lines():
    """The arguments of every `build/cotune …` line in a code block, with the line's number."""
    for number, lines in code_blocks(README):
        for offset, line in enumerate(lines, 1):
            words = shlex.split(line, comments=True)
            if words and words[0] == "build/cotune":
                yield number + offset, words[1:]


class Readme(ProgramTest):
    def setUp(self):
        super().setUp()
        jobs, = ("\n".join(lines) for _, lines in code_blocks(README) if lines and lines[0].startswith("cotune: "))
        (self.path / "jobs.yaml").write_text(jobs + "\n")
        (self.path / "models").mkdir()
        copy_model(self.path / "models" / "SmolLM2-135M-Instruct")
        (self.path / "data").mkdir()
        rows = {"support": lambda i: {"messages": [{"role": "user", "content": f"Where is order {i}?"},
                                                   {"role": "assistant", "content": f"Order {i} is on its way."}]},
                "sql": lambda i: {"prompt": f"List user {i}.", "completion": f" SELECT {i};"}}
        for name, row in rows.items():
            (self.path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(40)))
        (self.path / "examples").symlink_to(ROOT / "examples")

    def test_its_command_lines_run_in_their_order(self):
        lines = list(command_lines())
        self.assertLessEqual({"train", "data", "generate", "plan"}, {words[0] for _, words in lines})
        for number, words in lines:
            with self.subTest(f"README.md:{number}", command=words):
                if words[0] == "plan":  # plan_test.py plans this example in whole; here all is read until a missing profile
                    errors = self.run_program(*words, "--profile", "none.json", cwd=self.path, expect=2).stderr
                    self.assertRegex(errors, r"\Anone\.json: cannot open: [^\n]*\n*\Z")
                    continue
                said = self.run_program(*words, cwd=self.path).stdout
                if "--check" in words:
                    self.assertIn("3 jobs are ready", said)
        for name in re.findall(r"^  - name: (\S+)", (self.path / "jobs.yaml").read_text(), re.M):
            self.assertTrue((self.path / "runs/latest/jobs" / name / "adapter/adapter_model.safetensors").is_file(), name)

    def test_the_options_that_it_names_exist(self):
        options = {name: set(re.findall(r"--[a-z][a-z-]*", self.run_program(name, "--help").stdout)) for name in COMMANDS}
        checked = 0
        for paragraph in re.split(r"\n\s*\n", README):
            known = set().union(*options.values())
            for script in re.findall(r"\b((?:bench|scripts)/[\w-]+(?:\.py)?)", paragraph):
                known |= set(re.findall(r"--[a-z][a-z-]*", (ROOT / script).read_text(encoding="utf-8")))
            pieces = re.findall(r"`([^`\n]+)`", paragraph) + re.findall(r"^build/.*", paragraph, re.M)
            for piece in pieces:
                named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", piece)
                command = re.match(r"(?:(?:build/)?cotune )?(\w+)", piece)
                accepted = options.get(command[1], known) if command else known
                for option in named:
                    self.assertIn(option, accepted, f"README.md: `{piece}`")
                    checked += 1
                if piece.startswith("cotune "):
                    self.assertIn(piece.split()[1], COMMANDS, f"README.md: `{piece}`")
        self.assertGreater(checked, 15)


if __name__ == "__main__":
    unittest.main(verbosity=2)
