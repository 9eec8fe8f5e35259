"""Pictures of terminals with a shell: SVG of the commands that were typed and of what they leave, of completions, of a manual page."""
import contextlib
import os
import pathlib
import re
import subprocess

from pictures_of.screens import COLUMNS, PROGRAM, run_in, write
from screen_picture import BOLD, UNDERLINED

SETTINGS = """PS1='$ '
bind 'set bell-style none'
bind 'set enable-bracketed-paste off'
source <(cotune completion bash)
"""
MERGED = ("cotune merge --adapter runs/tour/jobs/everywhere --output merged",
          "cotune merge --adapter runs/tour/jobs/everywhere --output merged.gguf",
          "cotune export --adapter runs/tour/jobs/everywhere --output lora.gguf")
OF_MISSING_MODELS = ("cotune train tour.yaml --check --set model.path=HuggingFaceTB/SmolLM2-360M-Instruct",
                     "cotune generate --model bartowski/SmolLM2-360M-Instruct-GGUF --prompt 'What is a noun?'")
COMPLETED = ("cotune ", "train tour.yaml --re", "sume --sharing ")  # each followed by two tabs, at which the line is written again
MANUAL_ROWS = 32
PRINTED = re.compile("(?:(.)\b)*(.)")


@contextlib.contextmanager
def shell(folder, columns=COLUMNS, **environment):
    """bash, without what its user has set."""
    (folder / "bashrc").write_text(SETTINGS)
    path = f"{pathlib.Path(PROGRAM).parent}:{os.environ['PATH']}"
    with run_in(folder, "bash", "--noprofile", "--rcfile", "bashrc", "-i", columns=columns, PATH=path, **environment) as bash:
        wait_for_prompt(bash, 1)
        yield bash


def wait_for_prompt(bash, count, line=""):
    """Until so many have been written, and what stands behind the last."""
    bash.wait_for(lambda screen: len(re.findall(r"^\$ ", screen.normal, re.M)) == count and screen.normal.endswith("$ " + line))


def write_commands(folder, file, commands, columns=COLUMNS, **environment):
    with shell(folder, columns, **environment) as bash:
        for count, command in enumerate(commands, 2):
            bash.press(command + "\n")
            wait_for_prompt(bash, count)
        cells = bash.screen.written_cells()
        last = max(row for row, _ in cells)
        write(file, {place: cell for place, cell in cells.items() if place[0] < last}, columns)  # without the prompt


def write_merged(folder, file):
    write_commands(folder, file, MERGED, columns=104)  # as many as the longest line has


def write_missing_models(folder, file):
    cache = folder / "hub"
    cache.mkdir()
    write_commands(folder, file, OF_MISSING_MODELS, HF_HUB_CACHE=str(cache))


def write_completion(folder, file):
    with shell(folder) as bash:
        line = ""
        for count, typed in enumerate(COMPLETED, 2):
            line += typed
            bash.press(typed + "\t\t")
            wait_for_prompt(bash, count, line)
        write(file, bash.screen.written_cells())


def printed_cells(lines):
    """Of lines for teletypes: a letter upon itself is bold, one upon _ underlined."""
    cells = {}
    for row, line in enumerate(lines):
        for column, (under, letter) in enumerate(PRINTED.findall(line)):
            cells[row, column] = letter, {"": "", letter: BOLD}.get(under, UNDERLINED)
    return cells


def write_manual(folder, file):
    """The top of a page."""
    subprocess.run([PROGRAM, "manual", "--output", folder / "man1"], check=True, stdout=subprocess.DEVNULL)
    page = subprocess.run(["mandoc", "-T", "utf8", "-O", f"width={COLUMNS}", folder / "man1/cotune-train.1"], stdout=subprocess.PIPE, check=True, text=True)
    write(file, printed_cells(page.stdout.splitlines()[:MANUAL_ROWS]))
