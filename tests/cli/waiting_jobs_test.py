#!/usr/bin/env python3
"""Jobs that wait for memory, as people see them: in the live view of the run, in `cotune watch` and `cotune status` from another terminal,
and as lines.

    COTUNE=build/cotune python3 tests/cli/waiting_jobs_test.py [UNITTEST OPTIONS]
"""
import json
import re
import unittest

from live_views import ENDLESS, LiveViewTest
from program import CONFIG

JOBS = ("first", "second", "third")  # alike; two of them have room
REASON = r"waits: memory: it and the 2 running jobs would take ([\d.]+) MiB, the limit leaves ([\d.]+) MiB"
TOLD = "third +waits for memory: it and the 2 running jobs would take"
YELLOW = "33"


class WaitingJobs(LiveViewTest):
    def setUp(self):
        super().setUp()
        wide = {**CONFIG, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8}
        (self.path / "config.json").write_text(json.dumps(wide))

    def jobs(self, steps=ENDLESS, names=JOBS):
        path = self.path / "jobs.yaml"
        path.write_text("cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\n"
                        "defaults: {data: {train: plain.jsonl}, adapter: {method: lora, r: 512}, "
                        f"train: {{batch_size: 1, steps: {steps}}}}}\njobs:\n" + "".join(f"  - {{name: {name}}}\n" for name in names))
        return path

    def limit(self):
        """Of --memory: what two of the jobs take, and a third of what another one would add."""
        def checked(names):
            return json.loads(self.run_program("train", self.jobs(names=names), "--check", "--json", "--threads=1", "--memory=6GiB").stdout)
        two, three = checked(JOBS[:2]), checked(JOBS)
        added = three["peak_bytes"] - two["peak_bytes"]
        self.assertGreater(added, 48 << 20)  # more than what the process takes beside its tensors is known by
        return f"{(6 * 2**30 - three['memory_limit_bytes'] + two['peak_bytes'] + added // 3) >> 10}KiB"

    def arguments(self, **options):
        limit = self.limit()
        return "train", self.jobs(**options), "--output-dir", self.path / "run", "--threads=1", "--memory", limit

    def status(self, **options):
        """What it leaves on a terminal."""
        program = self.terminal("status", "--run", self.path / "run", **options)
        self.assertEqual(program.end(), 0)
        return program.screen

    def has_reason(self, text, job):
        """Whether the reason stands there whole, wherever its lines end. Its figures agree with that the job does not fit."""
        found = re.search(rf"(^|\n){job} " + REASON.replace(" ", r"\s+"), text)
        if found:
            self.assertGreater(float(found[2]), float(found[3]))
        return found is not None

    def wait_for_reason(self, program, job):
        self.wait_for_row(program, job, "waiting", f"/{ENDLESS}")
        program.wait_for(lambda screen: self.has_reason(screen.text(), job))

    def wait_until_nobody_waits(self, program):
        program.wait_for(lambda screen: screen.is_alternate and " waiting" not in screen.text() and " waits: " not in screen.text())

    def assert_in_order(self, text, *beginnings):
        """Lines begin so, each after the one before."""
        at = 0
        for beginning in beginnings:
            found = re.compile(rf"^{beginning}", re.MULTILINE).search(text, at)
            self.assertIsNotNone(found, (beginning, text))
            at = found.end()

    def assert_yellow(self, cells, *words):
        """Each of these words stands somewhere in the colour of what waits."""
        rows = {}
        for (row, column), (character, style) in cells.items():
            rows.setdefault(row, {})[column] = character if style == YELLOW else " "
        yellow = ["".join(row.get(column, " ") for column in range(max(row) + 1)) for row in rows.values()]
        for word in words:
            self.assertTrue(any(word in line for line in yellow), (word, yellow))

    def test_stand_in_every_view_with_their_reason_until_there_is_room(self):
        training = self.terminal(*self.arguments())
        self.wait_for_reason(training, "third")
        training.wait_for_text("2 running, 1 waiting", "left of those that run")
        self.assert_yellow(training.screen.cells(), "waiting", "third waits: memory")

        training.resize(40, 20)
        training.wait_for(lambda screen: screen.fits and self.has_reason(screen.text(), "third"))
        training.resize(100, 24)
        for columns in (100, 50):
            screen = self.status(columns=columns)
            lines = screen.normal.replace("\r", "").splitlines()
            self.assertIn("2 running, 1 waiting", lines[1])
            self.assertTrue(any(re.match(rf"  third +waiting +0/{ENDLESS}", line) for line in lines), lines)
            self.assertTrue(self.has_reason("\n".join(lines), "third"), lines)
            self.assertLessEqual(max(map(len, lines)), columns)
            self.assert_yellow(screen.written_cells(), "waiting", "third waits: memory")

        watching = self.terminal("watch", "--run", self.path / "run")
        self.wait_for_reason(watching, "third")
        watching.press("cy")  # of the first
        for program in (training, watching):
            self.wait_for_row(program, "first", "cancelled")
            self.wait_for_row(program, "third", "running")
            self.wait_until_nobody_waits(program)
        self.assertNotIn("waits", self.status().normal)
        watching.press("q")
        self.assertEqual(watching.end(), 0)
        training.press("\x03")
        self.assertEqual(training.end(), 130)
        self.assert_in_order(training.screen.normal, TOLD, r"first +cancelled at step \d+", "third +starts: ")

    def test_change_with_priorities_and_stay_so_when_the_run_stops(self):
        training = self.terminal(*self.arguments())
        self.wait_for_reason(training, "third")
        self.wait_for_row(training, "second", "running")
        self.run_program("job", "priority", "--run", self.path / "run", "third", "5")
        self.wait_for_row(training, "third", "running")
        self.wait_for_reason(training, "second")
        training.wait_for_text("priority: job `second` makes way for `third` at step ")
        self.assertTrue(self.has_reason(self.status().normal.replace("\r", ""), "second"))
        training.press("\x03")
        self.assertEqual(training.end(), 130)
        stopped = self.status().normal
        self.assertIn("stopped and saved", stopped)
        self.assertIn("1 waiting, 2 stopped", stopped)
        self.assertIn("  second  waiting ", stopped)

    def test_are_told_of_in_lines_and_start_when_another_has_finished(self):
        said = self.run_program(*self.arguments(steps=2)).stdout
        self.assert_in_order(said, "first +starts: ", TOLD, "together +3 jobs ", "first +finished at step 2", "third +starts: ", "third +finished at step 2")


if __name__ == "__main__":
    unittest.main()
