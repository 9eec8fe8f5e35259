#!/usr/bin/env python3
"""cotune generate through its command line: against transformers' continuations, and what it refuses. Standard library only.

    COTUNE=build/cotune python3 tests/cli/generate_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

from generations import Generates
from tiny_models import ROOT, copy_model, text_of

ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"
KNOWN = [case for case in json.loads((ROOT / "tests/engine/data/generation.json").read_text()) if case["model"] == "smollm2"]
QUESTION = "What is it?"


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


class Mistakes(Generates):
    def test_in_options_are_named_with_what_is_accepted(self):
        for options, wanted in (
                (("--dtype", "foo"), r"--dtype: must be one of auto, float32, bfloat16, float64, got foo"),
                (("--device", "tpu"), r"--device: must be one of auto, cpu, cuda, emulated:FILE, got tpu"),
                (("--device", "emulated:x.json"), r"--device: .*an emulated device computes no answer"),
                (("--temperature", "0", "--seed", "1"), r"--temperature: 0 .*no effect"),
                (("--temperature", "-1"), r"--temperature.*-1"),
                (("--temperature", "nan"), r"--temperature: must be a number from 0 to 100, got nan"),
                (("--top-p", "nan"), r"--top-p: must be a number from 1e-06 to 1, got nan"),
                (("--temperature", "1", "--seed", "-1"), r"--seed: .*-1"),
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
