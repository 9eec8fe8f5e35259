#!/usr/bin/env python3
"""Writes the figures of docs/simulation.md: builds simulation_bench without libtorch, runs its parts, and puts their tables
between the marks of the document and the charts beside it.

    bench/simulation.py [week] [ranges] [corners] [policies] [overloaded] [tenants] [stragglers]    # default: all; the week takes some minutes of CPU
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/simulation.md"
BUILD = ROOT / "build-planning"
PARTS = ("stragglers", "policies", "overloaded", "tenants", "ranges", "corners", "week")


def main():
    parts = sys.argv[1:] or PARTS
    if set(parts) - set(PARTS):
        sys.exit(__doc__)
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCOTUNE_TORCH=OFF", "-DCOTUNE_TESTS=OFF", "-DCOTUNE_BENCH=ON"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    subprocess.run(["ninja", "-C", BUILD, "simulation_bench"], check=True, stdout=sys.stderr)
    for part in parts:
        command = [BUILD / "simulation_bench", ROOT / "bench/cluster/muxtune_cluster.json", part, ROOT / "docs"]
        table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(table, end="", flush=True)
        marks = re.compile(rf"(<!-- {part}: begin[^\n]*-->\n).*?(<!-- {part}: end -->)", re.DOTALL)
        text, count = marks.subn(lambda match: match.group(1) + table + match.group(2), DOCUMENT.read_text(encoding="utf-8"))
        if count != 1:
            sys.exit(f"{DOCUMENT}: needs one pair of marks <!-- {part}: begin … --> and <!-- {part}: end -->")
        DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
