"""Pictures of terminals: SVG of the characters and colours that cotune writes in a pseudo-terminal."""
import contextlib
import json
import os
import pathlib
import re
import subprocess

from screen_picture import picture
from terminal_screen import TerminalProgram

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("COTUNE", str(ROOT / "build/cotune"))
COLUMNS, ROWS = 96, 22
CHAT = ("What is a noun?", "/adapter everywhere", "And a verb?")


def run_in(folder, *command, columns=COLUMNS, **environment):
    """The terminal of any command."""
    return contextlib.closing(TerminalProgram(["bash", "-c", 'cd "$0" && exec "$@"', str(folder), *command], columns=columns, rows=ROWS, **environment))


def terminal(folder, *arguments):
    return run_in(folder, PROGRAM, *arguments)


def write(file, cells, columns=COLUMNS):
    rows = 1 + max(row for row, _ in cells)
    file.write_text(picture(cells, columns, rows), encoding="utf-8")
    print(file)


def must_end(program, status=0):
    assert program.end() == status, program.screen.normal


def write_output(folder, file, *arguments):
    """What a command leaves on the terminal."""
    with terminal(folder, *arguments) as command:
        must_end(command)
        write(file, command.screen.written_cells())


def write_live_view(training, wanted, file):
    """As soon as the text of the view has what is wanted."""
    training.wait_for(lambda screen: screen.is_alternate and re.search(wanted, screen.text()))
    write(file, training.screen.cells())


def memory_for_one(folder, *command):
    """A limit that each job of this training fits into, and not both."""
    enough_gib = 8
    done = subprocess.run([PROGRAM, *command, "--check", "--json", f"--memory={enough_gib}GiB"], cwd=folder, stdout=subprocess.PIPE, check=True)
    check = json.loads(done.stdout)
    largest = max(job["peak_bytes"] for job in check["jobs"])
    beside_tensors = (enough_gib << 30) - check["memory_limit_bytes"]
    return f"{(beside_tensors + (largest + check['peak_bytes']) // 2) >> 20}MiB"


def write_waiting_job(folder, file):
    command = ("train", "tour.yaml", "--output-dir=runs/waiting", "--set=jobs.everywhere.adapter.r=128", "--set=jobs.attention.adapter.r=128")
    with terminal(folder, *command, f"--memory={memory_for_one(folder, *command)}") as training:
        write_live_view(training, r"everywhere .* 12/20 ", file)
        training.press("\x03")
        must_end(training, 130)


def write_tokenizing(folder, file):
    """The line that stands while a set of some hundred thousand records is read for the first time."""
    records = (ROOT / "build/demo/data/sentiment.train.jsonl").read_text()
    (folder / "reviews.jsonl").write_text(records * (40_000_000 // len(records)))
    with terminal(folder, "train", "tour.yaml", "--check", "--set=defaults.data.train=reviews.jsonl", "--set=defaults.data.max_examples=null") as check:
        check.wait_for(lambda screen: re.search(r"tokenizing: [4-9]\d%[^\r]*$", screen.normal))
        write(file, check.screen.written_cells())
        check.press("\x03")
        check.end()


def write_chat(folder, file):
    with terminal(folder, "generate", "--chat", "--adapter", "base", "--adapter", "runs/tour/jobs/everywhere", "--max-new-tokens", "60", "--no-history") as chat:
        for count, message in enumerate((*CHAT, "/exit"), 1):
            chat.wait_for(lambda screen: len(re.findall(r"(?:\A|\n)\r?> ", screen.normal)) == count)
            chat.press(message + "\n")
        must_end(chat)
        write(file, chat.screen.written_cells())
