#!/usr/bin/env python3
"""Whole models whose matrices are blocks of every type that is read, through the program: merged to folders, whose weights the Python
package `gguf` judges, and answering, where transformers judges with these weights.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/quantised_models_test.py [UNITTEST OPTIONS]
"""
import json
import unittest

import needs
from program import ProgramTest
from tiny_models import MODELS

if needs.is_here("gguf"):
    import gguf
    import numpy
if needs.is_here("transformers"):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

BEGINNING = {"gguf_k_quants": [1], "gguf_short_blocks": []}  # whether the file's tokenizer puts <s> before a text
PROMPTS = ("HELLO", "0123456789:;<=>?@ABCDEFGHIJ", "Q")


def unpermuted(rows, heads):
    """LlamaModel.permute, undone."""
    return rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


@needs.required("gguf", "transformers")
class QuantisedModels(ProgramTest):
    def test_hold_what_gguf_reads_in_them_and_answer_as_transformers_does_with_that(self):
        for model, beginning in BEGINNING.items():
            with self.subTest(model):
                self.run_program("merge", "--model", MODELS / model / "model.gguf", "--output", self.path / model, "--dtype", "float32")
                self.compare_weights(model)
                reference = AutoModelForCausalLM.from_pretrained(self.path / model, dtype=torch.float64)
                for prompt in PROMPTS:
                    self.compare_answers(model, reference, prompt, beginning)

    def compare_weights(self, model):
        reader = gguf.GGUFReader(MODELS / model / "model.gguf")
        field = lambda name: reader.get_field(f"{architecture}.{name}").contents()
        architecture = reader.get_field("general.architecture").contents()
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], field("block_count"))
        heads = {"attn_q.weight": field("attention.head_count"), "attn_k.weight": field("attention.head_count_kv")}
        stored = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
        merged = load_file(self.path / model / "model.safetensors")
        self.assertEqual(len(merged), len(stored))
        for name, value in merged.items():
            own = names.get_name(name, try_suffixes=(".weight", ".bias"))
            wanted = stored[own]
            if architecture == "llama" and own.endswith(tuple(heads)):
                wanted = unpermuted(wanted, heads[own.split(".", 2)[2]])
            self.assertTrue(numpy.array_equal(value.numpy(), wanted), name)

    def compare_answers(self, model, reference, prompt, beginning):
        ids = torch.tensor([beginning + [3 + ord(letter) - ord("!") for letter in prompt]])
        whole = reference.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=None,
                                   pad_token_id=0)
        done = self.run_program("generate", "--model", MODELS / model / "model.gguf", "--dtype", "float64", "--raw", "--prompt", prompt,
                                "--max-new-tokens", "16", "--json")
        answer = json.loads(done.stdout)
        self.assertEqual(answer["prompt_tokens"], ids.shape[1])
        self.assertGreater(len(answer["tokens"]), 4)
        self.assertEqual(answer["tokens"], whole[0, ids.shape[1]:].tolist()[:len(answer["tokens"])])


if __name__ == "__main__":
    unittest.main(verbosity=2)
