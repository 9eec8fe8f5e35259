#!/usr/bin/env python3
"""Checks docs/papers.md: one row per mechanism of the three papers, and what a row names exists. And docs/correctness.md:
the tests and files that it names exist.

    python3 tests/check_papers.py [--root FOLDER]

Rows are those of any table whose first column is headed `id`; the columns status, header, test and command are found by
the first word of their heading, others are free. Checked:
  * every id MX-1..45 (MuxTune), ML-1..31 (mLoRA) and LB-1..36 (LobRA) has exactly one row, and there is no other id
  * status starts with `runs`, `simulated only`, `deliberately different` or `not yet`
  * a row that runs names a header and a test
  * what stands in `backticks` exists: paths below src/, tests/, bench/, scripts/, docs/ and examples/ (src/ may be left
    out in the column header), tests written Suite.Name
  * a command is `cotune SUBCOMMAND`, a program `build/NAME` that CMake builds, or a script; what `scripts/test -R` asks for are
    tests that CMake knows; files that it names exist
"""
import argparse
import fnmatch
import pathlib
import re
import sys

import cmake_names

IDS = [f"MX-{n}" for n in range(1, 46)] + [f"ML-{n}" for n in range(1, 32)] + [f"LB-{n}" for n in range(1, 37)]
STATUSES = ("runs", "simulated only", "deliberately different", "not yet")
COLUMNS = ("status", "header", "test", "command")
PATH = re.compile(r"^(src|tests|bench|scripts|docs|examples)/[\w./-]+$")
TEST_NAME = re.compile(r"^\w+\.\w+$")
SUBCOMMAND = re.compile(r'\bapp\.add_subcommand\(\s*"(\w+)"')
TEST_DEFINITION = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")


def cells_of(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows_of(path):
    """(line number, {column: text}) of every row with an id, and a list of mistakes."""
    rows, mistakes, columns = [], [], None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.lstrip().startswith("|"):
            columns = None
            continue
        cells = cells_of(line)
        if columns is None:
            columns = [(cell.lower().split() or [""])[0] for cell in cells]
            if columns[0] == "id":
                mistakes += [f"{path}:{number}: the table has no column {name}" for name in COLUMNS if name not in columns]
        elif columns[0] == "id" and not re.fullmatch(r"[\s:|-]+", line):
            if len(cells) != len(columns):
                mistakes.append(f"{path}:{number}: {len(cells)} cells under {len(columns)} headings")
            rows.append((number, dict(zip(columns, cells))))
    return rows, mistakes


class Project:
    """What exists: files, tests and subcommands."""

    def __init__(self, root):
        self.root = root
        self.tests = set()
        for file in (root / "tests").rglob("*.cc"):
            self.tests.update(".".join(match) for match in TEST_DEFINITION.findall(file.read_text(encoding="utf-8")))
        sources = [file.read_text(encoding="utf-8") for folder in ("cli", "console") for file in (root / "src" / folder).rglob("*.cc")]
        self.subcommands = {name for source in sources for name in SUBCOMMAND.findall(source)}
        self.programs = cmake_names.programs(root)
        self.ctests = cmake_names.tests(root)

    def problem(self, name, column):
        """What is wrong with a name in backticks in a column, or None."""
        if column == "command":
            return self.problem_of_command(name)
        if PATH.match(name):
            return None if (self.root / name).exists() else f"{name} does not exist"
        if column == "header" and name.endswith(".h"):
            return None if (self.root / "src" / name).is_file() else f"there is no header src/{name}"
        if column == "test":
            if TEST_NAME.match(name):
                return None if name in self.tests else f"no test is called {name}"
            return f"'{name}' is neither a path nor a test written Suite.Name"
        return None

    def problem_of_command(self, command):
        words = command.split()
        while words and (re.match(r"\w+=", words[0]) or re.fullmatch(r"(?:\S*/)?python3?", words[0])):  # VARIABLE=value
            words.pop(0)
        program, rest = (words[0], words[1:]) if words else ("", [])
        for word in words:
            if PATH.match(word) and not (self.root / word).exists():
                return f"{word} does not exist"
        if program in ("cotune", "build/cotune"):
            return None if rest and rest[0] in self.subcommands else f"'{command}': cotune has no subcommand {' '.join(rest[:1])}"
        if program.startswith("build/"):
            return None if program[len("build/"):] in self.programs else f"CMake builds no program {program}"
        if not re.match(r"(scripts|bench)/", program):
            return f"'{command}' is neither cotune nor a program of build/, scripts/ or bench/"
        if program == "scripts/test" and "-R" in rest:
            wanted = " ".join(rest[rest.index("-R") + 1:][:1])
            if not wanted or not any(re.search(wanted, test) for test in self.ctests):
                return f"'{command}': CMake knows no such test"
        return None


def check_row(number, row, project):
    where, mistakes = f"docs/papers.md:{number}: {row['id']}", []
    status = row.get("status", "")
    if not status.lower().startswith(STATUSES):
        mistakes.append(f"{where}: status '{status[:40]}' starts with none of: {', '.join(STATUSES)}")
    for column in COLUMNS:
        names = re.findall(r"`([^`]+)`", row.get(column, ""))
        if status.lower().startswith("runs") and column in ("header", "test") and not names:
            mistakes.append(f"{where}: runs, but names no {column}")
        for name in names:
            problem = project.problem(name, column)
            if problem:
                mistakes.append(f"{where}: {problem}")
    return mistakes


def check_correctness(root, project):
    """Tests are written Suite.Name or Suite.* there; a * may also begin or end a name."""
    path, mistakes = root / "docs/correctness.md", []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for name in re.findall(r"`([^`]+)`", line):
            if re.fullmatch(r"[\w*]+\.[\w*]+", name) and not fnmatch.filter(project.tests, name):
                if not (root / name).exists() and not name.endswith((".json", ".py")):
                    mistakes.append(f"docs/correctness.md:{number}: no test is called {name}")
            elif PATH.match(name.split()[0]) and not (root / name.split()[0]).exists():
                mistakes.append(f"docs/correctness.md:{number}: {name.split()[0]} does not exist")
    return mistakes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    path = root / "docs/papers.md"
    if not path.exists():
        sys.exit(f"{path} is missing")
    rows, mistakes = rows_of(path)
    project = Project(root)
    seen = {}
    for number, row in rows:
        if row["id"] in seen:
            mistakes.append(f"docs/papers.md:{number}: {row['id']} has a row already, in line {seen[row['id']]}")
        elif row["id"] not in IDS:
            mistakes.append(f"docs/papers.md:{number}: there is no id '{row['id']}'")
        seen[row["id"]] = number
        mistakes += check_row(number, row, project)
    mistakes += check_correctness(root, project)
    absent = [name for name in IDS if name not in seen]
    if absent:
        mistakes.append(f"docs/papers.md: no row for {', '.join(absent)}")
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"docs/papers.md: {len(rows)} rows, all that they name exists")


if __name__ == "__main__":
    main()
