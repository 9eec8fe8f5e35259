#!/usr/bin/env python3
"""Writes the source files that pages of docs/ walk through: write_files.py FOLDER PAGE...

A block ```cpp src/FILE is the file, or its next part where a page gives it in several. A block ```diff src/FILE is applied to the file as it
is in the tree: hunks are divided by lines of @@, and what a hunk starts from must stand there once. All goes to FOLDER/src/FILE.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from document_blocks import ROOT, blocks, named  # noqa: E402


def changed(text, difference, where):
    for hunk in difference.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        if any(line[0] not in " +-" for line in lines):
            sys.exit(f"{where}: lines of a diff begin with ' ', '+' or '-'")
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        if not before or text.count(before) != 1:
            sys.exit(f"{where}: what the diff starts from is in the file {text.count(before)} times, not once:\n{before}")
        text = text.replace(before, after)
    return text


def files_of(pages):
    files = {}
    for page in pages:
        for number, language, file, text in blocks(page):
            if language == "cpp" and file:
                files[file] = files.get(file, "") + text
            elif language == "diff" and file:
                old = files[file] if file in files else (ROOT / file).read_text(encoding="utf-8")
                files[file] = changed(old, text, f"{named(page)}:{number}")
    return files


def main():
    folder, *pages = map(pathlib.Path, sys.argv[1:])
    for file, text in files_of([page.resolve() for page in pages]).items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
