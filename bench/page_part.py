"""The parts of pages that benchmarks write, between the lines <!-- NAME: begin (WHO writes this part) --> and <!-- NAME: end -->."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def add_options(parser, page):
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / page, help=f"the page whose part is written (default {page})")
    parser.add_argument("--no-docs", action="store_true", help="leave the page alone")


def change(page, name, new):
    """The part of this name becomes new(old text)."""
    marks = re.compile(rf"(<!-- {name}: begin[^\n]*-->\n)(.*?)(<!-- {name}: end -->)", re.DOTALL)
    text, count = marks.subn(lambda match: match[1] + new(match[2]) + match[3], page.read_text(encoding="utf-8"))
    if count != 1:
        sys.exit(f"{page}: needs one pair of lines <!-- {name}: begin … --> and <!-- {name}: end -->")
    page.write_text(text, encoding="utf-8")


def put(options, name, text):
    """Prints the part, and puts it into the page."""
    print(text, flush=True)
    if not options.no_docs:
        change(options.docs, name, lambda _: text + "\n")
