#!/usr/bin/env python3
"""Writes the planner's figures into docs/planning.md: builds planning_bench without libtorch, runs it, and puts its table
between the two marks.

    bench/planning.py [--print]    # --print: show the table, leave the document alone
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/planning.md"
BUILD = ROOT / "build-planning"
MARKS = re.compile(r"(<!-- figures: begin[^\n]*-->\n).*?(<!-- figures: end -->)", re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    arguments = parser.parse_args()
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCOTUNE_TORCH=OFF", "-DCOTUNE_TESTS=OFF", "-DCOTUNE_BENCH=ON"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", BUILD, "planning_bench"], check=True, stdout=sys.stderr)
    table = subprocess.run([BUILD / "planning_bench"], check=True, capture_output=True, text=True).stdout
    print(table, end="")
    if arguments.only_print:
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    replaced, count = MARKS.subn(lambda match: match.group(1) + table + match.group(2), text)
    if count != 1:
        sys.exit(f"{DOCUMENT}: needs one pair of marks <!-- figures: begin … --> and <!-- figures: end -->")
    DOCUMENT.write_text(replaced, encoding="utf-8")


if __name__ == "__main__":
    main()
