"""A pseudo-terminal with a program in it, and its screen: what the few escape sequences that cotune writes make of it."""
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from program import LIMIT_S

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z@])")
MOVES = "ABCDGJKP@"  # by which the editor of a line mends what it has written


class Screen:
    """The normal screen as what was written on it, from first to last, the alternate one as a grid. No frame of that may reach beyond the window,
    but those that were under way when it became smaller."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.fits, self.cut_off = True, ""  # whether a frame has fitted since the window became what it is; what this one has beyond it
        self.begun_before = False  # whether this one was begun when the window was larger
        self.marks_pastes = False
        self.normal, self.alternate, self.is_alternate, self.cursor_shown, self.wraps = "", {}, False, True, True
        self.row = self.column = self.times_taken = 0
        self.style, self.normal_styles, self.alternate_styles = "", [], {}  # numbers of select graphic rendition, "" for none
        self.frames = []  # what the alternate screen held whenever it was drawn anew or left
        self.pending = ""

    def feed(self, text):
        text = self.pending + text
        self.pending = ""
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\x1b":
                match = SEQUENCE.match(text, position)
                if match is None:
                    assert len(text) - position < 12, repr(text[position:position + 20])
                    self.pending = text[position:]
                    return
                self.sequence(*match.groups())
                position = match.end()
                continue
            position += 1
            if not self.is_alternate:
                self.normal += character
                self.normal_styles.append(self.style)
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self.cut_off += "\n" * (self.row + 1 >= self.rows)
                self.row = min(self.row + 1, self.rows - 1)
            else:
                assert character >= " ", repr(character)
                self.cut_off += character * (self.column >= self.columns)
                place = self.row, min(self.column, self.columns - 1)
                self.alternate[place], self.alternate_styles[place] = character, self.style
                self.column += 1

    def sequence(self, numbers, kind):
        if kind in "hl":
            on = kind == "h"
            if numbers == "?1049":
                self.keep_frame()
                self.is_alternate, self.alternate, self.row, self.column = on, {}, 0, 0
                self.times_taken += on
            elif numbers == "?25":
                self.cursor_shown = on
            elif numbers == "?2004":
                self.marks_pastes = on
            elif numbers == "?7":
                self.wraps = on
            else:
                raise AssertionError(numbers)
        elif kind in MOVES and not self.is_alternate:
            pass
        elif kind == "H":
            assert numbers == ""
            self.keep_frame()
            self.row = self.column = 0
        elif kind == "J":
            assert numbers == "2"
            self.alternate = {}
        elif kind == "K":
            for column in range(self.column, 1000):
                self.alternate.pop((self.row, column), None)
        else:
            assert kind == "m", (numbers, kind)
            self.style = "" if numbers == "0" else numbers

    def resize(self, columns, rows):
        if columns < self.columns or rows < self.rows:
            self.fits, self.begun_before = False, True
        self.columns, self.rows = columns, rows

    def keep_frame(self):
        if self.is_alternate and self.alternate:
            assert not (self.fits and self.cut_off), (self.cut_off, self.text())
            self.fits = not self.begun_before and not self.cut_off
            self.frames.append(self.lines())
        self.begun_before, self.cut_off = False, ""

    def settle(self):
        """Nothing more has come, so that the frame is whole: where nothing changes no other one follows."""
        self.fits = self.fits or (self.is_alternate and not self.begun_before and not self.cut_off)

    def lines(self):
        """Of the alternate screen, without spaces at their ends."""
        width = max((column for _, column in self.alternate), default=-1) + 1
        return ["".join(self.alternate.get((row, column), " ") for column in range(width)).rstrip() for row in range(self.rows)]

    def text(self):
        return "\n".join(self.lines())

    def cells(self):
        """{(row, column): (character, style)} of the alternate screen."""
        return {place: (character, self.alternate_styles[place]) for place, character in self.alternate.items()}

    def written_cells(self, wrapped=True):
        """The same of the lines that were written on the normal screen, long ones in several where they are wrapped. One that is begun again, as of
        progress, is drawn anew."""
        cells, row, column = {}, 0, 0
        for index, (character, style) in enumerate(zip(self.normal, self.normal_styles)):
            if character == "\n":
                row, column = row + 1, 0
            elif character == "\r":
                if self.normal[index + 1:index + 2] != "\n":
                    cells = {place: cell for place, cell in cells.items() if place[0] != row}
                    column = 0
            else:
                if wrapped and column == self.columns:
                    row, column = row + 1, 0
                cells[row, column] = character, style
                column += 1
        return cells


# Runs a program in a process group of its own as a shell does: when it has stopped it takes the terminal, and a line has it go on.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(child, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    print("stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, child)
    os.killpg(child, signal.SIGCONT)
"""


class TerminalProgram:
    """The program is the leader of the terminal's session, unless a shell is."""

    def __init__(self, command, columns=100, rows=24, in_shell=False, standard_input=None, **environment):
        self.master, self.slave = pty.openpty()
        self.screen, self.decoder = Screen(columns, rows), codecs.getincrementaldecoder("utf-8")()
        self.resize(columns, rows, tell=False)
        self.attributes = termios.tcgetattr(self.slave)

        def take_terminal():
            os.setsid()
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)

        if in_shell:
            command = [sys.executable, "-c", SHELL, *command]
        self.process = subprocess.Popen(command, stdin=standard_input or self.slave, stdout=self.slave, stderr=self.slave,
                                        preexec_fn=take_terminal,
                                        env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})

    def resize(self, columns, rows, tell=True):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(columns, rows)

    def read(self, timeout=0.05):
        """Whether there was something."""
        if not select.select([self.master], [], [], timeout)[0]:
            self.screen.settle()
            return False
        self.screen.feed(self.decoder.decode(os.read(self.master, 1 << 16)))
        return True

    def wait_for(self, holds):
        """Reads until holds(screen)."""
        end = time.monotonic() + LIMIT_S
        while not holds(self.screen):
            self.read()
            if self.process.poll() is not None:
                while self.read():
                    pass
                assert holds(self.screen), (self.process.returncode, self.screen.normal[-2000:], self.screen.text())
                return
            assert time.monotonic() < end, (self.screen.normal[-2000:], self.screen.text())

    def wait_for_text(self, *texts):
        self.wait_for(lambda screen: screen.is_alternate and all(text in screen.text() for text in texts))

    def press(self, keys):
        os.write(self.master, keys.encode())

    def end(self):
        """Reads until the program has ended; its exit status. The terminal must be as it was."""
        end = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, (self.screen.normal[-2000:], self.screen.text())
        while self.read():
            pass
        screen = self.screen
        assert (screen.is_alternate, screen.cursor_shown, screen.wraps, screen.marks_pastes) == (False, True, True, False), screen.text()
        assert termios.tcgetattr(self.slave) == self.attributes
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()
        os.close(self.slave)

    def hang_up(self):
        """As closing the window does."""
        if self.master >= 0:
            os.close(self.master)
        self.master = -1
