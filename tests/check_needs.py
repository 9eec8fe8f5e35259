#!/usr/bin/env python3
"""Checks that tests skip only where something of tests/cli/needs.py is absent, so that the summary of scripts/test says so.

    python3 tests/check_needs.py [--root FOLDER]

Allowed besides are the messages of CHANCE: what a test found by itself at that moment.
"""
import argparse
import pathlib
import re
import sys

SKIP = re.compile(r"\b(skipTest|skipIf|skipUnless|SkipTest|unittest\.skip)\b")
IMPORT = re.compile(r"^\s*except (ImportError|ModuleNotFoundError)\b")
CHANCE = ("the run had ended before it could be killed", "the program is not another user's to start", "does not lie in a folder that cmake installs from")
OWN = ("tests/cli/needs.py", "tests/check_needs.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    mistakes, files = [], 0
    for file in sorted((root / "tests").rglob("*.py")):
        name = str(file.relative_to(root))
        if name in OWN:
            continue
        files += 1
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if IMPORT.match(line) or (SKIP.search(line) and not any(message in line for message in CHANCE)):
                mistakes.append(f"{name}:{number}: what a test needs is asked of tests/cli/needs.py: `{line.strip()}`")
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"{files} files of tests ask tests/cli/needs.py for what a machine may lack")


if __name__ == "__main__":
    main()
