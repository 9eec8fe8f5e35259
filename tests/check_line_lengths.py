#!/usr/bin/env python3
"""Checks that no line of the C++ files in src/ is longer than .clang-format allows.

    python3 tests/check_line_lengths.py [--root FOLDER]

A line has at most as many characters as `ColumnLimit:` of .clang-format says; a character counts once, whatever its bytes.
"""
import argparse
import pathlib
import re
import sys

from check_layers import SOURCE_ENDINGS


def read_limit(path):
    match = re.search(r"^ColumnLimit: *(\d+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        sys.exit(f"{path}: needs a line 'ColumnLimit: NUMBER'")
    return int(match[1])


def check_file(file, root, limit):
    name = file.relative_to(root).as_posix()
    return [f"{name}:{number}: has {len(line)} characters; at most {limit} are accepted (ColumnLimit of .clang-format)"
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1) if len(line) > limit]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    limit = read_limit(root / ".clang-format")
    files = sorted(file for file in (root / "src").rglob("*") if file.suffix in SOURCE_ENDINGS)
    mistakes = [mistake for file in files for mistake in check_file(file, root, limit)]
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"{len(files)} files of src/ have no line of more than {limit} characters")


if __name__ == "__main__":
    main()
