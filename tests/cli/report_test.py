#!/usr/bin/env python3
"""cotune report: a run as one page of HTML.

    COTUNE=build/cotune python3 tests/cli/report_test.py [UNITTEST OPTIONS]
"""
import html.parser
import json
import re
import unittest

from program import METHODS, ProgramTest
from tiny_models import copy_model

WITHOUT_END = {"meta"}
HOSTILE = "</pre><script>alert(1)</script>&\"'\x1b[2J"


class Page(html.parser.HTMLParser):
    """Elements, every one of which must be ended, and the text that is seen."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text = [], [], ""
        self.marks = {}  # {chart: what its marks say}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "svg":
            self.chart = dict(attributes).get("aria-label")
        if tag not in WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data
        if self.open[-1:] == ["title"] and self.open[-2] in ("circle", "rect", "path"):
            self.marks.setdefault(self.chart, []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


class Report(ProgramTest):
    def page(self, *arguments):
        said = self.run_program("report", "--run", self.path / "run", *arguments).stdout
        file = re.fullmatch(r"wrote (.+)\n", said)[1]
        with open(file, encoding="utf-8") as text:
            page = text.read()
        self.assertEqual(re.findall(r"https?:|//|url\(|@import", page.replace("<!DOCTYPE html>", "")), [])
        parsed = Page(page)
        for name in ("src", "href", "onerror", "onload"):
            self.assertEqual([attributes for _, attributes in parsed.elements if name in attributes], [])
        self.assertEqual([len(parsed.all(tag)) for tag in ("script", "style", "link", "img", "iframe")], [1, 1, 0, 0, 0])
        self.assertIn("default-src 'none'", parsed.all("meta")[1]["content"])
        return parsed

    def test_of_a_run_has_its_jobs_curves_and_configuration(self):
        self.run_program("train", self.jobs_file(steps=6, train=", eval_steps: 3"), "--output-dir", self.path / "run")
        page = self.page()
        titles = [attributes["aria-label"] for attributes in page.all("svg") if "aria-label" in attributes]
        self.assertEqual(titles, ["plain", "bottleneck", "sparse", "all jobs", "throughput, tokens/s", "memory"])
        for text in ("finished", "6 of 6", "18", "optimizer steps", "held-out loss", "target_modules"):
            self.assertIn(text, page.text)
        losses = [attributes for attributes in page.all("polyline") if attributes["data-name"] == "loss"]
        self.assertEqual([len(curve["points"].split()) for curve in losses], [6, 6, 6])
        for job in METHODS:
            self.assertEqual([re.sub(r": \S+", "", mark) for mark in page.marks[job]], [f"held out at {step}" for step in (0, 3, 6)])
        for curve in page.all("polyline"):
            for point in curve["points"].split():
                x, y = map(float, point.split(","))
                self.assertTrue(62 <= x <= 546 and 30 <= y <= 206, point)
        other = self.page("--output", self.path / "other.html")
        self.assertEqual(other.text, page.text)

    def test_of_damaged_files_shows_the_rest_and_says_what_is_left_out(self):
        run = self.path / "run"
        self.run_program("train", self.jobs_file(steps=6, jobs=["plain"]), "--output-dir", run)
        whole, status = self.page(), self.run_program("status", "--run", run).stdout
        metrics = run / "metrics.jsonl"
        lines = metrics.read_bytes().splitlines(True)
        metrics.write_bytes(b"".join(lines[:1]) + b'{"event":"notice","text":"\x9b2J\x1b[2J"}\n' + b"".join(lines[1:]))
        told = f"{metrics}:2: is not as `cotune train` writes it: "
        for command in (("report",), ("status",), ("status", "--json")):
            done = self.run_program(*command, "--run", run)
            self.assertEqual(done.stderr.count(told), 1, done.stderr)
            self.assertRegex(done.stderr, r"\A[ -~]+; the line is left out\n\Z")
        self.assertEqual(self.run_program("status", "--run", run).stdout, status)
        page = self.page()
        self.assertEqual(page.all("polyline"), whole.all("polyline"))
        self.assertIn("the line is left out", page.text)
        summary = run / "summary.json"
        summary.write_bytes(summary.read_bytes()[:-20])
        done = self.run_program("status", "--run", run)
        self.assertIn(f"{summary}: is not as `cotune train` writes it: ", done.stderr)
        self.assertRegex(done.stdout, r"plain +finished")
        self.assertIn("what metrics.jsonl says is shown", self.page().text)

    def test_of_several_ranks_says_what_each_did(self):
        self.run_program("train", self.jobs_file(steps=3), "--output-dir", self.path / "run", "--ranks=2", "--parallel=pp=2")
        text = self.page().text
        self.assertIn("Ranks", text)
        ranks = json.loads((self.path / "run/summary.json").read_text())["ranks"]
        for rank, layer in zip(ranks, (0, 1)):
            self.assertRegex(text, rf"{layer}\s*{layer}-{layer}\s*1\s*whole\s*{100 * rank['measured']['busy']:.1f}%")
        self.run_program("train", self.jobs_file(steps=3), "--output-dir", self.path / "run", "--overwrite")
        self.assertNotIn("Ranks", self.page().text)

    def test_escapes_everything_that_comes_from_users_and_models(self):
        run = self.path / "run"
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain"]), "--output-dir", run)
        record = json.loads((run / "run.json").read_text())
        record["compute_dtype"] = record["instruction_set"] = HOSTILE
        record["configuration"] = record["configuration"].replace("tenant:", "# " + HOSTILE + "\n    tenant:", 1) + "# " + HOSTILE.replace("\x1b", "") + "\n"
        (run / "run.json").write_text(json.dumps(record))
        with open(run / "metrics.jsonl", "a") as metrics:
            for event in ({"event": "notice", "text": HOSTILE}, {"event": "sample", "job": "plain", "step": 0, "prompt": HOSTILE, "answer": None},
                          {"event": "sample", "job": "plain", "step": 2, "prompt": HOSTILE, "answer": HOSTILE}):
                metrics.write(json.dumps(event) + "\n")
        summary = json.loads((run / "summary.json").read_text())
        summary["jobs"][0].update(status=HOSTILE, reason=HOSTILE)
        (run / "summary.json").write_text(json.dumps(summary))
        page = self.page()
        self.assertGreaterEqual(page.text.count("<script>alert(1)</script>"), 7)
        self.assertNotIn("\x1b", page.text)
        self.assertIn("no memory was left for an answer", page.text)

    def test_has_what_each_job_answers_before_and_after_as_text(self):
        copy_model(self.path / "model")
        examples = {"one": ("Say <em>&amp;</em>", "</pre><script>"), "two": ("1 < 2 & \"3\"?", "<i>yes</i>\n'no'")}
        for job, (prompt, completion) in examples.items():
            (self.path / f"{job}.jsonl").write_text(json.dumps({"prompt": prompt, "completion": completion}) + "\n")
        jobs = self.path / "jobs.yaml"
        jobs.write_text("cotune: 1\nmodel: {path: model, dtype: float32}\n"
                        "defaults: {adapter: {method: lora, r: 16}, train: {batch_size: 1, steps: 60, lr: 2e-2}}\njobs:\n"
                        + "".join(f"  - {{name: {job}, data: {{train: {job}.jsonl}}}}\n" for job in examples))
        self.run_program("train", jobs, "--output-dir", self.path / "run", "--sample-tokens", "24")
        page = self.page()
        answers = {(event["job"], event["step"]): event["answer"] for event in self.metrics("run") if event["event"] == "sample"}
        wanted = "Answers before and after"
        for job, (prompt, completion) in examples.items():
            self.assertEqual(answers[job, 60], completion)  # learned by heart
            self.assertNotEqual(answers[job, 0], completion)
            wanted += f"{job} is asked{prompt}answers before training{answers[job, 0]}answers after step 60{completion}"
        letters = lambda text: "".join(character for character in text if character.isprintable() and not character.isspace())
        self.assertIn(letters(wanted + "Configuration"), letters(page.text))
        self.assertEqual((page.all("em"), page.all("i")), ([], []))
        self.assertEqual(len(page.all("pre")), 7)  # prompts, answers and the configuration

    def test_of_a_run_without_a_step_or_an_end_says_so(self):
        run = self.path / "run"
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain"]), "--output-dir", run)
        (run / "metrics.jsonl").write_text("")
        (run / "summary.json").unlink()
        page = self.page()
        self.assertIn("nothing was recorded", page.text)
        self.assertIn("holds no run", self.run_program("report", "--run", self.path, expect=2).stderr)

    def test_says_what_the_run_is_at(self):
        run = self.path / "run"
        process = self.start_quietly(self.jobs_file(steps=10 ** 6, jobs=["plain"]), "--output-dir", run)
        self.assertRegex(self.page().text, r"training\s*the run")
        process.kill()
        process.wait()
        self.assertRegex(self.page().text, r"not running, and it did not end\s*the run")


if __name__ == "__main__":
    unittest.main()
