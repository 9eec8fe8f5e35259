#!/usr/bin/env python3
"""cotune generate through its command line: against transformers' continuations and, where it is installed, its processors of logits; and
what it refuses.

    COTUNE=build/cotune python3 tests/cli/generate_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

import needs
from generations import Generates, trained_adapter
from tiny_models import ROOT, TEMPLATE, closed_by, copy_model, make_special, text_of

if needs.is_here("transformers"):
    import torch
    from transformers import (AutoModelForCausalLM, LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper,
                              TopPLogitsWarper)

ADAPTERS = ROOT / "tests/engine/data/peft/smollm2"
KNOWN = [case for case in json.loads((ROOT / "tests/engine/data/generation.json").read_text()) if case["model"] == "smollm2"]
QUESTION = "What is it?"
ASKED = "Hello there"  # its answer has a letter that stands nowhere else


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
        for text in ("ab\n\n", "\ufeffab\n\r\n"):  # some editors put a byte order mark before it
            file.write_bytes(text.encode())
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

    def test_of_several_adapters_come_together_and_are_those_of_each_alone(self):
        folders = [trained_adapter(folder, self.path / folder.name, 1) for folder in sorted(ADAPTERS.iterdir())]
        adapters = [option for folder in (*folders, "base", f"again={folders[0]}") for option in ("--adapter", folder)]
        lines = self.generate("--json", "--prompt", QUESTION, "--max-new-tokens", "12", *adapters).stdout.splitlines()
        together = {answer["adapter"]: answer["tokens"] for answer in map(json.loads, lines)}
        self.assertEqual(list(together), [*(folder.name for folder in folders), "base", "again"])
        for folder in folders:
            alone = self.answer("--prompt", QUESTION, "--max-new-tokens", "12", "--adapter", folder)
            self.assertEqual(together[folder.name], alone["tokens"])
        self.assertEqual(together["base"], self.answer("--prompt", QUESTION, "--max-new-tokens", "12")["tokens"])
        self.assertEqual(together["again"], together[folders[0].name])
        blocks = self.generate("--prompt", QUESTION, "--max-new-tokens", "12", *adapters).stdout
        self.assertEqual(blocks, "".join(f"--- {name} ---\n{text_of(tokens)}\n\n" for name, tokens in together.items()))

    def test_end_at_stop_texts_across_tokens(self):
        free = self.answer("--prompt", QUESTION, "--max-new-tokens", "40")["text"]
        for stop in (free[7:10], free[20:21], free[12:30]):
            answer = self.answer("--prompt", QUESTION, "--max-new-tokens", "40", "--stop", stop, "--stop", "never this")
            self.assertEqual((answer["text"], answer["stop"]), (free[:free.index(stop)], "stop_text"))
            shown = self.generate("--prompt", QUESTION, "--max-new-tokens", "40", "--stop", stop).stdout
            self.assertEqual(shown, free[:free.index(stop)] + "\n")

    def test_end_at_the_token_that_closes_them_in_the_chat_template(self):
        free, closing = self.free_answer(ASKED)
        self.model = copy_model(self.path / "closing", template=closed_by(closing))
        make_special(self.model, closing)
        answer = self.answer("--prompt", ASKED, "--max-new-tokens", "40")
        self.assertEqual((answer["text"], answer["stop"]), (free[:free.index(closing)], "stop_token"))

    def test_end_at_special_tokens_among_the_stop_texts(self):
        free, special = self.free_answer(ASKED)
        make_special(self.model, special)
        options = ("--prompt", ASKED, "--max-new-tokens", "40")
        self.assertEqual(self.answer(*options)["text"], free.replace(special, ""))
        answer = self.answer(*options, "--stop", "never this", "--stop", special)
        self.assertEqual((answer["text"], answer["stop"]), (free[:free.index(special)], "stop_text"))
        self.assertEqual(self.generate(*options, "--stop", special).stdout, free[:free.index(special)] + "\n")

    def test_take_another_template_and_end_where_that_one_closes_them(self):
        own = self.path / "own.jinja"
        own.write_text(TEMPLATE.replace("<", "[").replace(">", "]"))
        wanted = self.answer("--raw", "--prompt", f"[system]Short.\n[user]{ASKED}\n[assistant]", "--max-new-tokens", "8")["tokens"]
        options = ("--chat-template", own, "--system", "Short.", "--max-new-tokens", "8")
        self.assertEqual(self.answer("--prompt", ASKED, *options)["tokens"], wanted)
        self.assertEqual(self.answer("--chat", *options, stdin=ASKED + "\n")["tokens"], wanted)
        prompts = self.path / "prompts.txt"
        prompts.write_text(ASKED + "\n")
        self.assertEqual(json.loads(self.generate("--prompts", prompts, *options).stdout)["text"], text_of(wanted))
        free, closing = self.free_answer(ASKED)
        own.write_text(closed_by(closing))
        make_special(self.model, closing)
        answer = self.answer("--prompt", ASKED, "--chat-template", own, "--max-new-tokens", "40")
        self.assertEqual((answer["text"], answer["stop"]), (free[:free.index(closing)], "stop_token"))
        bare = copy_model(self.path / "bare", template=None)
        own.write_text(TEMPLATE)
        shown = self.run_program("generate", "--model", bare, "--dtype", "f64", "--chat-template", own, "--prompt", ASKED,
                                 "--max-new-tokens", "40").stdout
        self.assertEqual(shown, free + "\n")

    def test_in_training_end_at_the_token_that_closes_them_in_the_template_of_the_data(self):
        free, closing = self.free_answer(ASKED)
        make_special(self.model, closing)
        (self.path / "own.jinja").write_text(closed_by(closing))
        chat = {"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "It."}]}
        (self.path / "chats.jsonl").write_text((json.dumps(chat) + "\n") * 4)
        jobs = self.path / "chats.yaml"
        jobs.write_text("cotune: 1\nmodel: {path: model, dtype: float64}\njobs:\n"
                        "  - {name: a, data: {train: chats.jsonl, chat_template: own.jinja}, adapter: {r: 4}, train: {steps: 1}}\n")
        lines = self.run_program("train", jobs, "--output-dir", self.path / "run", "--sample-tokens", "40", "--json").stdout.splitlines()
        first = next(event for event in map(json.loads, lines) if event["event"] == "sample")
        self.assertEqual((first["step"], first["answer"]), (0, free[:free.index(closing)]))

    def test_of_which_there_are_several_are_drawn_with_seeds_of_their_own(self):
        options = ("--prompt", QUESTION, "--max-new-tokens", "12", "--temperature", "1", "--seed", "5")
        lines = self.generate("--json", "--samples", "4", *options).stdout.splitlines()
        answers = [json.loads(line) for line in lines]
        self.assertEqual([answer["sample"] for answer in answers], [0, 1, 2, 3])
        self.assertEqual(len({answer["text"] for answer in answers}), 4)
        self.assertEqual(answers[0]["tokens"], self.answer(*options)["tokens"])
        self.assertIn("--- sample 3 ---\n", self.generate("--samples", "4", *options).stdout)

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


@needs.required("transformers")
class AgainstTransformers(Generates):
    PROMPT = "abcabcab"

    def setUp(self):
        super().setUp()
        self.reference = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float64)
        self.ids = torch.tensor([list(map(ord, self.PROMPT))])

    def test_repetition_penalty_chooses_the_same_tokens(self):
        free = self.answer("--raw", "--prompt", self.PROMPT, "--max-new-tokens", "24")["tokens"]
        others = 0
        for penalty in ("1.2", "3", "10", "0.5"):
            whole = self.reference.generate(input_ids=self.ids, attention_mask=torch.ones_like(self.ids), do_sample=False,
                                            max_new_tokens=24, repetition_penalty=float(penalty), eos_token_id=None, pad_token_id=0)
            wanted = whole[0, self.ids.shape[1]:].tolist()
            found = self.answer("--raw", "--prompt", self.PROMPT, "--max-new-tokens", "24", "--repetition-penalty", penalty)
            self.assertEqual(found["tokens"], wanted[:found["new_tokens"]])
            others += found["tokens"] != free
        self.assertGreaterEqual(others, 2)

    def test_draws_are_from_the_same_tokens(self):
        with torch.no_grad():
            logits = self.reference(input_ids=self.ids).logits[:, -1]
        for options, warpers in ((("--min-p", "0.2"), [MinPLogitsWarper(0.2)]), (("--top-p", "0.6"), [TopPLogitsWarper(0.6)]),
                                 (("--top-k", "7", "--top-p", "0.8", "--min-p", "0.4"),
                                  [TopKLogitsWarper(7), TopPLogitsWarper(0.8), MinPLogitsWarper(0.4)])):
            kept = LogitsProcessorList([TemperatureLogitsWarper(1.5), *warpers])(self.ids, logits.clone())[0].softmax(0)
            lines = self.generate("--json", "--raw", "--prompt", self.PROMPT, "--max-new-tokens", "1", "--samples", "400",
                                  "--temperature", "1.5", *options).stdout.splitlines()
            drawn = [token for line in lines for token in json.loads(line)["tokens"]]
            self.assertLessEqual(set(drawn), set(kept.nonzero().flatten().tolist()), options)
            for token in kept.nonzero().flatten().tolist():
                share, count = kept[token].item(), drawn.count(token)
                self.assertLess(abs(count - len(drawn) * share), 6 * max(1, (len(drawn) * share * (1 - share)) ** 0.5), (options, token))


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
                (("--raw", "--chat-template", "x"), r"--raw excludes --chat-template|--chat-template excludes --raw"),
                (("--chat-template", self.path / "none.jinja"), r"none\.jinja: cannot open"),
                (("--stop", ""), r"--stop: must not be empty"),
                (("--min-p", "1.5"), r"--min-p: must be a number from 0 to 1, got 1.5"),
                (("--repetition-penalty", "0"), r"--repetition-penalty: must be a number from 0.01 to 100, got 0"),
                (("--session", "x.json"), r"--session requires --chat"),
                (("--adapter", "x=y"), r"y: does not exist"),
                (("--adapter", "=y"), r"--adapter: expected \[NAME=\]FOLDER, found `=y`"),
                (("--adapter", "base=y"), r"`base=y`: base is the model without an adapter"),
                (("--adapter", "base", "--adapter", "base"), r"--adapter: base is given twice"),
                (("--adapter", next(ADAPTERS.iterdir()), "--adapter", next(ADAPTERS.iterdir())), r"are both called `\w+`; NAME=FOLDER"),
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
        self.assertIn("--model: is needed: a Hugging Face folder, a GGUF file, or the name of a model in the Hugging Face cache", self.refused("--prompt", "x", model=False))
        errors = self.run_program("generate", "--model", self.path / "none", "--prompt", "x", expect=2).stderr
        self.assertRegex(errors, r"none: no such file or folder; accepted: a Hugging Face model folder or a \.gguf file")
        (self.model / "tokenizer.json").unlink()
        self.assertRegex(self.refused("--prompt", "x"), r"model: has no tokenizer\.json, which text needs .*; copy it from where the weights come from")
        (self.model / "tokenizer.model").touch()
        self.assertRegex(self.refused("--chat"), r"; tokenizer\.model alone is not read: `AutoTokenizer\.from_pretrained\('\S+model'\)\.save_pretrained\('\S+model'\)` ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
