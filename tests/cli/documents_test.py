#!/usr/bin/env python3
"""README.md and the pages of docs/: every command of theirs, run as it stands there, and every option that they name.

    COTUNE=build/cotune python3 tests/cli/documents_test.py [UNITTEST OPTIONS]

A page's ```bash blocks run one after another in a folder that holds what its reader has: models, data, examples/, and a run or a
plan where the page, or a block, begins with one (SCENES). A fence that names a file, ```yaml jobs.yaml, writes it. NOT_RUN names the
blocks that are not run here, and why, or what runs them; a command in any other block is a mistake. The program and the scripts parse
their lines. Of them, and of `commands` in text, the options are held to what the program's --help and the scripts know. The program parses every `cotune ...` of the text, with its values, and runs
those that stand there whole. torchrun, Slurm and TensorBoard are used where
scripts/install-dependencies has installed them.
"""
import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import needs
import one_machine_slurm
from program import LIMIT_S, PROGRAM, ProgramTest
from terminal_screen import TerminalProgram
from tiny_models import copy_model, write_model, write_tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from document_blocks import PAGES, blocks, named  # noqa: E402
from large_blocks import LARGE  # noqa: E402

DEMO_MODEL = "build/demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"
OPTION = r"--[a-z][a-z-]*"
OPTIONS_OF_OTHERS = {"--node-rank", "--rdzv-backend", "--rdzv-id", "--version", "--max-restarts", "--no-python", "--long", "--gpus", "--kill-on-bad-exit", "--cpus-per-task"}  # the program's own, torchrun's, zstd's, docker's, srun's
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:build/)?(?:cotune [a-z]|(?:scripts|bench)/|"
                     r"(?:torchrun|srun|sbatch|python3?|pip|docker|sudo|tensorboard|hf|cmake|mkdir) )", re.M)
# Page and first line of the blocks that no test runs, and why.
NOT_RUN = {
    ("README.md", "scripts/test"): "is what runs this test",
    **{key: "large_blocks_test.py runs it, when asked to" for key in LARGE},
    ("docs/training.md", "cotune train JOBS_FILE [--set"): "is the command's form",
}
# Scripts whose options another program parses, after all that they do themselves.
HAND_OPTIONS_ON = {"scripts/test"}
SAID_OF_OTHERS = {"generate --raw"}  # what it does to a whole command


def headings(page):
    """As links name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def listed(page, text):
    """Under what NOT_RUN has the block."""
    return [key for key in NOT_RUN if key[0] == named(page) and text.lstrip().startswith(key[1])]


def is_run(block):
    _, language, file, _ = block
    return language == "bash" and not file


def spans(page):
    """What stands in `backticks` in the page's text, each as one line."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from (" ".join(piece.split()) for piece in re.findall(r"`([^`]+)`", paragraph))


def inline_commands():
    """{command line behind `cotune`: the page that has it first} of the text, where it has more than one word; without what stands for
    anything else and what a pipe leads to."""
    found = {}
    for page in PAGES:
        for piece in spans(page):
            match = re.match(r"(?:build/)?cotune ([a-z]+ [^|]+)", piece.replace(" …", ""))
            if match is not None:
                found.setdefault(match[1].strip(), named(page))
    return found


class Documents(ProgramTest):
    def setUp(self):
        super().setUp()
        self.slurm = None
        self.cwd = self.path / "reader"
        for folder in ("bin", "build/demo/data", "build/demo/model", "models", "data"):
            (self.cwd / folder).mkdir(parents=True)
        for place in ("bin/cotune", "build/cotune"):
            (self.cwd / place).symlink_to(PROGRAM)
        shutil.copytree(ROOT / "examples", self.cwd / "examples")
        demo = self.cwd / "examples/demo.yaml"
        demo.write_text(re.sub(r"steps: \d+", "steps: 8", demo.read_text()))
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
        return subprocess.run(self.shell_command(script), cwd=self.cwd, env=self.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)

    def shell_command(self, script):
        return ["bash", "-euo", "pipefail", "-c", script]

    def environment(self):
        places = (self.cwd / "bin", os.environ["PATH"], ROOT / ".deps/venv/bin")
        of_slurm = self.slurm.environment if self.slurm is not None else {}
        return {**os.environ, **of_slurm, "PATH": ":".join(map(str, places)), "HOME": str(self.path)}

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
                with self.subTest(f"{named(page)}:{number}"):
                    self.prepare_block(page, text)
                    self.run_block(text)
                count += 1
        return count

    def prepare_block(self, page, text):
        for (name, part), prepare in self.BLOCK_SCENES.items():
            if name == named(page) and part in text:
                prepare(self)

    def run_block(self, text):
        for program in ("torchrun", "tensorboard"):
            if re.search(rf"^\s*{program} ", text, re.M):
                needs.require(self, program)
        if re.search(r"^\s*(srun|sbatch) ", text, re.M):
            self.start_slurm()
        if "$NODE" in text:
            return self.run_on_two_machines(text)
        if "cotune watch" in text:
            return self.run_on_terminal(text)
        if text.startswith("tensorboard "):
            return self.run_server(text)
        if not needs.is_here("gpu"):
            text = text.replace("--device cuda", "--device cpu")
        done = self.shell(text)
        self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}\n{done.stderr}")

    def start_slurm(self):
        if self.slurm is not None:
            return
        needs.require(self, "slurm")
        self.slurm = one_machine_slurm.OneMachineSlurm(self.path / "slurm")
        self.addCleanup(self.slurm.stop)

    def run_on_two_machines(self, text):
        """Both are this one: the block runs twice at the same time, each time as another node."""
        environment = {**self.environment(), "FIRST_MACHINE": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        nodes = [subprocess.Popen(self.shell_command(text), cwd=self.cwd, env={**environment, "NODE": str(node)}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for node in range(2)]
        self.running += nodes
        written = [node.communicate(timeout=LIMIT_S)[0].decode() for node in nodes]
        self.assertEqual([node.returncode for node in nodes], [0, 0], "\n".join([text, *written]))

    def run_on_terminal(self, text):
        """On a terminal whose user looks, and leaves with q."""
        program = TerminalProgram(self.shell_command(f"cd {self.cwd}\n{text}"), **self.environment())
        self.addCleanup(program.close)
        program.wait_for(lambda screen: screen.is_alternate or "finished" in screen.normal)
        program.press("q")
        self.assertEqual(program.end(), 0)
        self.assertIn("support-r16", program.screen.normal)

    def run_server(self, text):
        """A server that goes on until it is stopped."""
        server = subprocess.Popen(self.shell_command("exec " + text), cwd=self.cwd, env=self.environment(), stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.running.append(server)
        log = ""
        for line in server.stdout:
            log += line
            address = re.search(r"http://(?:localhost|[\w.-]+):(\d+)/", line)
            if address:
                while not self.shows_run(f"http://localhost:{address[1]}/data/runs", "support-r16"):
                    time.sleep(0.1)  # it reads the files beside answering
                return server.send_signal(signal.SIGINT)
        self.fail(f"{text}\n{log}")

    def shows_run(self, address, run):
        with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
            return run in json.load(answer)

    def start_program_there(self, *arguments):
        run = subprocess.Popen([PROGRAM, *arguments], cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
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
        moods = (" negative", " positive")
        self.write_rows("reviews.jsonl", lambda i: {"prompt": f"Review {i}. Mood:", "completion": moods[i % 2]}, count=4)

    def scene_installable(self):
        built = pathlib.Path(PROGRAM).parent / "cmake_install.cmake"
        if not built.exists():
            self.skipTest(f"{PROGRAM} does not lie in a folder that cmake installs from")
        (self.cwd / "build/cmake_install.cmake").symlink_to(built)

    def scene_trained_on_gguf(self):
        shutil.rmtree(self.cwd / "runs")
        (self.cwd / "jobs.yaml").write_text(f"cotune: 1\nmodel: {{path: {ROOT}/tests/model_weights/data/gguf_llama/model.gguf}}\njobs:\n"
                                            "  - {name: sql, data: {train: data/numbers.jsonl}, adapter: {r: 2}, train: {steps: 2}}\n")
        self.write_rows("data/numbers.jsonl", lambda i: {"input_ids": [3, 4, 5, i % 8], "labels": [-100, 4, 5, i % 8]})
        self.prepare("cotune train jobs.yaml")

    def scene_with_gguf(self):
        (self.cwd / "models").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests/model_weights/data/gguf_llama/model.gguf", self.cwd / "models/base.gguf")

    def scene_emulated(self):
        (self.cwd / "config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 8, "head_dim": 8, "vocab_size": 64, "hidden_act": "silu", "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True}))
        (self.cwd / "jobs.yaml").write_text(
            "cotune: 1\nmodel: {config: config.json, weights: none}\ndefaults: {train: {batch_size: 4, steps: 2}}\njobs:\n"
            "  - {name: a, data: {lengths: [32, 64]}, adapter: {r: 4}}\n  - {name: b, data: {lengths: [64, 128]}, adapter: {r: 4}}\n")
        shutil.copy(ROOT / "examples/plan/16-a100-40.yaml", self.cwd / "cluster.yaml")
        self.prepare("cotune profile config.json --seconds 0.1")

    def scene_of_readme(self):
        shutil.rmtree(self.cwd / "runs/latest", ignore_errors=True)
        self.jobs_of_readme()

    def scene_of_demo(self):
        """scripts/demo itself, where what it installs, builds and fetches is there."""
        (self.cwd / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/demo", self.cwd / "scripts/demo")
        for name in ("install-dependencies", "build", "demo-data"):
            (self.cwd / "scripts" / name).write_text("#!/bin/sh\n")
            (self.cwd / "scripts" / name).chmod(0o755)

    def scene_long_rows(self):
        (self.cwd / "bench").symlink_to(ROOT / "bench")
        self.replace_demo_model(vocabulary=5000, positions=8192)

    def scene_of_three_ranks(self):
        self.replace_demo_model(layers=2, heads=9, kv_heads=3)
        write_tokenizer(self.cwd / DEMO_MODEL)

    def replace_demo_model(self, **shape):
        (self.cwd / DEMO_MODEL).unlink()
        write_model(self.cwd / DEMO_MODEL, **shape)

    SCENES = {"README.md": scene_of_demo, "docs/gpu.md": scene_of_readme, "docs/generating.md": scene_answering, "docs/evaluating.md": scene_answering, "docs/adapter-format.md": scene_trained,
              "docs/watching.md": scene_trained, "docs/control.md": scene_running, "docs/data-formats.md": scene_of_readme,
              "docs/ranks.md": scene_of_three_ranks, "docs/torchrun.md": scene_of_three_ranks,
              "docs/planning.md": scene_planned, "docs/simulation.md": scene_simulated,
              "docs/tasks/continue-an-adapter.md": scene_stopped, "docs/tasks/run-out-of-memory.md": scene_planned,
              "docs/tasks/move-to-two-machines.md": scene_planned}
    # Page, what a block holds, what is there before it runs.
    BLOCK_SCENES = {("docs/adapter-format.md", "models/base.gguf"): scene_with_gguf,
                    ("docs/adapter-format.md", "models/sql.gguf"): scene_trained_on_gguf,
                    ("docs/installing.md", "cmake --install"): scene_installable,
                    ("docs/ranks.md", "emulated:profile.json"): scene_emulated,
                    ("docs/torchrun.md", "$FIRST_MACHINE"): scene_of_readme,
                    ("docs/slurm.md", "sbatch"): scene_of_readme,
                    ("docs/tasks/move-to-two-machines.md", "srun"): scene_of_readme,
                    ("docs/tasks/move-to-two-machines.md", "$FIRST_MACHINE"): scene_of_readme,
                    ("docs/training.md", "bench/long_row.py"): scene_long_rows}

    def test_what_the_demonstration_says_to_try_next(self):
        self.scene_of_demo()
        said = self.shell("scripts/demo").stdout.partition("== what to try next\n")[2]
        commands = [re.split(r" {2,}", line.strip())[0] for line in said.splitlines() if re.match(r" *(build|scripts)/", line)]
        self.assertGreater(len(commands), 3, said)
        for command in commands:
            with self.subTest(command):
                self.prepare(command)

    def test_the_demonstration_refuses_to_train_where_it_would_not_look(self):
        self.scene_of_demo()
        for options, refused in (("--output-dir runs/other", "--output-dir"), ("--output-dir=runs/other", "--output-dir=runs/other"),
                                 ("--set run.output_dir=runs/other", "run.output_dir=runs/other"), ("--json", "--json"), ("--check", "--check")):
            with self.subTest(options):
                done = self.shell(f"scripts/demo --fresh {options}")
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(f"scripts/demo: {refused} is not for the demonstration", done.stderr)
                self.assertIn(f"build/cotune train examples/demo.yaml {options}\n", done.stderr)
                self.assertFalse((self.cwd / "runs").exists())

    def test_the_commands_in_sentences_that_are_whole(self):
        self.scene_planned()
        shutil.copy(ROOT / "examples/plan/one-a40.yaml", self.cwd / "cluster.yaml")
        self.prepare("cotune plan jobs.yaml --cluster cluster.yaml --output plan.json && cotune train jobs.yaml --output-dir runs/kept")
        run = 0
        for command, page in inline_commands().items():
            if re.search(r"\b[A-Z][A-Z_]{3,}\b", command) or command in SAID_OF_OTHERS or not is_whole(shlex.split(command)):
                continue
            if command.startswith("job "):
                continue  # of a run that goes on: those of docs/control.md
            with self.subTest(page, command=command):
                shutil.rmtree(self.cwd / "runs/latest", ignore_errors=True)
                if not command.startswith("train "):
                    shutil.copytree(self.cwd / "runs/kept", self.cwd / "runs/latest")
                self.prepare("cotune " + command)
            run += 1
        self.assertGreater(run, 8)


def page_test(page):
    def test(self):
        prepare = self.SCENES.get(named(page))
        if prepare is not None:
            prepare(self)
        self.assertEqual(self.run_page(page), sum(is_run(block) for block in blocks(page)))
    return test


for page_with_commands in PAGES:
    if any(is_run(block) for block in blocks(page_with_commands)):
        setattr(Documents, "test_the_commands_of_" + re.sub(r"\W", "_", named(page_with_commands)), page_test(page_with_commands))


def help_of(*words):
    return subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


NO_OPTION = "--that-there-is-none"


def parse(words):
    """What the program says of a command line whose only mistake should be NO_OPTION, so that nothing of it is done."""
    done = subprocess.run([PROGRAM, *words, NO_OPTION], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    assert done.returncode == 2, (words, done.stdout, done.stderr)
    return done.stderr


REFUSES_NO_OPTION = rf"unknown option '{NO_OPTION}'|unrecognized arguments: {NO_OPTION}\n"


def said_of_options(test, script, options):
    """What a script says of options whose only mistake should be NO_OPTION, so that nothing is done."""
    interpreter = [sys.executable] if "python" in (ROOT / script).read_text(encoding="utf-8").splitlines()[0] else []
    done = subprocess.run([*interpreter, ROOT / script, *options, NO_OPTION], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=LIMIT_S)
    test.assertNotEqual(done.returncode, 0)
    test.assertEqual(done.stdout, "")
    return done.stderr


def is_whole(words):
    """Whether it may run as it stands: what a trace needs is asked for after the options."""
    return parses_whole(words) and (words[0] != "simulate" or bool({"--cluster", "--jobs"} & set(words)))


def parses_whole(words):
    return re.fullmatch(rf"\w+: `{NO_OPTION}` was not expected\n--help lists the options\n", parse(words)) is not None


class Sentences(unittest.TestCase):
    """Commands in them may leave out what is required, and the value of their last option."""

    def test_name_commands_that_the_program_parses(self):
        found = {command: page for command, page in inline_commands().items() if not command.startswith("train ")}
        self.assertGreater(len(found), 15)
        for command, page in found.items():
            with self.subTest(page, command=command):
                words = shlex.split(command)
                said = parse(words)
                lacks = re.search(r"^\S+ (is required|requires \S+)$", said, re.M) or (words[-1].startswith("--") and said.startswith(words[-1] + ":"))
                self.assertTrue(lacks or parses_whole(words), said)

    def test_give_training_options_that_the_jobs_file_takes_together(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "jobs.yaml").write_text(
                "cotune: 1\nmodel: {path: nowhere}\njobs:\n  - {name: a, data: {train: a.jsonl}, adapter: {r: 4}}\n")
            found = {command: page for command, page in inline_commands().items() if command.startswith("train ")}
            self.assertGreater(len(found), 15)
            for command, page in found.items():
                with self.subTest(page, command=command):
                    words = ["2" if command.endswith("--ranks") else "", "" if re.search("jobs.yaml|JOBS_FILE", command) else "jobs.yaml"]
                    words = [*shlex.split(command.replace("JOBS_FILE", "jobs.yaml")), *filter(None, words)]
                    done = subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True,
                                          stdin=subprocess.DEVNULL, timeout=LIMIT_S)
                    self.assertEqual(done.returncode, 2)
                    wrong = [line for line in done.stderr.splitlines() if line.startswith("--") and "no such file" not in line]
                    self.assertEqual(wrong, [])

    def test_name_scripts_that_take_what_stands_behind_them(self):
        """A name in capitals stands for any value; what a script requires may be left out."""
        seen, parsed = set(), 0
        for page in PAGES:
            for piece in spans(page):
                match = re.match(r"(?:\S*python3? )?((?:scripts|bench)/[\w/-]+(?:\.py)?)( [^…|]*)?$", piece)
                if match is None:
                    continue
                with self.subTest(named(page), piece=piece):
                    script, options = match[1], shlex.split(match[2] or "")
                    self.assertTrue((ROOT / script).exists())
                    if options and script not in HAND_OPTIONS_ON and (script, *options) not in seen:
                        self.assertRegex(said_of_options(self, script, options), REFUSES_NO_OPTION + "|required: ")
                        parsed += 1
                    seen.add((script, *options))
        self.assertGreater(len(seen), 30)
        self.assertGreater(parsed, 8)


class Blocks(unittest.TestCase):
    def test_that_hold_commands_are_run_or_listed_with_the_reason(self):
        left = dict(NOT_RUN)
        for page in PAGES:
            for number, language, file, text in blocks(page):
                if language == "bash" or file or not (language == "sh" or COMMAND.search(text)):
                    continue
                keys = listed(page, text)
                self.assertTrue(keys, f"{named(page)}:{number}: make it a block of ```bash, which this test runs, or list it in NOT_RUN")
                for key in keys:
                    left.pop(key, None)
        self.assertEqual(left, {}, "such blocks there are no more")


class LinesThatAreNotRun(unittest.TestCase):
    """What parses them refuses an option that there is none, and nothing else, before it does anything."""

    def texts(self, language):
        """(page and line, text) of the blocks in NOT_RUN."""
        for page in PAGES:
            for number, own, _, text in blocks(page):
                if own == language and listed(page, text):
                    yield f"{named(page)}:{number}", text

    def commands(self):
        """(page and line, words) of their simple commands."""
        for place, text in self.texts("sh"):
            for line in text.splitlines():
                for is_and, words in itertools.groupby(shlex.split(line, comments=True), lambda word: word == "&&"):
                    if not is_and:
                        yield place, list(words)

    def test_are_parsed_by_the_program_and_the_scripts(self):
        subcommands = re.findall(r"^  ([a-z]+) ", help_of().partition("Subcommands:\n")[2], re.M)
        parsed = {"program": 0, "script": 0}
        for place, words in self.commands():
            for i, (word, rest) in enumerate((word, words[i + 1:]) for i, word in enumerate(words)):
                if word in ("cotune", "build/cotune") and rest and rest[0] in subcommands:
                    with self.subTest(place, command=words):
                        self.assertTrue(parses_whole(rest), parse(rest))
                    parsed["program"] += 1
                if i < 2 and word.startswith("scripts/") and rest and word not in HAND_OPTIONS_ON:
                    with self.subTest(place, command=words):
                        self.assertRegex(said_of_options(self, word, rest), REFUSES_NO_OPTION)
                    parsed["script"] += 1
        self.assertGreater(min(parsed.values()), 0, parsed)
        self.assertGreater(parsed["script"], 5)

    def test_that_give_a_commands_form_name_options_with_values_as_the_program_takes_them(self):
        for place, text in self.texts("text"):
            command, *parts = re.sub(r"\]\.{3}", "]", text.strip()).split(" [")
            words = command.replace("JOBS_FILE", "jobs.yaml").split()[1:]
            options = [option for part in parts for option in part.rstrip("]").split(" | ") if not option.startswith("--RUN-OPTION ")]
            self.assertGreater(len(options), 5)
            for option in options:
                with self.subTest(place, option=option):
                    self.assertTrue(parses_whole([*words, *option.split()]), option)


class Links(unittest.TestCase):
    def test_lead_to_files_and_headings_that_there_are(self):
        count = 0
        for page in PAGES:
            text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
            for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", text):
                file, _, heading = target.partition("#")
                with self.subTest(named(page), link=target):
                    leads_to = (page.parent / file).resolve() if file else page
                    self.assertTrue(leads_to.exists())
                    if heading:
                        self.assertIn(heading, headings(leads_to))
                count += 1
        self.assertGreater(count, 100)


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

    @staticmethod
    @functools.cache
    def help_of_benchmark(script):
        if not script.endswith(".py"):
            return ""
        return subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, timeout=LIMIT_S).stdout

    def script_options(self, page):
        known = set()
        for script in set(re.findall(r"\b((?:bench|scripts)/[\w-]+(?:\.py)?)", page.read_text(encoding="utf-8"))):
            if (ROOT / script).is_file():
                known |= set(re.findall(OPTION, (ROOT / script).read_text(encoding="utf-8")))
                known |= set(re.findall(OPTION, self.help_of_benchmark(script))) if script.startswith("bench/") else set()
        return known

    def pieces(self, page):
        """Code in the page's text, and its shell lines."""
        yield from spans(page)
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
            shown = [file for _, language, file, _ in blocks(page) if file and language not in ("cpp", "diff")]  # tests/walkthrough builds these
            for file in shown:
                used = "".join(text for _, language, other, text in blocks(page) if language in ("bash", "sh") or other not in ("", file))
                self.assertTrue(page.name == "README.md" or file in used, f"{named(page)}: {file}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
