#!/usr/bin/env python3
"""Writes the figures of docs/simulation.md: builds simulation_bench without libtorch, runs its parts, and puts their tables
between the marks of the document and the charts into pictures/ beside it.

    bench/simulation.py [--no-docs] [--build FOLDER] [PART...]

PART: week, ranges, corners, policies, overloaded, tenants or stragglers; default: all. The week takes some minutes of CPU.
"""
import argparse
import pathlib
import subprocess
import tempfile

import page_part
import torchless_build

ROOT = pathlib.Path(__file__).resolve().parents[1]
PARTS = ("stragglers", "policies", "overloaded", "tenants", "ranges", "corners", "week")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    page_part.add_options(parser, "docs/simulation.md")
    torchless_build.add_option(parser)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    options = parser.parse_args()
    program = torchless_build.program(options, "simulation_bench")
    with tempfile.TemporaryDirectory() as unwanted_charts:
        charts = pathlib.Path(unwanted_charts) if options.no_docs else options.docs.parent / "pictures"
        charts.mkdir(exist_ok=True)
        for part in options.parts or PARTS:
            command = [program, ROOT / "bench/cluster/muxtune_cluster.json", part, charts]
            table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            page_part.put(options, part, table.rstrip("\n"))


if __name__ == "__main__":
    main()
