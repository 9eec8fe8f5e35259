#!/usr/bin/env python3
"""docs/adding-an-adapter-method.md lists every file with a switch over the methods, and no other; both pages that walk through an
addition name files that there are. Their code is built and run by tests/walkthrough."""
import pathlib
import re
import sys

from document_blocks import ROOT

SWITCHES = "| `-Wswitch` names | what |"
problems = []


def files_in(text):
    return {name for name in re.findall(r"`((?:src|tests|scripts)/[\w./]+\.\w+)`", text) if pathlib.Path(name).stem != "example"}


texts = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("adding-a-model-family.md", "adding-an-adapter-method.md")}
for page, text in texts.items():
    problems += [f"docs/{page}: there is no {file}" for file in sorted(files_in(text)) if not (ROOT / file).exists()]

table = texts["adding-an-adapter-method.md"].split(SWITCHES)[1].split("\n\n")[0]
listed = files_in(table)
switches = {str(file.relative_to(ROOT)) for file in (ROOT / "src").rglob("*.cc") if "case AdapterMethod::" in file.read_text(encoding="utf-8")}
problems += [f"docs/adding-an-adapter-method.md: {file} has a switch over the methods, and is not in the table of these" for file in sorted(switches - listed)]
problems += [f"docs/adding-an-adapter-method.md: {file} has no switch over the methods" for file in sorted(listed - switches)]
if problems:
    sys.exit("\n".join(problems))
print(f"{len(listed)} files have a switch over the methods; the pages name {len(set().union(*map(files_in, texts.values())))} files, all there")
