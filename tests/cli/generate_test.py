#!/usr/bin/env python3
"""cotune generate through its command line: against transformers' continuations, and what it refuses. Standard library only.

    COTUNE=build/cotune python3 tests/cli/generate_test.py [UNITTEST OPTIONS]
"""
import json
import shutil
import struct
import unittest

from program import ProgramTest
from tiny_models import ROOT, copy_model, text_of

ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"
KNOWN = [case for case in json.loads((ROOT / "tests/engine/data/generation.json").read_text()) if case["model"] == "smollm2"]
QUESTION = "What is it?"


class Generates(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = copy_model(self.path / "model")

    def generate(self, *options, expect=0, stdin=None, model=True, **more):
        """The finished program."""
        where = ("--model", self.model) if model else ()
        return self.run_program("generate", *where, "--dtype", "f64", *options, expect=expect, stdin_text=stdin, **more)

    def answer(self, *options, **more):
        """The JSON of one answer."""
        lines = self.generate("--json", *options, **more).stdout.splitlines()
        self.assertEqual(len(lines), 1, lines)
        return json.loads(lines[0])

    def refused(self, *options, expect=2, **more):
        done = self.generate(*options, expect=expect, **more)
        self.assertLess(len(done.stderr), 1500)
        return done.stderr


class Answers(Generates):
    def test_of_the_base_model_and_of_adapters_are_those_of_transformers(self):
        self.assertGreater(len(KNOWN), 5)
        for case in KNOWN:
            adapter = ("--adapter", ADAPTERS / case["adapter"]) if case["adapter"] else ()
            answer = self.answer("--raw", "--prompt", text_of(case["prompt"]), "--max-new-tokens", "24", *adapter)
            self.assertEqual(answer["tokens"], case["tokens"], case)
            self.assertEqual((answer["text"], answer["stop"]), (text_of(case["tokens"]), "max_new_tokens"))
            self.assertEqual((answer["prompt_tokens"], answer["new_tokens"]), (len(case["prompt"]), 24))

    def test_are_the_same_text_for_people(self):
        case = KNOWN[1]
        done = self.generate("--raw", "--prompt", text_of(case["prompt"]), "--max-new-tokens", "24", text=False)
        self.assertEqual(done.stdout, text_of(case["tokens"]).encode() + b"\n")
        self.assertIn(b"cut off after 24 tokens: --max-new-tokens", done.stderr)

    def test_take_the_chat_template_unless_told_not_to(self):
        raw = self.answer("--raw", "--prompt", f"<user>{QUESTION}\n<assistant>", "--max-new-tokens", "8")
        self.assertEqual(self.answer("--prompt", QUESTION, "--max-new-tokens", "8")["tokens"], raw["tokens"])
        told = self.answer("--raw", "--prompt", f"<system>Short.\n<user>{QUESTION}\n<assistant>", "--max-new-tokens", "8")
        self.assertEqual(self.answer("--prompt", QUESTION, "--system", "Short.", "--max-new-tokens", "8")["tokens"],
                         told["tokens"])
        bare = copy_model(self.path / "bare", template=None)
        plain = self.run_program("generate", "--model", bare, "--dtype", "f64", "--json", "--prompt", QUESTION,
                                 "--max-new-tokens", "8").stdout
        self.assertEqual(json.loads(plain)["tokens"],
                         self.answer("--raw", "--prompt", QUESTION, "--max-new-tokens", "8")["tokens"])

    def test_come_to_prompts_from_files_and_pipes_less_one_newline(self):
        wanted = self.answer("--raw", "--prompt", "ab\n", "--max-new-tokens", "8")["tokens"]
        file = self.path / "prompt.txt"
        file.write_text("ab\n\n")
        self.assertEqual(self.answer("--raw", "--prompt-file", file, "--max-new-tokens", "8")["tokens"], wanted)
        self.assertEqual(self.answer("--raw", "--max-new-tokens", "8", stdin="ab\n\n")["tokens"], wanted)

    def test_of_a_conversation_remember_it(self):
        lines = self.generate("--chat", "--json", "--max-new-tokens", "8", stdin="One?\n\nTwo?\n/new\nOne?\n").stdout.splitlines()
        first, second, again = map(json.loads, lines)
        self.assertEqual(first["tokens"], again["tokens"])
        history = f"<user>One?\n<assistant>{first['text']}\n<user>Two?\n<assistant>"
        self.assertEqual(second["tokens"], self.answer("--raw", "--prompt", history, "--max-new-tokens", "8")["tokens"])
        self.assertEqual(second["prompt_tokens"], len(history))
        self.assertGreater(second["reused_prompt_tokens"], len("<user>One?\n<assistant>"))

    def test_are_drawn_by_the_seed(self):
        def drawn(*options):
            return self.answer("--prompt", QUESTION, "--max-new-tokens", "24", *options)["tokens"]
        first = drawn("--temperature", "1", "--seed", "1")
        self.assertEqual(drawn("--temperature", "1", "--seed", "1"), first)
        self.assertEqual(drawn("--seed", "1"), first)
        self.assertNotEqual(drawn("--temperature", "1", "--seed", "2"), first)
        greedy = drawn()
        self.assertNotEqual(greedy, first)
        self.assertEqual(drawn("--top-k", "1", "--seed", "5"), greedy)
        self.assertEqual(drawn("--top-p", "1e-6"), greedy)

    def test_end_where_the_context_is_full(self):
        answer = self.answer("--raw", "--prompt", "x" * 500, "--max-new-tokens", "100")
        self.assertEqual((answer["stop"], answer["new_tokens"]), ("context_length", 12))


class Folders(Generates):
    """What --adapter may name."""

    def setUp(self):
        super().setUp()
        (self.path / "chats.jsonl").write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i * i}!"}]}) + "\n"
            for i in range(8)))
        self.jobs = self.path / "chats.yaml"
        self.jobs.write_text("cotune: 1\nmodel: {path: model, dtype: float64}\n"
                             "defaults: {data: {train: chats.jsonl}, train: {steps: 2, batch_size: 4, save_steps: 1}}\n"
                             "jobs:\n  - {name: a, adapter: {r: 4}}\n  - {name: b, adapter: {r: 2}}\n")
        self.run = self.path / "run"
        self.run_program("train", self.jobs, "--output-dir", self.run)

    def test_an_adapter_a_job_and_a_run_with_one_job(self):
        def tokens(folder):  # the adapter names its model
            return self.answer("--adapter", folder, "--prompt", "3?", "--max-new-tokens", "8", model=False)["tokens"]
        wanted = tokens(self.run / "jobs" / "a" / "adapter")
        self.assertEqual(tokens(self.run / "jobs" / "a"), wanted)
        errors = self.refused("--adapter", self.run, "--prompt", "3?")
        self.assertRegex(errors, r"run: holds the adapters of 2 jobs: choose one:\n.*/jobs/a\n.*/jobs/b")
        shutil.rmtree(self.run / "jobs" / "b")
        self.assertEqual(tokens(self.run), wanted)
        shutil.rmtree(self.run / "jobs" / "a" / "adapter")  # as of a run that goes on: its latest checkpoint
        self.assertEqual(tokens(self.run / "jobs" / "a"), wanted)

    def test_that_hold_no_adapter_are_refused(self):
        self.assertRegex(self.refused("--adapter", self.path / "none", "--prompt", "x"), r"none: does not exist; a folder with")
        self.assertRegex(self.refused("--adapter", self.jobs, "--prompt", "x"), r"chats\.yaml: is no folder")
        self.assertRegex(self.refused("--adapter", self.model, "--prompt", "x"), r"model: holds no adapter: accepted are")

    def test_with_damaged_adapters_are_refused(self):
        adapter = self.run / "jobs" / "a" / "adapter"
        weights, config = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
        good = weights.read_bytes()
        weights.write_bytes(good[:len(good) // 2])
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_model\.safetensors: ")
        weights.write_bytes(good[:-8] + struct.pack("<d", float("nan")))
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x", expect=1), "output is not finite")
        weights.write_bytes(good)
        text = config.read_text()
        config.write_text(text.replace('"r": 4', '"r": 8'))
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_model\.safetensors: .*lora_A.*shape \[4, 72\], \[8, 72\]")
        config.write_text(text.replace('"use_dora": false', '"use_dora": true'))
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_config\.json: use_dora: is not supported")
        config.write_text("{")
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_config\.json: is not an adapter")
        weights.unlink()
        config.write_text(text)
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_model\.safetensors: cannot open")

    def test_of_another_model_are_refused(self):
        other = copy_model(self.path / "other", "mistral")
        errors = self.run_program("generate", "--model", other, "--adapter", self.run / "jobs" / "a", "--prompt", "x", expect=2).stderr
        self.assertRegex(errors, r"lora_A.*shape \[4, 72\], \[4, 48\] is expected")
        shutil.rmtree(self.model)
        errors = self.refused("--adapter", self.run / "jobs" / "a", "--prompt", "x", model=False)
        self.assertRegex(errors, r"--model: is needed: the adapter in .* is for `.*model`, which is no file or folder here")


class Mistakes(Generates):
    def test_in_options_are_named_with_what_is_accepted(self):
        for options, wanted in (
                (("--dtype", "foo"), r"--dtype: must be one of auto, float32, bfloat16, float64, got foo"),
                (("--device", "tpu"), r"--device: must be one of auto, cpu, cuda, got tpu"),
                (("--temperature", "0", "--seed", "1"), r"--temperature: 0 .*no effect"),
                (("--temperature", "-1"), r"--temperature.*-1"),
                (("--max-new-tokens", "0"), r"--max-new-tokens.*0"),
                (("--chat",), r"--chat excludes --prompt|--prompt excludes --chat"),
                (("--raw", "--system", "x"), r"--raw excludes --system|--system excludes --raw"),
                (("--temprature", "1"), r"`--temprature` was not expected; did you mean `--temperature`\?")):
            self.assertRegex(self.refused("--prompt", QUESTION, *options), wanted)

    def test_in_prompts(self):
        self.assertIn("the prompt is empty", self.refused("--raw", "--prompt", ""))
        self.assertIn("the prompt is empty", self.refused("--raw", stdin="\n"))
        self.assertIn("there is no prompt: standard input is empty", self.refused())
        self.assertIn("the prompt has 600 tokens; the model's context holds 512", self.refused("--raw", "--prompt", "x" * 600))
        self.assertRegex(self.refused("--prompt-file", self.path / "none.txt"), r"none\.txt: cannot open")
        bare = copy_model(self.path / "bare", template=None)
        errors = self.run_program("generate", "--model", bare, "--chat", expect=2).stderr
        self.assertRegex(errors, r"bare: has no chat template, which --chat needs")

    def test_in_models(self):
        self.assertIn("--model: is needed", self.refused("--prompt", "x", model=False))
        errors = self.run_program("generate", "--model", self.path / "none", "--prompt", "x", expect=2).stderr
        self.assertRegex(errors, r"none: no such file or folder; accepted: a Hugging Face model folder or a \.gguf file")
        (self.model / "tokenizer.json").unlink()
        self.assertRegex(self.refused("--prompt", "x"), "no tokenizer")


if __name__ == "__main__":
    unittest.main(verbosity=2)
