#!/usr/bin/env python3
"""cotune data: every format's tokens with the learned ones marked, and what it refuses. pyarrow writes Parquet where it is installed.

    COTUNE=build/cotune python3 tests/cli/data_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

import needs
from program import ProgramTest
from terminal_screen import TerminalProgram
from tiny_models import copy_model, make_special

if needs.is_here("pyarrow"):
    import pyarrow
    import pyarrow.parquet

CHAT = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "3", "weight": 0},
        {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "2"}]
RECORDS = {
    "chats": {"messages": CHAT},
    "completions": {"prompt": "1+1=", "completion": "2"},
    "instructions": {"instruction": "Add.", "input": "1 1", "output": "2"},
    "texts": {"text": "1+1=2"},
    "tokens": {"input_ids": [49, 43, 50], "labels": [-100, -100, 50]},
}
# The model's end-of-text token is the character \x02.
SHOWN = {
    "chats": "<user>1+1?\n<assistant>3\n<user>Sure?\n<assistant>⟦2\n⟧",
    "completions": "1+1=⟦2\\x02⟧",
    "texts": "1⟦+1=2\\x02⟧",
    "tokens": "1+⟦2⟧",
}


class Data(ProgramTest):
    def setUp(self):
        super().setUp()
        copy_model(self.path / "model")
        for name, record in RECORDS.items():
            (self.path / f"{name}.jsonl").write_text((json.dumps(record) + "\n") * 3)

    def write_jobs(self, *data):
        path = self.path / "data.yaml"
        path.write_text("cotune: 1\nmodel: {path: model}\njobs:\n" +
                        "".join(f"  - {{name: job{i}, data: {{{text}}}}}\n" for i, text in enumerate(data)))
        return path

    def shown(self, *options, **more):
        return self.run_program("data", *options, **more).stdout

    def test_marks_what_is_learned_in_every_format(self):
        for name, wanted in SHOWN.items():
            text = self.shown(self.write_jobs(f"train: {name}.jsonl"), "--count", "1")
            self.assertIn(f"--- {self.path}/{name}.jsonl:1: ", text)
            self.assertIn(f"\n{wanted}\n", text)
            self.assertIn("train:    3 examples", text)
        text = self.shown(self.write_jobs("train: instructions.jsonl"), "--count", "1")
        self.assertIn("### Instruction:\nAdd.\n\n### Input:\n1 1\n\n### Response:\n⟦2\\x02⟧\n", text)
        text = self.shown(self.write_jobs("train: completions.jsonl, train_on_prompt: true"), "--count", "1")
        self.assertIn("\n1⟦+1=2\\x02⟧\n", text)

    def test_marks_in_colour_on_a_terminal_that_has_it_where_it_is_wished(self):
        jobs = self.write_jobs("train: texts.jsonl")
        for environment, is_coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            with self.subTest(environment):
                program = TerminalProgram(self.command("data", jobs, "--count", "1"), **{"NO_COLOR": "", **environment})
                self.addCleanup(program.close)
                self.assertEqual(program.end(), 0)
                self.assertEqual(SHOWN["texts"] in program.screen.normal, not is_coloured)
                self.assertEqual("32" in program.screen.normal_styles, is_coloured)

    def test_shows_tokens_and_cuts_as_training_does(self):
        text = self.shown(self.write_jobs("train: completions.jsonl"), "--count", "1", "--tokens")
        self.assertIn("\n49 43 49 61 50* 2*\n", text)
        text = self.shown(self.write_jobs("train: completions.jsonl, max_length: 4, truncation: left"), "--count", "1")
        self.assertIn("\n1=⟦2\\x02⟧\n", text)
        self.assertIn("3 records, 3 truncated", text)

    def test_rows_that_are_too_long_are_told_from_malformed_ones(self):
        jobs = self.write_jobs("train: completions.jsonl, max_length: 4, truncation: error")
        with open(self.path / "completions.jsonl", "a") as file:
            file.write('{"prompt": 3, "completion": ""}\n')
        done = self.run_program("data", jobs, expect=2)
        self.assertIn("completions.jsonl: 4 records, 1 malformed, 3 too long\n", done.stdout)
        self.assertRegex(done.stderr, r"completions\.jsonl:1: 6 tokens, more than max_length 4")

    def test_padding_is_left_out(self):
        record = {"input_ids": [0, 0, 49, 43, 50], "labels": [-100, -100, -100, -100, 50], "attention_mask": [0, 0, 1, 1, 1]}
        (self.path / "padded.jsonl").write_text((json.dumps(record) + "\n") * 3)
        text = self.shown(self.write_jobs("train: padded.jsonl"), "--count", "1")
        self.assertIn("padded.jsonl: 3 records, 3 without their padding\n", text)
        self.assertIn(f"\n{SHOWN['tokens']}\n", text)

    @needs.required("pyarrow")
    def test_padding_of_parquet_is_left_out(self):
        column = pyarrow.array([[0, 1, 1, 1], None], pyarrow.list_(pyarrow.int8()))
        table = pyarrow.table({"input_ids": [[0, 49, 43, 50], [49, 43, 50]], "labels": [[-100, -100, -100, 50], [-100, -100, 50]],
                               "attention_mask": column})
        pyarrow.parquet.write_table(table, self.path / "padded.parquet")
        text = self.shown(self.write_jobs("train: padded.parquet"))
        self.assertIn("padded.parquet: 2 records, 1 without their padding\n", text)
        self.assertEqual(text.count(f"\n{SHOWN['tokens']}\n"), 2)

    def test_tokens_that_the_model_does_not_have_are_named_in_their_record(self):
        size = json.loads((self.path / "model" / "config.json").read_text())["vocab_size"]
        (self.path / "tokens.jsonl").write_text(json.dumps({"input_ids": [49, 999], "labels": [-100, 999]}) + "\n")
        errors = self.run_program("data", self.write_jobs("train: tokens.jsonl"), expect=2).stderr
        accepted = f"found 999; accepted: 0 to {size - 1}, the model's vocabulary\n"
        self.assertIn(f"tokens.jsonl:1: input_ids[1]: {accepted}", errors)
        record = {"input_ids": [0, 49, 999], "labels": [-100, -100, 999], "attention_mask": [0, 1, 1]}
        (self.path / "tokens.jsonl").write_text(json.dumps(record) + "\n")
        errors = self.run_program("data", self.write_jobs("train: tokens.jsonl"), expect=2).stderr
        self.assertIn(f"tokens.jsonl:1: input_ids: {accepted}", errors)

    def test_texts_of_special_tokens_are_told_wherever_data_are_read_and_parsed_where_that_is_wished(self):
        make_special(self.path / "model", "~")
        (self.path / "rendered.jsonl").write_text('{"text": "a~b"}\n{"text": "ab"}\n')
        warning = (f"{self.path}/rendered.jsonl: 1 of 2 records hold texts of special tokens, such as `~`, which are plain characters here: "
                   "`data.special_tokens: parsed` (evaluate: `--special-tokens parsed`) reads them as tokens")
        jobs = self.write_jobs("train: rendered.jsonl")
        for time in ("now", "before"):
            shown = self.shown(jobs)
            self.assertIn(f"tokenized {time}", shown)
            self.assertIn(f"  warning: {warning}\n", shown)
        self.assertEqual(self.run_program("train", jobs, "--check").stdout.count(f"warning: {warning}"), 1)
        shown = self.run_program("train", jobs, "--output-dir", self.path / "run").stdout
        self.assertEqual(shown.count(f"job `job0`: {warning}"), 1)
        parsed = self.shown(self.write_jobs("train: rendered.jsonl, special_tokens: parsed"))
        self.assertNotIn("warning", parsed)
        self.assertIn("\na⟦~b\\x02⟧\n", parsed)
        errors = self.run_program("data", self.write_jobs("train: chats.jsonl, special_tokens: parsed"), expect=2).stderr
        self.assertIn("jobs[0].data.special_tokens: has no effect: the job's data hold no texts", errors)

    def test_refuses_options_of_a_run(self):
        errors = self.run_program("data", self.write_jobs("train: texts.jsonl"), "--set", "run.memory=8GiB", expect=2).stderr
        self.assertIn("--set: run.memory: has no effect on `cotune data`, which reads of `run` run.data_cache, run.data_cache_gib, run.threads", errors)

    def test_shows_one_job_and_so_many_examples(self):
        jobs = self.write_jobs("train: texts.jsonl", "train: tokens.jsonl")
        text = self.shown(jobs, "--job", "job1", "--count", "2")
        self.assertNotIn("job0", text)
        self.assertEqual(text.count("--- "), 2)
        self.assertEqual(self.shown(jobs, "--count", "0").count("--- "), 0)
        errors = self.run_program("data", jobs, "--job", "jobb", expect=2).stderr
        self.assertIn("--job: no job is called `jobb`; there are job0, job1", errors)

    def test_shows_held_out_examples_and_says_where_there_are_none(self):
        jobs = self.write_jobs("train: texts.jsonl, eval: completions.jsonl", "train: tokens.jsonl")
        text = self.shown(jobs, "--eval")
        self.assertEqual(text.count("completions.jsonl:"), 3 + 1)
        self.assertNotIn("texts.jsonl:1: ", text)
        self.assertRegex(text, r"job job1\n(  .*\n)*  holds out no examples\n")
        errors = self.run_program("data", jobs, "--eval", "--job", "job1", expect=2).stderr
        self.assertRegex(errors, r"--eval: the job holds out no examples; `data\.eval` or `data\.eval_fraction`")
        errors = self.run_program("data", jobs, "--tokens", "--count", "0", expect=2).stderr
        self.assertIn("--count: 0 shows no example", errors)

    def test_names_the_lines_that_are_wrong_and_shows_the_others(self):
        with open(self.path / "texts.jsonl", "a") as file:
            file.write('{"text": 3}\n')
        done = self.run_program("data", self.write_jobs("train: texts.jsonl"), expect=2)
        self.assertIn("texts.jsonl: 4 records, 1 malformed", done.stdout)
        self.assertIn(f"\n{SHOWN['texts']}\n", done.stdout)
        self.assertRegex(done.stderr, r"texts\.jsonl:4: text: expected a string, found the number 3")

    def test_without_a_tokenizer_it_is_what_chats_miss_first(self):
        (self.path / "model" / "tokenizer.json").unlink()
        (self.path / "model" / "tokenizer_config.json").unlink()
        errors = self.run_program("data", self.write_jobs("train: chats.jsonl", "train: texts.jsonl"), expect=2).stderr
        self.assertRegex(errors, r"^\S+data\.yaml:2: model\.path: \S+model: has no tokenizer\.json, which text needs[^\n]*\n$")

    def test_without_a_chat_template_chats_are_refused(self):
        (self.path / "model" / "tokenizer_config.json").unlink()
        errors = self.run_program("data", self.write_jobs("train: chats.jsonl"), expect=2).stderr
        self.assertRegex(errors, r"chats\.jsonl:1: messages: the model has no chat template; set data\.chat_template")


if __name__ == "__main__":
    unittest.main(verbosity=2)
