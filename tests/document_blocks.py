"""The fenced blocks of README.md and the pages of docs/."""
import pathlib

from check_readme import FENCE

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page):
    """(line number, language, file or "", text) of every fenced block."""
    current = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if FENCE.match(line):
            if current is None:
                words = line.strip().lstrip("`~").split()
                current = (number, words[0] if words else "", words[1] if len(words) > 1 else "", [])
            else:
                yield (*current[:3], "".join(text + "\n" for text in current[3]))
                current = None
        elif current is not None:
            current[3].append(line)


def named(page):
    return str(page.relative_to(ROOT))
