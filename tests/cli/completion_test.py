#!/usr/bin/env python3
"""Shell completions, asked of the shells themselves, and manual pages, read by mandoc.

    COTUNE=build/cotune python3 tests/cli/completion_test.py [UNITTEST OPTIONS]
"""
import itertools
import os
import pathlib
import pty
import re
import select
import subprocess
import tempfile
import time
import unittest

import needs
from program import LIMIT_S, PROGRAM, ROOT

SHARINGS = {"separate", "temporal", "batch-all", "hybrid"}


def script(shell):
    return subprocess.run([PROGRAM, "completion", shell], capture_output=True, text=True, check=True).stdout


def subcommands(words):
    text = subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ([a-z]+) ", text.partition("Subcommands:\n")[2], re.M)


def long_options(words):
    text = subprocess.run([PROGRAM, *words, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]*)", text, re.M))


def refusal(test, *words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    test.assertEqual(done.returncode, 2)
    return done.stderr


class Completion(unittest.TestCase):
    """Each shell is given a line that ends at the cursor, and says what it would offer."""

    def check_shell(self, offers):
        self.assertEqual(set(offers("cotune ")), set(subcommands([])))
        self.assertEqual(set(offers("cotune job ")), set(subcommands(["job"])))
        self.assertEqual(offers("cotune trai"), ["train"])
        self.assertEqual(set(offers("cotune train --sharing ")), SHARINGS)
        self.assertEqual(offers("cotune train --sharing hy"), ["hybrid"])
        self.assertEqual(offers("cotune train --set job --sharing hy"), ["hybrid"])  # `job` is a value here
        self.assertEqual(set(offers("cotune completion ")), {"bash", "zsh", "fish"})
        for command in ("generate", "evaluate"):
            self.assertEqual(set(offers(f"cotune {command} --device ")), {"auto", "cpu", "cuda"})
            self.assertEqual(set(offers(f"cotune {command} --dtype ")), {"auto", "float32", "bfloat16", "float64"})
        self.assertEqual(set(offers("cotune evaluate --format ")), {"auto", "messages", "sharegpt", "completion", "alpaca", "text", "tokens"})
        self.assertEqual(set(offers("cotune evaluate --truncation ")), {"right", "left", "drop", "error"})
        self.assertEqual(set(offers("cotune train --device c")), {"cpu", "cuda"})
        self.assertEqual(set(offers("cotune train --device e")), {"emulated:"})
        self.assertLessEqual({"hybrid", "batch-all/padded"}, set(offers("cotune simulate --sharing ")))
        self.assertEqual(set(offers("cotune simulate --policy f")), {"fcfs", "fair"})
        self.assertEqual(set(offers("cotune manual ")), set(subcommands([])))
        for words in (["train"], ["job", "add"], ["simulate"]):
            self.assertLessEqual(long_options(words) - {"--help"}, set(offers(f"cotune {' '.join(words)} --")), words)
        self.assertNotIn("--philly", offers("cotune train --"))

    def test_bash(self):
        needs.require(self, "bash")
        text = script("bash")

        def offers(line):
            words = line.split(" ")
            ask = ('compopt() { :; }\nCOMP_WORDS=("$@")\nCOMP_CWORD=$(($# - 1))\n_cotune\n'
                   '[ ${#COMPREPLY[@]} -eq 0 ] || printf "%s\\n" "${COMPREPLY[@]}"\n')
            done = subprocess.run(["bash", "-euc", text + ask, "bash", *words], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), line)
            return done.stdout.split()

        self.check_shell(offers)
        self.assertEqual(offers("cotune train --sharing = se"), ["separate"])  # --sharing=se, as bash breaks it
        self.assertEqual(set(offers("cotune train --sharing =")), SHARINGS)
        self.assertEqual(offers("cotune train --profile "), [])  # files, by compopt

    def test_fish(self):
        needs.require(self, "fish")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "cotune.fish").write_text(script("fish"))

            def offers(line):
                done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]/cotune.fish; complete -C "$argv[2]"', folder, line],
                                      capture_output=True, text=True, cwd=folder, env={**os.environ, "HOME": folder})
                self.assertEqual(done.returncode, 0, done.stderr)
                return [offer.split("\t")[0] for offer in done.stdout.splitlines() if not offer.startswith("cotune.fish")]

            self.check_shell(offers)

    def test_zsh(self):
        needs.require(self, "zsh")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "_cotune").write_text(script("zsh"))
            (pathlib.Path(folder) / "empty").mkdir()
            # compadd is where zsh's completion system hands in what it found; what it keeps is what it would offer.
            (pathlib.Path(folder) / ".zshrc").write_text(
                f"PS1='ready> '; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; cd {folder}/empty\n"
                "zstyle ':completion:*' verbose no\n"
                "compadd() { local -a kept; builtin compadd -O kept \"$@\"; print -rl -- $kept >> ../offers; builtin compadd \"$@\" }\n")
            process, terminal = pty.fork()
            if process == 0:
                os.environ.update(HOME=folder, ZDOTDIR=folder, TERM="dumb", COLUMNS="200")
                os.execvp("zsh", ["zsh", "-i", "--no-global-rcs"])
            try:
                self.read_until(terminal, b"ready> ")

                asked = itertools.count()

                def offers(line):
                    found = pathlib.Path(folder) / "offers"
                    found.write_text("")
                    mark = f"-{next(asked)}-"
                    os.write(terminal, line.encode() + b"\t")
                    os.write(terminal, f"\x15print -r -- do''ne{mark}\n".encode())  # Ctrl-U; read when the completion is done
                    self.read_until(terminal, f"done{mark}.*ready> ".encode())  # only then the shell's editor reads, not the terminal's
                    return sorted(set(found.read_text().split()))

                self.check_shell(offers)
            finally:
                os.write(terminal, b"\x15exit\n")
                os.close(terminal)
                os.waitpid(process, 0)

    def read_until(self, terminal, wanted):
        text, limit = b"", time.monotonic() + LIMIT_S
        while re.search(wanted, text, re.DOTALL) is None:
            ready, _, _ = select.select([terminal], [], [], max(0, limit - time.monotonic()))
            self.assertTrue(ready, text)
            text += os.read(terminal, 1 << 16)

    def test_an_unknown_shell_is_refused(self):
        self.assertIn("{bash,zsh,fish}", refusal(self, "completion", "tcsh"))


class Manual(unittest.TestCase):
    def test_there_is_a_page_of_every_command_with_every_option(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PROGRAM, "manual", "--output", folder], check=True, stdout=subprocess.DEVNULL)
            commands = subcommands([])
            self.assertEqual({page.name for page in pathlib.Path(folder).iterdir()},
                             {"cotune.1", *(f"cotune-{command}.1" for command in commands)})
            for page in sorted(pathlib.Path(folder).iterdir()):
                words = page.stem.split("-")[1:]
                source = page.read_text(encoding="utf-8")
                for option in long_options(words):
                    self.assertIn(option.replace("-", "\\-"), source, page.name)
                if needs.is_here("mandoc"):
                    judged = subprocess.run(["mandoc", "-W", "error", page], capture_output=True, text=True)
                    self.assertEqual((judged.returncode, judged.stderr), (0, ""), page.name)
            self.assertEqual(subprocess.run([PROGRAM, "manual", "train"], capture_output=True, text=True, check=True).stdout,
                             (pathlib.Path(folder) / "cotune-train.1").read_text(encoding="utf-8"))

    def test_pages_bear_the_date_of_the_source(self):
        def dates():
            source = subprocess.run([PROGRAM, "manual", "train"], capture_output=True, text=True, check=True).stdout
            return re.findall(r'^\.TH COTUNE\\-TRAIN 1 "([^"]*)" "cotune \d+\.\d+\.\d+" "User Commands"$', source, re.M)
        (date,) = dates()
        released = re.search(r"^## \d+\.\d+\.\d+, (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2], re.M)
        if released is not None:
            self.assertEqual(date, released[1])
        self.assertRegex(date, r"\A\d{4}-\d\d-\d\d\Z")

    def test_the_page_of_the_command_line_is_what_the_program_writes(self):
        written = subprocess.run([PROGRAM, "manual", "--markdown"], capture_output=True, text=True, check=True).stdout
        page = ROOT / "docs/command-line.md"
        if os.environ.get("COTUNE_UPDATE"):
            page.write_text(written, encoding="utf-8")
        self.assertEqual(page.read_text(encoding="utf-8"), written, "COTUNE_UPDATE=1 tests/cli/completion_test.py writes it anew")

    def test_a_command_that_is_not_there(self):
        self.assertIn("no command `trian`", refusal(self, "manual", "trian"))


class Version(unittest.TestCase):
    def test_it_names_the_program_and_what_it_is_built_with(self):
        lines = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertRegex(lines[0], r"\Acotune \d+\.\d+\.\d+\Z")
        for begin in ("libtorch ", "kernels on this processor: ", "NVIDIA GPUs: ", "Parquet files: "):
            self.assertEqual(sum(line.startswith(begin) for line in lines), 1, begin)


if __name__ == "__main__":
    unittest.main(verbosity=2)
