#!/usr/bin/env python3
"""README.md and the pages of docs/: every command of theirs, run as it stands there, and every option that they name.

    COTUNE=build/cotune python3 tests/cli/documents_test.py [UNITTEST OPTIONS]

A page's ```bash blocks run one after another in a folder that holds what its reader has: models, data, examples/, and a run or a
plan where the page begins with one (SCENES). A fence that names a file, ```yaml jobs.yaml, writes it. Blocks of ```sh are for what a
test does not have: root, a network, a GPU, a second machine, minutes. Of them, and of `commands` in text, the options are held to
what the program's --help and the scripts know.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest

from program import LIMIT_S, PROGRAM, ProgramTest
from tiny_models import copy_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from check_readme import FENCE  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEMO_MODEL = "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"
OPTION = r"--[a-z][a-z-]*"
OPTIONS_OF_OTHERS = {"--version", "--max-restarts", "--long", "--gpus"}  # the program's own, torchrun's, zstd's, docker's


def blocks(page):
    """(line number, language, file or "", text) of every fenced block."""
    current = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            if current is None:
                words = line.strip().lstrip("`~").split()
                current = (number, words[0] if words else "", words[1] if len(words) > 1 else "", [])
            else:
                yield (*current[:3], "".join(text + "\n" for text in current[3]))
                current = None
        elif current is not None:
            current[3].append(line)


def named(page):
    return str(page.relative_to(ROOT))


class Documents(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cwd = self.path / "reader"
        for folder in ("bin", "build/demo/data", "build/demo/model", "models", "data"):
            (self.cwd / folder).mkdir(parents=True)
        for place in ("bin/cotune", "build/cotune"):
            (self.cwd / place).symlink_to(PROGRAM)
        shutil.copytree(ROOT / "examples", self.cwd / "examples")
        copy_model(self.cwd / "models/SmolLM2-135M-Instruct")
        (self.cwd / DEMO_MODEL).symlink_to(self.cwd / "models/SmolLM2-135M-Instruct")
        self.write_rows("data/support.jsonl", lambda i: self.chat(f"Where is order {i}?", f"Order {i} is on its way."))
        self.write_rows("data/chats.jsonl", lambda i: self.chat(f"Hello, I am guest {i}.", f"Welcome, guest {i}!"))
        self.write_rows("data/sql.jsonl", lambda i: {"prompt": f"List user {i}.", "completion": f" SELECT {i};"})
        for name in ("sentiment", "definitions", "jargon", "code"):
            for part, count in (("train", 40), ("test", 8)):
                self.write_rows(f"build/demo/data/{name}.{part}.jsonl", count=count, row=lambda i: {
                    "prompt": f"Film review: number {i}.\nSentiment:", "completion": " positive" if i % 2 else " negative"})

    def chat(self, question, answer):
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    def write_rows(self, name, row, count=80):
        (self.cwd / name).write_text("".join(json.dumps(row(i)) + "\n" for i in range(count)))

    def shell(self, script):
        environment = {**os.environ, "PATH": f"{self.cwd / 'bin'}:{os.environ['PATH']}", "HOME": str(self.path)}
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.cwd, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)

    def prepare(self, script):
        done = self.shell(script)
        self.assertEqual(done.returncode, 0, done.stderr)

    def run_page(self, page):
        """Runs the page's bash blocks, and returns how many there were."""
        count = 0
        for number, language, file, text in blocks(page):
            if file:
                path = self.cwd / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif language == "bash":
                done = self.shell(text)
                self.assertEqual(done.returncode, 0, f"{named(page)}:{number}:\n{text}\n{done.stdout}\n{done.stderr}")
                count += 1
        return count

    def start_program_there(self, *arguments):
        run = subprocess.Popen([PROGRAM, *arguments], cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.running.append(run)
        return run

    def jobs_of_readme(self):
        (self.cwd / "jobs.yaml").write_text(next(text for _, _, file, text in blocks(ROOT / "README.md") if file == "jobs.yaml"))

    # What a page's reader has besides.

    def scene_trained(self):
        self.jobs_of_readme()
        jobs = (self.cwd / "jobs.yaml").read_text()
        (self.cwd / "jobs.yaml").write_text(jobs.replace("{method: bottleneck, bottleneck_size: 64}", "{r: 4}"))
        self.prepare("cotune train jobs.yaml")

    def scene_running(self):
        self.jobs_of_readme()
        (self.cwd / "more.yaml").write_text("cotune: 1\njobs:\n  - {name: more, data: {train: data/sql.jsonl}, adapter: {r: 2}}\n")
        run = self.start_program_there("train", "jobs.yaml", "--stay", "--json", "--set", "defaults.train.epochs=100000")
        self.wait_for(run, lambda event: event["event"] == "step")
        threading.Thread(target=run.stdout.read, daemon=True).start()  # so that the program can go on

    def scene_planned(self):
        self.jobs_of_readme()
        shutil.copy(ROOT / "examples/plan/one-a40.yaml", self.cwd / "c.yaml")
        self.prepare("cotune profile models/SmolLM2-135M-Instruct --seconds 0.1")

    def scene_simulated(self):
        shutil.copy(ROOT / "examples/plan/six-tasks-7b.yaml", self.cwd / "jobs.yaml")
        shutil.copy(ROOT / "examples/plan/16-a100-40.yaml", self.cwd / "cluster.yaml")
        (self.cwd / "trace.csv").write_text("arrival_min,duration_min\n0,30\n1,10\n5,20\n")
        self.prepare("cotune plan jobs.yaml --cluster cluster.yaml --output plan.json")

    def scene_stopped(self):
        self.jobs_of_readme()
        run = self.start_program_there("train", "jobs.yaml", "--json", "--set", "defaults.train.epochs=20")
        self.wait_for(run, lambda event: event["event"] == "step")
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=LIMIT_S)
        self.assertEqual(run.returncode, 130)
        text = (self.cwd / "jobs.yaml").read_text()
        (self.cwd / "jobs.yaml").write_text(text.replace("epochs: 1", "epochs: 20"))

    def scene_answering(self):
        self.scene_trained()
        for name in ("a", "b"):
            shutil.copytree(self.cwd / "runs/latest", self.cwd / "runs" / name)
        self.write_rows("questions.jsonl", lambda i: {"id": i, "prompt": f"List user {i}."}, count=3)
        self.write_rows("test.jsonl", lambda i: {"prompt": f"List user {i}.", "completion": f" SELECT {i};"}, count=3)
        self.write_rows("reviews.jsonl", lambda i: {"prompt": f"Review {i}. Mood:", "completion": " positive" if i % 2 else " negative"}, count=4)

    SCENES = {"docs/generating.md": scene_answering, "docs/evaluating.md": scene_answering, "docs/adapter-format.md": scene_trained, "docs/watching.md": scene_trained, "docs/control.md": scene_running,
              "docs/planning.md": scene_planned, "docs/simulation.md": scene_simulated,
              "docs/tasks/continue-an-adapter.md": scene_stopped, "docs/tasks/run-out-of-memory.md": scene_planned,
              "docs/tasks/move-to-two-machines.md": scene_planned}


def page_test(page):
    def test(self):
        prepare = self.SCENES.get(named(page))
        if prepare is not None:
            prepare(self)
        self.assertEqual(self.run_page(page), sum(language == "bash" for _, language, _, _ in blocks(page)))
    return test


for page_with_commands in PAGES:
    if any(language == "bash" for _, language, _, _ in blocks(page_with_commands)):
        setattr(Documents, "test_the_commands_of_" + re.sub(r"\W", "_", named(page_with_commands)), page_test(page_with_commands))


def help_of(*words):
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


class Options(unittest.TestCase):
    """What stands in `backticks` and code blocks names options that there are."""

    @classmethod
    def setUpClass(cls):
        cls.commands = re.findall(r"^  ([a-z]+) ", help_of().partition("Subcommands:\n")[2], re.M)
        cls.options = {}
        for name in cls.commands:
            text = help_of(name)
            for below in re.findall(r"^  ([a-z]+) ", text.partition("Subcommands:\n")[2], re.M):
                text += help_of(name, below)
            cls.options[name] = set(re.findall(OPTION, text))

    def script_options(self, page):
        known = set()
        for script in set(re.findall(r"\b((?:bench|scripts)/[\w-]+(?:\.py)?)", page.read_text(encoding="utf-8"))):
            if (ROOT / script).is_file():
                known |= set(re.findall(OPTION, (ROOT / script).read_text(encoding="utf-8")))
        return known

    def pieces(self, page):
        """Code in the page's text, and its shell lines."""
        text = page.read_text(encoding="utf-8")
        for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
            yield from (" ".join(piece.split()) for piece in re.findall(r"`([^`]+)`", paragraph))
        for _, language, _, block in blocks(page):
            if language in ("bash", "sh"):
                yield from (line.split("#")[0] for line in block.splitlines())

    def test_of_every_page(self):
        checked = 0
        of_scripts = {page: self.script_options(page) for page in PAGES}
        for page, piece in ((page, piece) for page in PAGES for piece in self.pieces(page)):
            command = re.match(r"(?:\S+=\S+ )*(?:(?:build/)?cotune )([a-z]\w*)", piece)
            with self.subTest(named(page), piece=piece):
                if command is not None:
                    self.assertIn(command[1], self.commands)
                accepted = set().union(*self.options.values()) if command is None else self.options[command[1]]
                if command is None and not piece.startswith("--"):
                    continue  # another program's line
                for option in re.findall(rf"(?<![\w-]){OPTION}", piece):
                    self.assertIn(option, accepted | of_scripts[page] | OPTIONS_OF_OTHERS)
                    checked += 1
        self.assertGreater(checked, 100)

    def test_files_that_blocks_show_are_yaml_that_is_used(self):
        for page in PAGES:
            shown = [file for _, _, file, _ in blocks(page) if file]
            for file in shown:
                used = "".join(text for _, language, other, text in blocks(page) if language in ("bash", "sh") or other not in ("", file))
                self.assertTrue(page.name == "README.md" or file in used, f"{named(page)}: {file}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
