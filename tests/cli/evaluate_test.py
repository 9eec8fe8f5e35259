#!/usr/bin/env python3
"""cotune evaluate through its command line: against training's own evaluation, and against transformers and PEFT where they are installed.

    COTUNE=build/cotune python3 tests/cli/evaluate_test.py [UNITTEST OPTIONS]
"""
import gzip
import json
import math
import os
import random
import re
import signal
import struct
import time
import unittest

import needs
from generations import Generates, trained_adapter
from program import METHODS, ProgramTest
from terminal_screen import TerminalProgram
from tiny_models import ROOT, closed_by, make_special

if needs.is_here("transformers"):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

EOS = chr(2)
ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"


class Evaluates(Generates):
    def setUp(self):
        super().setUp()
        self.folders = [trained_adapter(ADAPTERS / "all_linear", self.path / f"trained-{seed}", seed) for seed in (1, 2)]
        self.adapters = ("--adapter", f"one={self.folders[0]}", "--adapter", f"two={self.folders[1]}")
        self.data = self.path / "data.jsonl"

    def write(self, records):
        self.data.write_text("".join(json.dumps(record) + "\n" for record in records))
        return records

    def evaluate(self, *options, expect=0, dtype="f64", **more):
        return self.run_program("evaluate", "--model", self.model, "--dtype", dtype, *options, expect=expect, **more)

    def lines(self, *options, **more):
        """The JSON of each adapter, by its name."""
        found = [json.loads(line) for line in self.evaluate("--data", self.data, "--json", *options, **more).stdout.splitlines()]
        return {line["adapter"]: line for line in found}

    def refused(self, *options, **more):
        done = self.evaluate(*options, expect=2, **more)
        self.assertLess(len(done.stderr), 3000)
        return done.stderr

    def details(self, *options):
        path = self.path / "answers.jsonl"
        self.evaluate("--data", self.data, "--answers", path, *options)
        return [json.loads(line) for line in path.read_text().splitlines()]


def completions(count, seed=3):
    draw = random.Random(seed)
    text = lambda length: "".join(chr(draw.randrange(97, 123)) for _ in range(length))
    return [{"prompt": text(draw.randrange(1, 40)), "completion": text(draw.randrange(1, 20))} for _ in range(count)]


class Reference:
    """What transformers and PEFT say of the tiny model's texts; a token is a character."""

    def __init__(self, model, adapter, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa")
        if adapter is not None:
            self.model = PeftModel.from_pretrained(self.model, adapter, autocast_adapter_dtype=False).to(dtype)
        self.model.eval()

    def log_probabilities(self, question, text):
        """Of each character of a text behind a question."""
        ids = [ord(letter) for letter in question + text]
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return [logits[at - 1, ids[at]].item() for at in range(len(question), len(ids))]


class Losses(Evaluates):
    @needs.required("transformers")
    def test_are_those_of_transformers_and_peft(self):
        records = self.write(completions(20))
        for dtype, torch_dtype, bound in (("float32", torch.float32, 1e-4), ("float64", torch.float64, 1e-6)):
            lines = self.lines(*self.adapters, dtype=dtype)
            self.assertEqual(list(lines), ["base", "one", "two"])
            for name, folder in (("base", None), ("one", self.folders[0]), ("two", self.folders[1])):
                reference = Reference(self.model, folder, torch_dtype)
                every = [value for record in records for value in reference.log_probabilities(record["prompt"], record["completion"] + EOS)]
                loss = -sum(every) / len(every)
                self.assertEqual((lines[name]["examples"], lines[name]["tokens"]), (20, len(every)))
                self.assertLess(abs(lines[name]["loss"] - loss), bound)
                self.assertAlmostEqual(lines[name]["perplexity"], math.exp(lines[name]["loss"]))
            self.assertAlmostEqual(lines["one"]["loss_change"], lines["one"]["loss"] - lines["base"]["loss"])

    def test_of_examples_do_not_depend_on_their_company(self):
        self.write(completions(50))
        together = self.lines(*self.adapters)
        self.assertEqual(self.lines(*self.adapters[2:], "--no-base")["two"]["loss"], together["two"]["loss"])
        self.assertEqual(self.lines()["base"], together["base"])

    def test_take_every_format_and_reading_option(self):
        template = self.path / "other.jinja"
        template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
                            "{% if add_generation_prompt %}[assistant]{% endif %}")
        chat = {"messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "1."}]}
        self.write([chat] * 3)
        own, other = self.lines()["base"], self.lines("--chat-template", template)["base"]
        self.assertNotEqual(own["loss"], other["loss"])
        ids = list(map(ord, "[user]One?;[assistant]1.;"))
        self.write([{"input_ids": ids, "labels": [-100] * (len(ids) - 3) + ids[-3:]}] * 3)
        self.assertAlmostEqual(self.lines()["base"]["loss"], other["loss"])
        self.write([{"text": "abcdef"}] * 3)
        self.assertEqual(self.lines()["base"]["tokens"], 18)
        self.assertEqual(self.lines("--max-length", "4", "--max-examples", "2")["base"]["tokens"], 6)

    def test_come_with_the_share_of_examples_whose_every_token_is_the_first_choice(self):
        records = []
        for i, record in enumerate(completions(8)):
            tokens = self.answer("--raw", "--prompt", record["prompt"], "--max-new-tokens", "4")["tokens"]
            if i >= 3:
                tokens[i % len(tokens)] ^= 1
            prompt = list(map(ord, record["prompt"]))
            records.append({"input_ids": prompt + tokens, "labels": [-100] * len(prompt) + tokens})
        self.write(records)
        line = self.lines()["base"]
        self.assertEqual(line["accuracy"], 3 / 8)
        self.assertAlmostEqual(line["accuracy_stderr"], math.sqrt(3 / 8 * 5 / 8 / 7))
        for index in (0, 3):
            self.write(records[index:index + 1])
            self.assertEqual(self.lines()["base"]["accuracy"], index == 0)

    def test_stand_in_a_table(self):
        self.write(completions(5))
        table = self.evaluate("--data", self.data, *self.adapters).stdout
        self.assertRegex(table, r"data\.jsonl: 5 examples, \d+ learned tokens\nmetric +adapter +value +change from base\n"
                                r"loss +base +[\d.]+ (±|\+-) [\d.]+\n +one +[\d.]+ (±|\+-) [\d.]+ +[+-][\d.]+ (±|\+-) ")


class OfARun(ProgramTest):
    def test_are_those_that_training_has_reported(self):
        self.run_program("train", self.jobs_file(steps=6), "--output-dir", self.path / "run")
        events = {}
        for event in self.metrics("run"):
            if event["event"] == "evaluation":
                events.setdefault(event["job"], []).append(event["loss"])
        done = self.run_program("evaluate", "--run", self.path / "run", "--json")
        self.assertEqual(done.stderr, "")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["adapter"] for line in lines], [name for job in METHODS for name in ("base", job)])
        for base, own in zip(lines[::2], lines[1::2]):
            self.assertEqual(own["data"], f"held-out examples of {own['adapter']}")
            self.assertAlmostEqual(own["loss"], events[own["adapter"]][-1], delta=1e-9)
            if own["adapter"] == "plain":  # LoRA begins as the model alone
                self.assertAlmostEqual(base["loss"], events["plain"][0], delta=1e-6)
        # Elsewhere, and on data that have changed.
        with (self.path / "plain.jsonl").open("a") as file:
            file.write('{"input_ids": [3, 4, 5], "labels": [-100, 4, 5]}\n' * 30)
        self.assertIn("plain: its data have changed since the run", self.run_program("evaluate", "--run", self.path / "run").stderr)

    def test_of_an_earlier_version_with_a_job_called_base_leaves_that_out_and_says_so(self):
        run = self.path / "run"
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain", "sparse"]), "--output-dir", run)
        record = json.loads((run / "run.json").read_text())
        record["configuration"] = record["configuration"].replace("name: plain", "name: base")
        (run / "run.json").write_text(json.dumps(record))
        (run / "jobs/plain").rename(run / "jobs/base")
        done = self.run_program("evaluate", "--run", run, "--json")
        self.assertEqual(done.stderr, f"base: this job of the run is left out, because base is the model without an adapter; --data FILE --adapter NAME={run}/jobs/base "
                                      "evaluates it\n")
        self.assertEqual([json.loads(line)["adapter"] for line in done.stdout.splitlines()], ["base", "sparse"])
        self.run_program("status", "--run", run)
        for given, adapter in ((run, "base"), (run / "jobs/base", "base")):
            for command in (["evaluate", "--data", self.path / "plain.jsonl"], ["generate", "--prompt", "x"]):
                errors = self.run_program(*command, "--adapter", given, expect=2).stderr
                self.assertEqual(errors, f"--adapter: {run}/jobs/base/adapter: would be called `base`, which is the model without an adapter; NAME={given} "
                                         "gives it another name\n")

    def test_leave_out_jobs_that_are_still_choosing_their_entries(self):
        run = self.path / "run"
        self.run_program("train", self.jobs_file(steps=2, jobs=["plain", "sparse"]), "--output-dir", run)
        no_tensors = b"{}".ljust(8)
        (run / "jobs/sparse/adapter/adapter_model.safetensors").write_bytes(struct.pack("<Q", len(no_tensors)) + no_tensors)
        done = self.run_program("evaluate", "--run", run, "--json")
        self.assertEqual(done.stderr, "sparse: has no adapter yet: it is still choosing its entries\n")
        self.assertEqual([json.loads(line)["adapter"] for line in done.stdout.splitlines()], ["base", "plain"])

    def test_that_is_none_is_refused(self):
        self.assertRegex(self.run_program("evaluate", "--run", self.path, expect=2).stderr, r"holds no run: run\.json is missing")


class Answers(Evaluates):
    def test_are_compared_with_the_last_answer_of_each_example(self):
        prompts = [record["prompt"] for record in completions(12)]
        right = {prompt: self.answer("--raw", "--prompt", prompt, "--max-new-tokens", "3")["text"] for prompt in prompts[:3]}
        self.write([{"prompt": prompt, "completion": right.get(prompt, "no") + " "} for prompt in prompts])
        answers = self.details("--exact-match", "--max-new-tokens", "3", *self.adapters)
        self.assertEqual([(a["example"], a["line"], a["adapter"]) for a in answers],
                         [(i, i + 1, name) for i in range(12) for name in ("base", "one", "two")])
        for answer in answers:
            prompt = prompts[answer["example"]]
            self.assertEqual(answer["exact_match"], answer["text"].strip() == right.get(prompt, "no").strip())
        lines = self.lines("--exact-match", "--max-new-tokens", "3", "--at-once", "5", *self.adapters)
        for name, line in lines.items():
            own = [answer["exact_match"] for answer in answers if answer["adapter"] == name]
            self.assertEqual(line["exact_match"], sum(own) / 12)
        self.assertEqual(lines["base"]["exact_match"], 3 / 12)

    def test_are_those_behind_the_prompts_where_prompts_are_learned_too(self):
        self.write(completions(6))
        options = ("--exact-match", "--max-new-tokens", "3", *self.adapters)
        apart, both = self.details(*options), self.details(*options, "--train-on-prompt", "true")
        self.assertEqual(both, apart)
        self.assertGreater(self.lines(*options, "--train-on-prompt", "true")["base"]["loss"], 0)
        choices = ("--choices", ",".join({record["completion"].strip() for record in completions(6)}), *self.adapters)
        self.assertEqual(self.details("--train-on-prompt", *choices), self.details(*choices))

    def test_end_at_the_token_that_closes_them_in_the_template_of_the_data(self):
        question = "Hello there"
        free, closing = self.free_answer(question)
        make_special(self.model, closing)
        template = self.path / "own.jinja"
        template.write_text(closed_by(closing))
        self.write([{"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": free[:free.index(closing)]}]}])
        options = ("--exact-match", "--max-new-tokens", "40")
        (answer,) = self.details("--chat-template", template, *options)
        self.assertEqual((answer["text"], answer["stop"], answer["exact_match"]), (free[:free.index(closing)], "stop_token", True))
        ids = list(map(ord, f"<user>{question}\n<assistant>{free[:free.index(closing)]}{closing}"))
        learned = free.index(closing) + 1
        self.write([{"input_ids": ids, "labels": [-100] * (len(ids) - learned) + ids[-learned:]}])
        self.assertEqual(self.lines(*options)["base"]["exact_match"], 1)

    def test_are_written_where_a_link_leads(self):
        self.write(completions(2))
        file, link = self.path / "kept.jsonl", self.path / "answers.jsonl"
        link.symlink_to(file)
        answers = self.details("--exact-match", "--max-new-tokens", "3")
        self.assertTrue(link.is_symlink())
        self.assertEqual([json.loads(line) for line in file.read_text().splitlines()], answers)

    def test_may_differ_in_case_and_punctuation_where_that_is_to_be_ignored(self):
        text = self.answer("--raw", "--prompt", "abc", "--max-new-tokens", "6")["text"]
        self.write([{"prompt": "abc", "completion": "!" + text.swapcase() + "?"}])
        options = ("--exact-match", "--max-new-tokens", "6")
        self.assertEqual(self.lines(*options)["base"]["exact_match"], 0)
        self.assertEqual(self.lines(*options, "--ignore-case", "--ignore-punctuation")["base"]["exact_match"], 1)


class Choices(Evaluates):
    def test_have_the_likelihoods_of_transformers(self):
        draw = random.Random(5)
        text = lambda length: "".join(chr(draw.randrange(97, 123)) for _ in range(length))
        records = [{"question": text(30) + ":" + " " * (i % 2), "choices": [text(draw.randrange(1, 9)) for _ in range(2 + i % 3)],
                    "answer": "AB"[i % 2]} for i in range(15)]
        self.write(records)
        details = self.details("--raw", *self.adapters)
        self.assertEqual(len(details), 45)
        if needs.is_here("transformers"):
            for name, folder in (("base", None), ("two", self.folders[1])):
                reference = Reference(self.model, folder, torch.float64)
                for detail in (detail for detail in details if detail["adapter"] == name):
                    record = records[detail["example"]]
                    asked = record["question"].rstrip()
                    for choice, found in zip(record["choices"], detail["log_probabilities"]):
                        between = record["question"][len(asked):] + " "
                        self.assertAlmostEqual(found, sum(reference.log_probabilities(asked, between + choice)), delta=1e-4)
        lines = self.lines("--raw", *self.adapters)
        for name, line in lines.items():
            right = by_length = 0
            for detail in (detail for detail in details if detail["adapter"] == name):
                record, values = records[detail["example"]], detail["log_probabilities"]
                wanted = "AB".index(record["answer"])
                right += values.index(max(values)) == wanted
                scaled = [value / len(choice) for value, choice in zip(values, record["choices"])]
                by_length += scaled.index(max(scaled)) == wanted
            self.assertAlmostEqual(line["acc"], right / 15)
            self.assertAlmostEqual(line["acc_norm"], by_length / 15)
            self.assertAlmostEqual(line["acc_stderr"], math.sqrt(line["acc"] * (1 - line["acc"]) / 14))

    def test_follow_the_chat_template_unless_told_not_to(self):
        self.write([{"question": "One?", "choices": ["yes", "no"], "answer": "no"}])
        chat = self.details()[0]["log_probabilities"]
        self.write([{"question": "<user>One?\n<assistant>", "choices": ["yes", "no"], "answer": "no"}])
        for one, other in zip(chat, self.details("--raw", "--delimiter", "")[0]["log_probabilities"]):
            self.assertAlmostEqual(one, other)

    def test_may_be_the_same_for_all_examples(self):
        labels = ("positive", "negative")
        self.write([{"prompt": record["prompt"], "completion": " " + labels[i % 2]} for i, record in enumerate(completions(10))])
        details = self.details("--choices", "positive,negative", *self.adapters)
        self.assertEqual([detail["answer"] for detail in details], [detail["example"] % 2 for detail in details])
        self.assertEqual(self.details("--choices", " positive, negative ", *self.adapters), details)
        lines = self.lines("--choices", "positive,negative", *self.adapters)
        self.assertEqual(set(lines["one"]) >= {"loss", "acc", "acc_norm", "acc_change"}, True)
        records = [json.loads(line) for line in self.data.read_text().splitlines()]
        self.write([{"question": record["prompt"], "choices": labels, "answer": record["completion"]} for record in records])
        for one, other in zip(self.details("--raw"), [detail for detail in details if detail["adapter"] == "base"]):
            for left, right in zip(one["log_probabilities"], other["log_probabilities"]):
                self.assertAlmostEqual(left, right)


class InATerminal(Evaluates):
    def terminal(self, *options, columns, **environment):
        program = TerminalProgram(self.command("evaluate", "--model", self.model, "--dtype", "f64", "--data", self.data, *options), columns=columns,
                                  **environment)
        self.addCleanup(program.close)
        return program

    def drawn(self, program):
        """The lines that stand on the terminal."""
        lines = {}
        for (row, column), (character, _) in sorted(program.screen.written_cells(wrapped=False).items()):
            lines.setdefault(row, []).append(character)
            self.assertEqual(len(lines[row]), column + 1)
        return ["".join(lines.get(row, [])) for row in range(max(lines, default=-1) + 1)]

    def list_of(self, table):
        """The table's values below one another, with their changes in parentheses."""
        columns = [table[1].index(title) for title in ("adapter", "value", "change")]
        lines = [table[0]]
        for row in table[2:]:
            metric, adapter, value, change = (row[begin:end].strip() for begin, end in zip([0, *columns], [*columns, None]))
            lines += [metric] * (metric != "") + ["  " + adapter, "    " + value + f" ({change})" * (change != "")]
        return [*lines, "(change from base)"]

    def test_results_are_a_table_where_it_fits_and_a_list_elsewhere(self):
        self.write(completions(5))
        options = ("--exact-match", "--max-new-tokens", "3", *self.adapters)
        table = self.evaluate("--data", self.data, *options, env={**os.environ, "LC_ALL": "C.UTF-8"}).stdout.splitlines()
        width = max(map(len, table[1:]))
        self.assertEqual([row.split()[0] for row in table[2::3]], ["loss", "perplexity", "accuracy", "exact_match"])
        self.assertIn("±", table[2])
        for columns, wanted in ((width, table), (width - 1, self.list_of(table)), (40, self.list_of(table))):
            with self.subTest(columns=columns):
                program = self.terminal(*options, columns=columns)
                self.assertEqual(program.end(), 0)
                self.assertEqual(self.drawn(program), wanted)
                self.assertLessEqual(max(map(len, wanted[1:])), columns)

    def test_progress_is_one_line_that_goes_with_the_work(self):
        many = {"losses": ([{"prompt": "x" * 100, "completion": "y" * 20}] * 800, (), 40, r" \d+, \S+ left$"),
                "answers": (completions(60), ("--exact-match", "--max-new-tokens", "200", "--at-once", "1"), 40, r" \d+, \S+ left$"),
                "choices": ([{"question": "x" * 50, "choices": ["yes" * 9, "no" * 9], "answer": "A"}] * 2000, ("--raw",), 20, "…$")}
        for kind, (records, options, columns, end) in many.items():
            with self.subTest(kind):
                self.write(records)
                program = self.terminal(*self.adapters, *options, columns=columns)
                drawn = re.compile(rf"\r({kind}: \d+ of \d[^\r^]*)")
                program.wait_for(lambda screen: len(drawn.findall(screen.normal)) > 1)
                self.assertEqual(len(self.drawn(program)), 1)
                program.press("\x03")
                self.assertEqual(program.end(), 130)
                lines = drawn.findall(program.screen.normal)
                for line in lines:
                    self.assertRegex(line, end)
                    self.assertLess(len(line), columns)
                done = [int(line.split()[1]) for line in lines]
                self.assertEqual(done, sorted(set(done)))
                self.assertEqual(self.drawn(program), ["interrupted: nothing was written"])


    def test_progress_is_cut_in_ascii_where_the_locale_has_no_more(self):
        self.write([{"question": "x" * 50, "choices": ["yes" * 9, "no" * 9], "answer": "A"}] * 2000)
        program = self.terminal(*self.adapters, "--raw", columns=20, LC_ALL="C")
        program.wait_for(lambda screen: re.search(r"\rchoices: \d+ of \d[^\r^]*\.\r", screen.normal))
        program.press("\x03")
        self.assertEqual(program.end(), 130)
        self.assertNotIn("…", program.screen.normal)


class Mistakes(Evaluates):
    def test_in_options(self):
        self.write(completions(3))
        for options, wanted in (
                ((), r"there is nothing to evaluate on: pass --data FILE, or --run DIR"),
                (("--data", self.data, "--no-base"), r"--no-base: leaves nothing"),
                (("--data", self.data, "--no-base", "--adapter", "base"), r"--no-base: leaves out what --adapter base"),
                (("--data", self.data, "--choices", "one"), r"--choices: expected at least two"),
                (("--data", self.data, "--choices", "one, ,two"), r"--choices: must not be empty"),
                (("--data", self.data, "--ignore-case"), r"--ignore-case requires --exact-match"),
                (("--data", self.data, "--answers", "x"), r"--answers: nothing is answered or chosen"),
                (("--data", self.data, "--format", "chats"), r"--format: must be one of"),
                (("--run", self.path, "--data", self.data), r"excludes"),
                (("--run", self.path, "--delimiter", ""), r"--delimiter requires --data"),
                (("--data", self.data, "--raw"), r"data\.jsonl: holds examples, on which --raw has no effect"),
                (("--data", self.data, "--delimiter", " "), r"data\.jsonl: holds examples, on which --delimiter has no effect"),
                (("--data", self.path / "none"), r"none: .*cannot open")):
            self.assertRegex(self.refused(*options), wanted)

    def test_in_data_are_all_named(self):
        self.write([{"prompt": "a", "completion": "x"}, {"prompt": "b"}, {"prompt": "c", "completion": 3}])
        self.assertRegex(self.refused("--data", self.data),
                         r"data\.jsonl:2: expected the fields[^\n]*\n[^\n]*data\.jsonl:3: completion: expected a string")
        self.write([{"question": "a", "choices": ["x", "y"], "answer": "z"}, {"question": "a", "choices": ["x"], "answer": 0},
                    {"question": "x" * 600, "choices": ["x", "y"], "answer": 0}])
        errors = self.refused("--data", self.data, "--raw")
        for wanted in (r"data\.jsonl:1: answer: expected a number from 0 to 1, one of A, B, or the text of a choice; found \"z\"",
                       r"data\.jsonl:2: choices: expected at least two", r"data\.jsonl:3: choices\[0\]: has 602 tokens with its question"):
            self.assertRegex(errors, wanted)
        self.assertRegex(self.refused("--data", self.data, "--exact-match"), r"holds questions with choices of their own")
        self.write(completions(2))
        self.assertRegex(self.refused("--data", self.data, "--choices", "yes,no"),
                         r"data\.jsonl:1: --choices: expected one of yes, no as the answer, found `\w+`")
        self.write([{"prompt": f"{i}", "completion": f"answer {i}"} for i in range(50)])
        errors = self.refused("--data", self.data, "--choices", "yes,no").splitlines()
        self.assertEqual(sum("--choices: expected one of yes, no" in line for line in errors), 20)
        self.assertRegex(errors[-1], r"data\.jsonl:50: and 30 more such examples, this is the last$")
        self.write([{"question": "a", "choices": ["x"], "answer": 0}] * 50)
        errors = self.refused("--data", self.data).splitlines()
        self.assertEqual(sum("choices: expected at least two" in line for line in errors), 3)
        self.assertRegex(errors[-1], r"data\.jsonl:50: and 47 more such lines, this is the last$")
        self.write([{"prompt": "ab", "completion": "c"}, {"prompt": "abcdefgh", "completion": "c"}])
        self.assertRegex(self.refused("--data", self.data, "--exact-match", "--train-on-prompt", "true", "--max-length", "5"),
                         r"data\.jsonl: 1 of 2 examples have no answer within data\.max_length")
        self.write([{"prompt": "abcdefgh", "completion": "c"}, {"prompt": "ab", "completion": "c"}, {"prompt": "ab", "completion": "d"}])
        self.assertRegex(self.refused("--data", self.data, "--exact-match", "--train-on-prompt", "true", "--max-length", "5", "--max-examples", "2"),
                         r"data\.jsonl: 1 of 2 examples have no answer within data\.max_length")
        self.write([{"text": "abc"}])
        self.assertRegex(self.refused("--data", self.data, "--exact-match"), r"plain text has no answers")
        for record in ({"input_ids": [97, 98, 99], "labels": [97, 98, 99]}, {"input_ids": [97, 98, 99], "labels": [-100, 98, 99]}):
            self.write([{"input_ids": [97, 98, 99], "labels": [-100, -100, 99]}, record])
            for options in (("--exact-match",), ("--choices", "b,c")):
                self.assertRegex(self.refused("--data", self.data, *options), r"data\.jsonl:2: labels: all tokens but the first are learned")
        self.write([{"messages": [{"role": "user", "content": "a"}], "choices": ["x", "y"], "answer": 0}])
        self.assertRegex(self.refused("--data", self.data, "--raw"), r"data\.jsonl:1: messages: --raw has no effect on a chat")
        self.assertRegex(self.refused("--data", self.data, "--train-on-prompt", "true"), r"on which --train-on-prompt has no effect")

    def test_in_an_adapter_that_is_not_finite_are_named(self):
        broken = trained_adapter(ADAPTERS / "all_linear", self.path / "broken", 1, spread=float("nan"))
        self.write(completions(3))
        complaint = "the output of `broken` is not finite: the model's weights or the adapter's hold NaN or infinity"
        options = ("--data", self.data, *self.adapters, "--adapter", broken)
        examples = (*options, "--exact-match", "--max-new-tokens", "3", "--choices", "x,y")
        self.write([{**record, "completion": "x"} for record in completions(3)])
        done = self.evaluate(*examples, "--json", "--answers", self.path / "answers.jsonl", expect=1)
        self.assertIn(complaint, done.stderr)
        # The others have their values all the same.
        values = {line["adapter"]: line for line in map(json.loads, done.stdout.splitlines())}
        self.assertEqual(list(values), ["base", "one", "two", "broken"])
        for name in ("loss", "perplexity", "accuracy", "exact_match", "acc", "acc_norm"):
            self.assertEqual([line[name] is None for line in values.values()], [False, False, False, True], name)
        for line in map(json.loads, (self.path / "answers.jsonl").read_text().splitlines()):
            self.assertEqual(line.get("exact_match", line.get("choice")) is None, line["adapter"] == "broken", line)
        self.assertRegex(self.evaluate(*examples, expect=1).stdout, r"broken +not finite\n")
        self.write([{"question": "a", "choices": ["x", "y"], "answer": 0}])
        done = self.evaluate(*options, expect=1)
        self.assertIn(complaint, done.stderr)
        self.assertRegex(done.stdout, r"acc +base +[\d.]+%[^\n]*\n")

    def test_in_compressed_questions_name_the_file(self):
        whole = gzip.compress("".join(json.dumps({"question": str(number), "choices": ["x", "y"], "answer": 0}) + "\n"
                                      for number in range(20_000)).encode())
        path = self.path / "cut.jsonl.gz"
        path.write_bytes(whole[:len(whole) // 2])
        self.assertRegex(self.refused("--data", path, "--raw"), r"cut\.jsonl\.gz: the gzip data end early, after \d+ bytes of content: the file was cut off")

    def test_an_interruption_leaves_the_old_answers(self):
        self.write([{"prompt": "x" * 400, "completion": "y" * 100}] * 3000)
        answers = self.path / "answers.jsonl"
        answers.write_text(old := '{"data": "old"}\n')
        process = self.start_program("evaluate", "--model", self.model, "--dtype", "f64", "--data", self.data, "--exact-match",
                                     "--answers", answers)
        while not any(path.name != "answers.jsonl" for path in self.path.glob("*answers*")) and process.poll() is None:
            time.sleep(0.02)
        # Both at the same moment: the second ends it at once.
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        process.communicate()
        self.assertIn(process.returncode, (-signal.SIGINT, -signal.SIGTERM))
        self.assertEqual(answers.read_text(), old)
        self.assertEqual(list(self.path.glob("*answers*")), [answers])


if __name__ == "__main__":
    unittest.main(verbosity=2)
