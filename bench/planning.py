#!/usr/bin/env python3
"""Writes the planner's figures into docs/planning.md: builds planning_bench without libtorch, runs it, and puts its table
between the two marks. Of some parts alone (lobra, ablation, 70b, plans, planning, optima, plan, deployments, fusion, order, headlines,
steps, chunks, scaling, curves, literal) the rows of the same name are replaced, and new ones stand behind those that they follow.

    bench/planning.py [--print] [PART...]          # --print: show the table, leave the document alone
    bench/planning.py --rows 'LB-2[47]' steps      # of the parts only rows whose names match: those that do not depend on this machine
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/planning.md"
BUILD = ROOT / "build-planning"
MARKS = re.compile(r"(<!-- figures: begin[^\n]*-->\n)(.*?)(<!-- figures: end -->)", re.DOTALL)


def named(table):
    """Rows of a table below its head, by name; `the same …` belongs to the row that it stands below."""
    rows, above = {}, ""
    for line in table.splitlines()[2:]:
        what = line.split(" | ")[0]
        if "the same" not in what:
            above = what
        rows[what, above if "the same" in what else ""] = line
    return rows


def with_names(table, pattern):
    """The table with those rows alone whose names match; `the same …` goes with the row that it stands below."""
    rows = [line for (what, above), line in named(table).items() if re.search(pattern, what) or re.search(pattern, above)]
    return "\n".join(table.splitlines()[:2] + rows) + "\n"


def merged(table, part):
    """The table with the rows of a part in place of those of the same names."""
    rows, last = list(named(table).items()), len(table)
    for name, line in named(part).items():
        place = next((i for i, (each, _) in enumerate(rows) if each == name), None)
        if place is None:
            rows.insert(min(last + 1, len(rows)), (name, line))
            last = min(last + 1, len(rows) - 1)
        else:
            rows[place], last = (name, line), place
    return "\n".join(table.splitlines()[:2] + [line for _, line in rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    parser.add_argument("--rows", metavar="PATTERN", help="a regular expression: only rows whose names it is found in")
    parser.add_argument("parts", nargs="*", metavar="PART", help="these parts alone")
    arguments = parser.parse_args()
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCOTUNE_TORCH=OFF", "-DCOTUNE_TESTS=OFF", "-DCOTUNE_BENCH=ON"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", BUILD, "planning_bench"], check=True, stdout=sys.stderr)
    table = subprocess.run([BUILD / "planning_bench", *arguments.parts], check=True, capture_output=True, text=True).stdout
    if arguments.rows:
        table = with_names(table, arguments.rows)
    print(table, end="")
    if arguments.only_print:
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    def put(match):
        return match.group(1) + (merged(match.group(2), table) if arguments.parts or arguments.rows else table) + match.group(3)
    replaced, count = MARKS.subn(put, text)
    if count != 1:
        sys.exit(f"{DOCUMENT}: needs one pair of marks <!-- figures: begin … --> and <!-- figures: end -->")
    DOCUMENT.write_text(replaced, encoding="utf-8")


if __name__ == "__main__":
    main()
