#!/usr/bin/env python3
"""Writes the planner's figures into docs/planning.md: builds planning_bench without libtorch, runs it, and puts its table
between the two marks. Of some parts alone (lobra, ablation, 70b, plans, planning, optima, plan, deployments, fusion, order, headlines,
steps, chunks, scaling, curves, literal) the rows of the same name are replaced, and new ones stand behind those that they follow.

    bench/planning.py [--no-docs] [--build FOLDER] [PART...]
    bench/planning.py --rows 'LB-2[47]' steps      # of the parts only rows whose names match: those that do not depend on this machine
"""
import argparse
import re
import subprocess

import page_part
import torchless_build


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
    page_part.add_options(parser, "docs/planning.md")
    torchless_build.add_option(parser)
    parser.add_argument("--rows", metavar="PATTERN", help="a regular expression: only rows whose names it is found in")
    parser.add_argument("parts", nargs="*", metavar="PART", help="these parts alone")
    options = parser.parse_args()
    program = torchless_build.program(options, "planning_bench")
    table = subprocess.run([program, *options.parts], check=True, stdout=subprocess.PIPE, text=True).stdout
    if options.rows:
        table = with_names(table, options.rows)
    print(table, end="")
    if not options.no_docs:
        page_part.change(options.docs, "figures", lambda old: merged(old, table) if options.parts or options.rows else table)


if __name__ == "__main__":
    main()
