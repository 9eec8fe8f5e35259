#!/usr/bin/env python3
"""Checks that files which the comments of src/ name exist, and are named so that a reader finds them.

    python3 tests/check_comments.py [--root FOLDER]

A comment names a file of src/ by its name alone where both lie in the same layer folder (`step_plan.h` within schedule/), else by its path below
src/ or the end of one (`ops/memory.h`). Files of tests/, bench/ and docs/ are named by their path below the project's folder. FOREIGN lists
those of other projects.
"""
import argparse
import pathlib
import re
import sys

from check_layers import SOURCE_ENDINGS

FOREIGN = {"nccl.h", "cuda.h", "immintrin.h", "ggml.h", "llama.h", "docs/gguf.md", "transport/tcp/pair.cc", "lexer.py", "parser.py",
           "convert_lora_to_gguf.py", "modeling_rope_utils.py"}
COMMENT = re.compile(r"//(.*)")
NAMED = re.compile(r"(?<![\w/.{-])[\w/+-]*\w\.(?:h|cc|cu|cuh|md|py)\b(?!\()")


def check_file(file, root, files):
    place = file.relative_to(root / "src")
    mistakes = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        comment = COMMENT.search(line)
        for name in NAMED.findall(comment[1]) if comment else []:
            if name in FOREIGN or any(name.endswith(foreign) and "/" in foreign for foreign in FOREIGN):
                continue
            found = [path for path in files if path == name or path.endswith("/" + name)]
            in_layer = [path for path in found if path.split("/")[:2] == ["src", place.parts[0]]]
            if not found:
                mistakes.append(f"src/{place}:{number}: names {name}, and there is no such file")
            elif "/" not in name and not in_layer:
                mistakes.append(f"src/{place}:{number}: names {name}, which is {found[0].removeprefix('src/')}: say its folder, too")
    return mistakes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    root = parser.parse_args().root
    folders = ("src", "tests", "bench", "docs", "scripts", "examples")
    files = [path.relative_to(root).as_posix() for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    sources = sorted(file for file in (root / "src").rglob("*") if file.suffix in SOURCE_ENDINGS)
    mistakes = [mistake for file in sources for mistake in check_file(file, root, files)]
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"the comments of {len(sources)} files of src/ name files that there are")


if __name__ == "__main__":
    main()
