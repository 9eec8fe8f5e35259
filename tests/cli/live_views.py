"""What tests of the live view share: `cotune train` in a pseudo-terminal and the rows of its table."""
import re

from program import ProgramTest
from terminal_screen import TerminalProgram

ENDLESS = 1_000_000  # steps
JOBS = ("plain", "bottleneck", "sparse")


class LiveViewTest(ProgramTest):
    def terminal(self, *arguments, **options):
        program = TerminalProgram(self.command(*arguments), **options)
        self.addCleanup(program.close)
        return program

    def train(self, *arguments, steps=ENDLESS, jobs=JOBS, **options):
        return self.terminal("train", self.jobs_file(steps=steps, save_steps=0, jobs=jobs), "--output-dir", self.path / "run",
                             "--threads=1", *arguments, **options)

    def row(self, program, job):
        """The job's row of the table; "" where there is none."""
        return next((line for line in program.screen.lines() if re.match(rf"[ ▶>] {job} ", line)), "")

    def wait_for_row(self, program, job, *words):
        program.wait_for(lambda screen: screen.is_alternate and all(word in self.row(program, job) for word in words))

    def select(self, program, job):
        while not self.row(program, job).startswith("▶"):
            before = program.screen.text()
            program.press("j")
            program.wait_for(lambda screen: screen.text() != before)
