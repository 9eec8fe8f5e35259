#!/usr/bin/env python3
"""The page of cotune report in a browser: what its script shows, and that everything finds room.

    COTUNE=build/cotune python3 tests/cli/report_in_browser_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

import needs
from browser import Browser
from program import METHODS, ProgramTest

GRID = "grid: {adapter.r: [2, 4], train.lr: [1e-5, 3e-5, 3e-3, 3e-2]}, halving: {first_steps: 2}"
# Of every text of a chart what it says and where it stands, in the chart's own 560 by 240.
TEXTS = """[...document.querySelectorAll('svg[role=img]')].map(chart => [...chart.querySelectorAll('text')].filter(text => text.textContent)
  .map(text => ({words: text.textContent, kind: text.getAttribute('class') || '', ...(box => ({left: box.x, right: box.x + box.width,
  top: box.y, bottom: box.y + box.height}))(text.getBBox())})))"""
BOX = """(() => {{const chart = document.querySelector('svg[aria-label="{}"]'); chart.scrollIntoView({{block: 'center'}});
  const box = chart.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]}})()"""
READOUT = """(() => {{const chart = document.querySelector('svg[aria-label="{}"]');
  return [chart.querySelector('.readout').textContent, chart.querySelector('.cursor').getAttribute('d')]}})()"""
LEFT, RIGHT, WIDTH = 62, 546, 560  # of a chart


@needs.required("chromium")
class InABrowser(ProgramTest):
    def setUp(self):
        super().setUp()
        self.browser = Browser()
        self.addCleanup(self.browser.close)

    def report(self, jobs):
        run = self.path / "run"
        self.run_program("train", jobs, "--output-dir", run)
        self.run_program("report", "--run", run)
        self.browser.open((run / "report.html").as_uri())

    def point_at(self, title, share):
        """What a chart reads out where the mouse is; share: of the length of its x axis."""
        left, top, width, height = self.browser.value(BOX.format(title))
        self.browser.point_at(left + width * (LEFT + share * (RIGHT - LEFT)) / WIDTH, top + height / 2)
        return self.browser.value(READOUT.format(title))

    def assert_reads(self, said, step, values):
        """values: {curve: value}, as exactly as a chart knows them."""
        at, curves = said.split(": ", 1)
        self.assertEqual(at, str(step))
        found = {name: float(value) for name, value in (each.rsplit(" ", 1) for each in curves.split(", "))}
        self.assertEqual(found.keys(), values.keys(), said)
        for name, value in values.items():
            self.assertLessEqual(abs(found[name] - value), 1e-4, (said, name, value))

    def results(self, event):
        """{job: {step: loss}} of a run's steps or evaluations."""
        losses = {}
        for line in self.metrics("run"):
            if line["event"] == event:
                losses.setdefault(line["job"], {})[line["step"]] = line["loss"]
        return losses

    def assert_finds_room(self, *widths):
        for width in widths:
            self.browser.resize(width, 800)
            self.assertEqual(self.browser.value("document.documentElement.scrollWidth"), width)
        for texts in self.browser.value(TEXTS):
            for text in texts:
                self.assertTrue(0 <= text["left"] and text["right"] <= WIDTH and 0 <= text["top"] and text["bottom"] <= 240, text)
            for index, one in enumerate(texts):
                for other in texts[:index]:
                    self.assertTrue(one["right"] <= other["left"] or other["right"] <= one["left"] or one["bottom"] <= other["top"] + 1
                                    or other["bottom"] <= one["top"] + 1, (one, other))

    def test_charts_of_a_run_read_out_what_is_recorded(self):
        self.report(self.jobs_file(steps=6, train=", eval_steps: 3"))
        steps, evaluations = self.results("step"), self.results("evaluation")
        for job in METHODS:
            said, cursor = self.point_at(job, 0.5)  # of steps 0 to 6
            self.assert_reads(said, 3, {"held out": evaluations[job][3], "loss": steps[job][3]})
            self.assertEqual(cursor, f"M{(LEFT + RIGHT) / 2:.0f} 30V206")
            self.assert_reads(self.point_at(job, 0)[0], 0, {"held out": evaluations[job][0]})
        self.assert_reads(self.point_at("all jobs", 1)[0], 6, {job: steps[job][6] for job in METHODS})
        self.assertEqual(self.point_at("all jobs", -0.1), ["", None])  # beside the axis
        self.assertEqual(self.browser.complaints, [])

    def test_a_sweep_reads_out_the_candidates_that_came_so_far(self):
        jobs = self.path / "jobs.yaml"
        jobs.write_text("cotune: 1\nmodel: {config: ./config.json, weights: random, seed: 3, dtype: float32}\njobs:\n  - name: sql\n"
                        f"    data: {{train: plain.jsonl, eval_fraction: 0.3}}\n    train: {{steps: 8, batch_size: 4}}\n    sweep: {{{GRID}}}\n")
        self.report(jobs)
        evaluations = self.results("evaluation")
        self.assertEqual(len(evaluations), 8)
        self.assertEqual({job: min(losses) for job, losses in evaluations.items()}, dict.fromkeys(evaluations, 0))
        for step in (2, 6, 8):
            there = {job: losses[step] for job, losses in evaluations.items() if step in losses}
            self.assertEqual(step == 2, len(there) == 8, there)
            self.assert_reads(self.point_at("held-out loss of each candidate", step / 8)[0], step, there)
        rows = self.browser.value("[...document.querySelector('table').rows].map(row => [...row.cells].map(cell => cell.innerText))")
        sweep = json.loads((self.path / "run/sweeps/sql/sweep.json").read_text())
        self.assertEqual([row[0].removesuffix(", best") for row in rows], ["candidate", *(each["job"] for each in sweep["candidates"])])
        self.point_at("held-out loss of each candidate", 0.25)  # the longest that is read out
        self.assert_finds_room(1200, 420)
        self.assertEqual(self.browser.complaints, [])

    def test_long_names_find_room_beside_the_legend(self):
        jobs = self.jobs_file(steps=30, train=", eval_steps: 10", jobs=["plain"])
        name = "customer-support-summaries-2026-09-00048000-r16-3e-4"  # bold, of letters that are rather wide
        jobs.write_text(jobs.read_text().replace("name: plain", f"name: {name}"))
        self.report(jobs)
        self.assert_finds_room(1200)
        self.assertEqual(self.browser.value("[...document.querySelectorAll('svg .key')].map(key => key.textContent)")[:2], ["held out", "smoothed"])
        self.assertEqual(self.browser.complaints, [])

    def test_text_of_users_and_models_runs_nothing(self):
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain"]), "--output-dir", self.path / "run")
        with open(self.path / "run/metrics.jsonl", "a") as metrics:
            metrics.write(json.dumps({"event": "notice", "text": "</ul><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"}) + "\n")
        self.run_program("report", "--run", self.path / "run")
        self.browser.open((self.path / "run/report.html").as_uri())
        self.assertEqual(self.browser.value("[document.title, document.scripts.length, document.images.length]"), ["run – cotune", 1, 0])
        self.assertIn("document.title", self.browser.value("document.body.innerText"))
        self.assertEqual(self.browser.complaints, [])

    def test_complaints_are_heard(self):
        page = self.path / "page.html"
        page.write_text("<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; script-src 'unsafe-inline'\">"
                        "<img src=picture.png><script>console.error('told'); missing()</script>")
        self.browser.open(page.as_uri())
        for told in ("told", "missing is not defined", "Content Security Policy"):
            self.assertIn(told, "\n".join(self.browser.complaints))


if __name__ == "__main__":
    unittest.main()
