#!/usr/bin/env python3
"""Checks README.md: its first two code blocks hold one command each, and the files it names exist.

    python3 tests/check_readme.py [--root FOLDER]

The first block's command runs the demonstration, the second's the tests; .ci/run must call the second. Checked besides:
relative links, and paths below scripts/, bench/, docs/, examples/, src/ and tests/ that stand in `backticks` or in code
blocks.
"""
import argparse
import os
import pathlib
import re
import sys

FENCE = re.compile(r"^\s*(```+|~~~+)")
PATH = re.compile(r"(?<![\w./-])((?:scripts|bench|docs|examples|src|tests)/[\w.-]+(?:/[\w.-]+)*)")


def code_blocks(text):
    """(line number, lines) of every fenced block."""
    blocks, current = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            if current is None:
                current = (number, [])
                blocks.append(current)
            else:
                current = None
        elif current is not None:
            current[1].append(line)
    return blocks


def check_command(root, number, lines):
    """Mistakes of one of the two command blocks, and the program that its command runs."""
    where = f"README.md:{number}"
    commands = [line.strip() for line in lines if line.strip()]
    if len(commands) != 1:
        return [f"{where}: this block must hold one command and nothing else, has {len(commands)} lines"], ""
    command = commands[0]
    if re.search(r"&&|\|\||[;|\\]|^\$|^#|\s#", command):
        return [f"{where}: one plain command is expected, found '{command}'"], ""
    program = command.split()[0].removeprefix("./")
    if not (root / program).is_file():
        return [f"{where}: '{program}' does not exist"], program
    if not os.access(root / program, os.X_OK):
        return [f"{where}: '{program}' is not executable"], program
    return [], program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    readme = root / "README.md"
    if not readme.exists():
        sys.exit(f"{readme} is missing")
    text = readme.read_text(encoding="utf-8")
    blocks = code_blocks(text)
    if len(blocks) < 2:
        sys.exit("README.md: needs two code blocks, the demonstration's command and the tests' command")
    mistakes, programs = [], []
    for number, lines in blocks[:2]:
        found, program = check_command(root, number, lines)
        mistakes += found
        programs.append(program)
    ci = root / ".ci/run"
    if not ci.is_file() or not os.access(ci, os.X_OK):
        mistakes.append(".ci/run is missing or not executable")
    elif programs[1] and programs[1] not in ci.read_text(encoding="utf-8"):
        mistakes.append(f".ci/run does not call the README's test command, {programs[1]}")
    named = set(re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text))
    for piece in re.findall(r"`([^`\n]+)`", text) + [line for _, lines in blocks for line in lines]:
        named.update(PATH.findall(piece))
    mistakes += [f"README.md: names {name}, which does not exist" for name in sorted(named) if not (root / name).exists()]
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"README.md: commands {programs[0]} and {programs[1]}, {len(named)} files named, all there")


if __name__ == "__main__":
    main()
