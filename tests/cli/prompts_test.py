#!/usr/bin/env python3
"""cotune generate --prompts: a file of prompts, answered together. Standard library only.

    COTUNE=build/cotune python3 tests/cli/prompts_test.py [UNITTEST OPTIONS]
"""
import fcntl
import gzip
import json
import os
import pathlib
import shutil
import signal
import time
import unittest

from generations import Generates, trained_adapter
from tiny_models import ROOT, make_special

ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"
RECORDS = [
    {"id": "a", "prompt": "What is it?"},
    {"id": "b", "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "One?"},
                             {"role": "assistant", "content": "the reference"}]},
    {"id": "c", "conversations": [{"from": "human", "value": "Two?"}], "own": {"field": [1]}},
    {"id": "d", "instruction": "Count.", "input": "to three", "output": "1 2 3"},
    *({"id": str(number), "prompt": "x" * (1 + 7 * number)} for number in range(9)),
]


class Prompts(Generates):
    def setUp(self):
        super().setUp()
        self.prompts = self.path / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
        self.adapters = [trained_adapter(ADAPTERS / "all_linear", self.path / "trained", 1)]

    def answers(self, *options, **more):
        return [json.loads(line) for line in self.generate("--prompts", self.prompts, *options, **more).stdout.splitlines()]

    def many(self, *options, samples=2):
        """Answers in an order other than that of their prompts."""
        return self.answers(*self.options_of_many(samples), *options)

    def options_of_many(self, samples):
        return ("--adapter", "base", "--adapter", f"one={self.adapters[0]}", "--max-new-tokens", "9", "--samples", str(samples),
                "--temperature", "2", "--stop", "a", "--stop", "q")


class Answers(Prompts):
    def test_stand_in_order_with_the_fields_of_their_prompts(self):
        answers = self.answers("--max-new-tokens", "4")
        self.assertEqual([answer["index"] for answer in answers], list(range(len(RECORDS))))
        for answer, record in zip(answers, RECORDS):
            self.assertEqual({name: answer[name] for name in record}, record)
            self.assertEqual((answer["adapter"], answer["sample"], answer["stop"]), ("base", 0, "max_new_tokens"))

    def test_are_those_to_the_same_prompts_one_by_one(self):
        answers = self.answers("--max-new-tokens", "6", "--at-once", "3")
        for index, options in ((0, ("--prompt", "What is it?")), (1, ("--system", "Short.", "--prompt", "One?")), (2, ("--prompt", "Two?")),
                               (7, ("--prompt", "x" * 22))):
            alone = self.answer("--max-new-tokens", "6", *options)
            self.assertEqual((answers[index]["text"], answers[index]["prompt_tokens"]), (alone["text"], alone["prompt_tokens"]))
        self.prompts.write_text("".join(json.dumps(RECORDS[index]) + "\n" for index in (0, 3)))
        raw = self.answers("--max-new-tokens", "6", "--raw")
        self.assertEqual(raw[0]["text"], self.answer("--max-new-tokens", "6", "--raw", "--prompt", "What is it?")["text"])
        self.assertEqual(raw[1]["text"], answers[3]["text"])  # as it is in any case

    def test_follow_a_system_message_unless_they_have_their_own(self):
        self.prompts.write_text("".join(json.dumps(record) + "\n" for record in (
            {"prompt": "One?"}, {"messages": [{"role": "user", "content": "One?"}]}, {"conversations": [{"from": "human", "value": "One?"}]},
            {"messages": [{"role": "system", "content": "Long."}, {"role": "user", "content": "One?"}]})))
        *short, long = self.answers("--max-new-tokens", "6", "--system", "Short.")
        wanted = self.answer("--max-new-tokens", "6", "--system", "Short.", "--prompt", "One?")
        self.assertEqual([(answer["text"], answer["prompt_tokens"]) for answer in short], 3 * [(wanted["text"], wanted["prompt_tokens"])])
        self.assertEqual(long["text"], self.answer("--max-new-tokens", "6", "--system", "Long.", "--prompt", "One?")["text"])

    def test_come_to_questions_by_other_names(self):
        records = [{"question": "What is it?", "answer": "1"}, {"query": "What is it?"}, {"problem": "What is it?", "solution": "1"}]
        self.prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
        answers = self.answers("--max-new-tokens", "6", "--system", "Short.")
        wanted = self.answer("--max-new-tokens", "6", "--system", "Short.", "--prompt", "What is it?")
        self.assertEqual([answer["text"] for answer in answers], 3 * [wanted["text"]])
        self.assertEqual([{name: answer[name] for name in record} for answer, record in zip(answers, records)], records)

    def test_go_on_with_texts_as_they_are_when_told_so(self):
        self.prompts.write_text('{"id": 1, "text": "What is it?"}\n')
        (answer,) = self.answers("--max-new-tokens", "6", "--raw")
        self.assertEqual((answer["id"], answer["prompt"]), (1, "What is it?"))
        self.assertEqual(answer["text"], self.answer("--max-new-tokens", "6", "--raw", "--prompt", "What is it?")["text"])

    def test_come_to_the_last_of_several_turns(self):
        turns = [("user", "One?"), ("assistant", "1."), ("user", "Two?"), ("assistant", "2."), ("user", "Three?")]
        messages = [{"role": role, "content": content} for role, content in turns]
        self.prompts.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"prompt": messages}) + "\n"
                                + json.dumps({"messages": [*messages, {"role": "assistant", "content": "3."}]}) + "\n")
        prompt = "".join(f"<{role}>{content}\n" for role, content in turns) + "<assistant>"
        wanted = self.answer("--max-new-tokens", "6", "--raw", "--prompt", prompt)
        self.assertEqual([(answer["text"], answer["prompt_tokens"]) for answer in self.answers("--max-new-tokens", "6")],
                         3 * [(wanted["text"], wanted["prompt_tokens"])])

    def test_tell_of_texts_of_special_tokens_that_are_plain_characters(self):
        make_special(self.path / "model", "~")
        self.prompts.write_text('{"prompt": "a~b"}\n{"prompt": "ab"}\n{"messages": [{"role": "user", "content": "~"}]}\n')
        done = self.generate("--prompts", self.prompts, "--max-new-tokens", "1")
        self.assertIn(f"{self.prompts}: 1 of 3 prompts hold texts of special tokens, such as `~`, which are plain characters here: ", done.stderr)

    def test_leave_out_what_they_have_themselves_and_say_so_once(self):
        self.prompts.write_text('{"index": 7, "prompt": "x", "stop": "no", "own": 1}\n{"index": 8, "prompt": "y", "own": 2}\n')
        output = self.path / "answers.jsonl"
        done = self.generate("--prompts", self.prompts, "--max-new-tokens", "2", "--output", output)
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual([(answer["index"], answer["own"], answer["stop"]) for answer in answers], [(0, 1, "max_new_tokens"), (1, 2, "max_new_tokens")])
        for line in ("the field index of 2 of its 2 records is not carried along", "the field stop of 1 of its 2 records is not carried along"):
            self.assertEqual(done.stderr.count(line), 1, done.stderr)
        self.assertEqual(done.stderr.count("is not carried along"), 2)
        done = self.generate("--prompts", self.prompts, "--max-new-tokens", "2", "--output", output, "--resume")
        self.assertIn("all 2 answers are there", done.stderr)

    def test_to_one_prompt_do_not_depend_on_how_many_are_given_at_once(self):
        def samples(*options):
            done = self.generate("--json", "--prompt", "What is it?", "--samples", "7", "--max-new-tokens", "6", *options)
            return [json.loads(line)["tokens"] for line in done.stdout.splitlines()]
        wanted = samples()
        self.assertEqual(len(wanted), 7)
        self.assertEqual(samples("--at-once", "1"), wanted)
        self.assertEqual(samples("--at-once", "3"), wanted)

    def test_do_not_depend_on_how_many_are_given_at_once(self):
        wanted = self.many()
        self.assertEqual([(a["index"], a["adapter"], a["sample"]) for a in wanted],
                         [(i, name, s) for i in range(len(RECORDS)) for name in ("base", "one") for s in (0, 1)])
        self.assertLessEqual({"stop_text", "max_new_tokens"}, {answer["stop"] for answer in wanted})
        self.assertGreater(len({answer["text"] for answer in wanted}), 30)
        self.assertEqual(self.many("--at-once", "1"), wanted)
        self.assertEqual(self.many("--at-once", "5"), wanted)
        self.assertNotEqual(self.many("--seed", "1"), wanted)

    def test_come_to_plain_text_a_prompt_a_line(self):
        self.prompts = self.path / "prompts.txt"
        self.prompts.write_text("What is it?\n\n{Two?\n")
        answers = self.answers("--max-new-tokens", "4")
        self.assertEqual([answer["prompt"] for answer in answers], ["What is it?", "{Two?"])

    def test_that_are_missing_in_a_file_are_given_and_the_rest_is_left(self):
        wanted = self.many()
        output = self.path / "answers.jsonl"
        self.many("--output", output)
        whole = output.read_text()
        self.assertEqual([json.loads(line) for line in whole.splitlines()], wanted)
        lines = whole.splitlines(keepends=True)
        output.write_text("".join(lines[1:9:2] + lines[3:2:-1]) + lines[20][:-9])  # out of order, one torn
        errors = self.generate("--prompts", self.prompts, "--output", output, expect=2).stderr
        self.assertRegex(errors, r"answers\.jsonl: is there already: --resume .*--overwrite")
        self.many("--output", output, "--resume")
        self.assertEqual(output.read_text(), whole)
        done = self.generate("--prompts", self.prompts, "--output", output, "--resume", *self.options_of_many(2))
        self.assertIn("all 52 answers are there", done.stderr)
        self.assertEqual(output.read_text(), whole)
        more = self.many(samples=3)
        self.many("--output", output, "--resume", samples=3)
        self.assertEqual([json.loads(line) for line in output.read_text().splitlines()], more)
        output.write_text("mine\n")
        errors = self.generate("--prompts", self.prompts, "--output", output, "--overwrite", expect=2).stderr
        self.assertIn("answers.jsonl is there, and is not answers of this command: only such a file is replaced", errors)
        self.assertEqual(output.read_text(), "mine\n")
        output.write_text(lines[3])
        self.many("--output", output, "--overwrite")
        self.assertEqual(output.read_text(), whole)
        for torn in ("", "{", lines[0][:14], lines[0][:-1], whole + lines[0][:20]):
            output.write_text(torn)
            self.many("--output", output, "--resume")
            self.assertEqual(output.read_text(), whole)

    def test_come_to_a_file_that_a_link_leads_to_whatever_its_name(self):
        folder = os.fsdecode(os.fsencode(self.path) + b"/caf\xe9")  # no UTF-8
        os.mkdir(folder)
        adapter = os.path.join(folder, "ad\udce9")
        shutil.copytree(self.adapters[0], adapter)
        target, output = pathlib.Path(folder) / "answers.jsonl", self.path / "answers.jsonl"
        output.symlink_to(target)
        options = ("--prompts", self.prompts, "--output", output, "--adapter", adapter, "--stop", os.fsdecode(b"\xff"),
                   "--max-new-tokens", "3")
        self.generate(*options, errors="replace")  # messages have the names' own bytes
        whole = target.read_text()
        lines = whole.splitlines(keepends=True)
        self.assertEqual([json.loads(line)["adapter"] for line in lines], ["ad\ufffd"] * len(RECORDS))
        target.write_text("".join(lines[1:4] + lines[:1]))  # out of order, so that the file is replaced in the end
        target.chmod(0o600)
        self.generate(*options, "--resume", errors="replace")
        self.assertEqual(target.read_text(), whole)
        self.assertTrue(output.is_symlink())
        self.assertEqual(target.stat().st_mode & 0o777, 0o600)

    def test_that_were_not_finite_are_given_anew(self):
        output = self.path / "answers.jsonl"
        self.many("--output", output)
        whole = output.read_text()
        lines = [json.loads(line) for line in whole.splitlines()]
        lines[3].update(text="", stop="not_finite", new_tokens=0)
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.many("--output", output, "--resume")
        self.assertEqual([json.loads(line) for line in output.read_text().splitlines()], [json.loads(line) for line in whole.splitlines()])

    def test_outlive_the_program(self):
        """Killed in the middle, what was answered is there, and --resume gives the rest."""
        output = self.path / "answers.jsonl"
        self.prompts.write_text("".join(json.dumps({"prompt": "x" * (number % 50)}) + "\n" for number in range(150)))
        command = ("generate", "--model", self.model, "--dtype", "f64", "--prompts", self.prompts, "--output", output,
                   "--max-new-tokens", "30", "--at-once", "4")
        for ending, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
            process = self.start_program(*command, *(("--resume",) if output.exists() else ()))
            before = len(output.read_text().splitlines()) if output.exists() else 0
            while process.poll() is None and (not output.exists() or len(output.read_text().splitlines()) < before + 8):
                time.sleep(0.02)
            process.send_signal(ending)
            _, errors = process.communicate()
            self.assertEqual(process.returncode, status, errors)
            self.assertGreaterEqual(len(output.read_text().splitlines()), before + 8)
        self.assertIn(b"interrupted: ", errors)
        self.run_program(*command, "--resume")
        answers = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual([answer["index"] for answer in answers], list(range(150)))


class Mistakes(Prompts):
    def test_in_prompts_are_all_named_before_anything_is_answered(self):
        self.prompts.write_text('{"prompt": "x"}\n{"prompt": 3}\n{"text": "x"}\n{"own": "x", "stop": 1}\nno\n'
                                + json.dumps({"prompt": "x" * 600}) + '\n{"messages": [{"role": "assistant", "content": "x"}]}\n')
        output = self.path / "answers.jsonl"
        kept = '{"index": 0}\n'
        output.write_text(kept)
        errors = self.refused("--prompts", self.prompts, "--output", output, "--overwrite")
        for wanted in (r"prompts\.jsonl:2: prompt: expected a string, found the number 3",
                       r"prompts\.jsonl:3: text: goes on as it stands under --raw alone; .* is a `prompt`",
                       r"prompts\.jsonl:4: expected the field messages, conversations, prompt, instruction, question, query, problem or text; "
                       "found own, stop",
                       r"prompts\.jsonl:5: ", r"prompts\.jsonl:6: the prompt has \d+ tokens; the model's context holds 512",
                       r"prompts\.jsonl:7: messages: nothing is asked"):
            self.assertRegex(errors, wanted)
        self.assertEqual(output.read_text(), kept)
        errors = self.refused("--prompts", self.prompts, "--output", self.path / "none" / "x")
        self.assertRegex(errors, r"none/x: there is no folder .*/none\n")
        self.prompts.write_text("\n")
        self.assertRegex(self.refused("--prompts", self.prompts), r"prompts\.jsonl: holds no prompts")
        self.assertRegex(self.refused("--prompts", self.path), r"is not a regular file")

    def test_in_many_prompts_are_counted(self):
        self.prompts.write_text('{"prompt": 3}\n' * 40 + '{"prompt": "x"}\n')
        errors = self.refused("--prompts", self.prompts)
        self.assertEqual(errors.count("prompt: expected a string"), 3)
        self.assertIn("prompts.jsonl:40: and 37 more such lines, this is the last", errors)
        broken = gzip.compress(self.prompts.read_bytes() * 100)
        self.prompts.write_bytes(broken[:len(broken) // 2])
        self.refused("--prompts", self.prompts)

    def test_in_a_file_that_is_resumed(self):
        output = self.path / "answers.jsonl"
        self.many("--output", output)
        self.prompts.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[1:]))
        resume = ("--prompts", self.prompts, "--output", output, "--resume")
        self.assertRegex(self.refused(*resume, "--adapter", f"one={self.adapters[0]}"),
                         r"answers\.jsonl:1: adapter: expected one, found `base`")
        self.assertRegex(self.refused(*resume, *self.options_of_many(2)),
                         r"answers\.jsonl:1: answers another prompt than the one numbered 0")
        for foreign in ("{}\n", "my notes", '{"index": 0, "prompt": "x"}', '{"index":0,"prompt":"x"}', '{"messages": [', "[]"):
            output.write_text(foreign)
            self.assertRegex(self.refused(*resume), r"answers\.jsonl:1: is no answer of `cotune generate --prompts`")
            self.assertEqual(output.read_text(), foreign)

    def test_in_what_is_asked_of_a_file_that_is_resumed(self):
        output = self.path / "answers.jsonl"
        self.many("--output", output)
        whole = output.read_text()
        self.assertRegex(self.refused("--prompts", self.prompts, "--output", output, "--resume", *self.options_of_many(1)),
                         r"answers\.jsonl:2: is sample 1 of an answer to prompt 0 \(both from 0\), of 1 sample and 13 prompts that are asked for")
        self.prompts.write_text("".join(json.dumps(record) + "\n" for record in RECORDS[:2]))
        self.assertRegex(self.refused("--prompts", self.prompts, "--output", output, "--resume", *self.options_of_many(2)),
                         r"answers\.jsonl:9: is sample 0 of an answer to prompt 2 .* 2 samples and 2 prompts")
        self.assertEqual(output.read_text(), whole)

    def test_in_options_other_than_those_that_a_file_was_begun_with(self):
        output = self.path / "answers.jsonl"
        self.many("--output", output)
        whole = output.read_text()
        output.write_text("".join(whole.splitlines(keepends=True)[:-3]))
        part = output.read_text()
        begun = ("--prompts", self.prompts, "--output", output, "--resume", *self.options_of_many(2))
        for option, value, before in (("--temperature", "1.5", "2.0"), ("--max-new-tokens", "8", "9"), ("--seed", "3", "0"), ("--top-k", "5", "0"),
                                      ("--top-p", "0.5", "1.0"), ("--min-p", "0.1", "0.0"), ("--repetition-penalty", "1.5", "1.0")):
            shown = value if "." in value else str(int(value))
            errors = self.refused(*begun, option, value) if option not in begun else self.refused(
                *(value if begun[at - 1] == option else each for at, each in enumerate(begun)))
            self.assertIn(f"answers.jsonl: was begun with {option} {before}, found {shown}; pass what it was begun with", errors)
        self.assertIn('--stop ["a","q"], found ["a","q","z"]', self.refused(*begun, "--stop", "z"))
        errors = self.run_program("generate", "--model", self.model, "--dtype", "f32", *begun, expect=2).stderr
        self.assertIn("--dtype float64, found float32", errors)
        (self.path / "again").mkdir()
        other = self.path / "again" / "model"
        shutil.copytree(self.model, other)
        self.assertRegex(self.refused(*begun, "--model", other, model=False), r"--model \S+/model, found \S+/again/model;")
        other = trained_adapter(ADAPTERS / "all_linear", self.path / "trained-again", 2)
        self.assertRegex(self.refused(*(f"one={other}" if each == f"one={self.adapters[0]}" else each for each in begun)),
                         r"was begun with --adapter one as it was in \S+/trained, found other files in \S+/trained-again;")
        self.assertEqual(output.read_text(), part)
        copy = shutil.copytree(self.adapters[0], self.path / "moved")  # the same adapter
        self.generate(*(f"one={copy}" if each == f"one={self.adapters[0]}" else each for each in begun), "--at-once", "2", "--threads", "1")
        self.assertEqual(output.read_text(), whole)

    def test_in_what_a_file_was_begun_with(self):
        """Where that was lost, it is said; where it is damaged, nothing goes on."""
        output, options = self.path / "answers.jsonl", self.path / "answers.jsonl.options.json"
        self.many("--output", output)
        begun = ("--prompts", self.prompts, "--output", output, "--resume", *self.options_of_many(2))
        kept, whole = options.read_text(), output.read_text()
        options.write_text("[]")
        self.assertRegex(self.refused(*begun), r"answers\.jsonl\.options\.json: does not say what \S+answers\.jsonl was made with")
        options.unlink()
        output.write_text("".join(whole.splitlines(keepends=True)[1:]))
        self.assertIn("whether the answers in", self.generate(*begun).stderr)
        self.assertEqual((output.read_text(), options.read_text()), (whole, kept))
        # Of a further adapter answers come beside those that are there.
        more = trained_adapter(ADAPTERS / "all_linear", self.path / "more", 2)
        self.generate(*begun, "--adapter", f"two={more}")
        self.assertEqual(len(output.read_text().splitlines()), 3 * len(whole.splitlines()) // 2)
        self.assertEqual(set(json.loads(options.read_text())["adapters"]), {"base", "one", "two"})

    def test_that_two_make_of_one_file(self):
        output = self.path / "answers.jsonl"
        output.write_text("")
        with output.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for option in ("--resume", "--overwrite"):
                self.assertRegex(self.refused("--prompts", self.prompts, "--output", output, option),
                                 r"answers\.jsonl: another process is writing it")
        self.assertEqual(len(self.generate("--prompts", self.prompts, "--max-new-tokens", "2", "--output", output, "--resume").stdout), 0)
        self.assertEqual(len(output.read_text().splitlines()), len(RECORDS))

    def test_in_options_that_would_have_no_effect_on_a_record(self):
        self.assertRegex(self.refused("--prompts", self.prompts, "--raw"),
                         r"prompts\.jsonl:2: messages: --raw has no effect on a chat(.|\n)*prompts\.jsonl:3: messages: --raw has no effect")
        self.assertRegex(self.refused("--prompts", self.prompts, "--system", "Short."),
                         r"prompts\.jsonl:4: instruction: --system has no effect on a prompt without a template")

    def test_in_options(self):
        for options, wanted in ((("--resume",), r"--resume requires --output"), (("--json",), r"--prompts excludes --json|--json excludes"),
                                (("--chat",), r"excludes"), (("--at-once", "0"), r"--at-once"),
                                (("--temperature", "0", "--samples", "2"), r"--temperature: 0")):
            self.assertRegex(self.refused("--prompts", self.prompts, *options), wanted)


if __name__ == "__main__":
    unittest.main(verbosity=2)
