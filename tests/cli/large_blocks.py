"""The blocks of the pages that fetch gigabytes or take an hour: large_blocks_test.py runs them when it is asked to, and no other test."""
from document_blocks import PAGES, blocks, named

IN_CLONE, PACKAGES = "in a clone", "by scripts/test-packages"
# (page, how the block begins): how it is run, in the order of a reader who does all of it in one clone.
LARGE = {
    ("docs/installing.md", "scripts/install-dependencies     # packages"): IN_CLONE,
    ("docs/gpu.md", "scripts/install-dependencies --cuda"): IN_CLONE,
    ("docs/correctness.md", "scripts/install-dependencies --comparisons"): IN_CLONE,
    ("docs/installing.md", "scripts/package deb"): PACKAGES,
    ("docs/installing.md", "scripts/install-dependencies     # the compiler"): PACKAGES,
    ("docs/installing.md", "scripts/package wheel"): PACKAGES,
    ("docs/installing.md", "docker build "): PACKAGES,
}


def text_of(key):
    """The block's lines."""
    page, first = key
    found = [text for path in PAGES if named(path) == page for _, language, _, text in blocks(path) if language == "sh" and text.startswith(first)]
    assert len(found) == 1, (key, found)
    return found[0]
