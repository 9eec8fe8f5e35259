#!/usr/bin/env python3
"""cotune merge and cotune export: transformers, PEFT and the package gguf judge what is written, where they are installed.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/merge_test.py [UNITTEST OPTIONS]
"""
import json
import shutil
import unittest

from program import ProgramTest
from tiny_models import copy_model

try:
    import gguf
    import numpy
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError:
    transformers = None

ADAPTERS = {
    "lora": "{r: 4, alpha: 9, target_modules: all-linear}",
    "rslora": "{r: 4, alpha: 3, use_rslora: true, target_modules: [q_proj, k_proj, down_proj], rank_pattern: {k_proj: 2}, "
              "alpha_pattern: {down_proj: 5}}",
    "pruned": "{method: diff_pruning, density: 0.05}",
    "bottleneck": "{method: bottleneck, bottleneck_size: 4}",
}
PROMPT = "abcdefgh"


@unittest.skipIf(transformers is None, "transformers, peft and gguf judge: scripts/install-dependencies --comparisons")
class Merge(ProgramTest):
    def setUp(self):
        super().setUp()
        (self.path / "text.jsonl").write_text('{"text": "abcdefgh hgfedcba"}\n{"text": "0123456789"}\n' * 4)

    def trained(self, family="smollm2", jobs=("lora",), **sizes):
        model = copy_model(self.path / "model", family)
        if sizes:
            config = transformers.AutoConfig.from_pretrained(model, **sizes)
            config.head_dim = config.hidden_size // config.num_attention_heads
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)
        text = "cotune: 1\nmodel: {path: model, dtype: float32}\ndefaults: {data: {train: text.jsonl}, train: {steps: 6, batch_size: 4, lr: 3e-2}}\njobs:\n"
        path = self.path / "jobs.yaml"
        path.write_text(text + "".join(f"  - {{name: {job}, adapter: {ADAPTERS[job]}}}\n" for job in jobs))
        self.run_program("train", path, "--output-dir", self.path / "run")
        return {job: self.path / "run" / "jobs" / job / "adapter" for job in jobs}

    def merge(self, adapter, *options, name="merged", expect=0):
        return self.run_program("merge", "--adapter", adapter, "--output", self.path / name, *options, expect=expect)

    @staticmethod
    def logits(model):
        with torch.no_grad():
            return model(torch.tensor([list(PROMPT.encode())])).logits

    def load(self, folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def test_transformers_gives_the_logits_of_peft_with_the_adapter_beside_the_model(self):
        for family in ("smollm2", "qwen2", "mistral"):
            adapters = self.trained(family, ("lora", "rslora"))
            for job, adapter in adapters.items():
                self.merge(adapter, "--dtype", "float32", name=job)
                beside = self.logits(peft.PeftModel.from_pretrained(self.load(self.path / "model"), adapter))
                merged = self.logits(self.load(self.path / job))
                torch.testing.assert_close(merged, beside, rtol=1e-5, atol=1e-5)
                self.assertGreater((merged - self.logits(self.load(self.path / "model"))).abs().max().item(), 1e-2)
                shutil.rmtree(self.path / job)
            shutil.rmtree(self.path / "model")
            shutil.rmtree(self.path / "run")

    def test_diff_pruning_is_added_entry_by_entry(self):
        adapter = self.trained(jobs=("pruned",))["pruned"]
        self.merge(adapter, "--dtype", "float64")
        changes, before, after = (load_file(folder / file) for folder, file in (
            (adapter, "adapter_model.safetensors"), (self.path / "model", "model.safetensors"), (self.path / "merged", "model.safetensors")))
        changed = set()
        for name, values in changes.items():
            if not name.endswith(".values"):
                continue
            stem = name.removesuffix("values")
            weight = stem.removeprefix("base_model.model.").removesuffix("diff_pruning.") + "weight"
            wanted = before[weight].double().clone()
            offsets = changes[stem + "column_offsets"].tolist()
            for column in range(len(offsets) - 1):
                for entry in range(offsets[column], offsets[column + 1]):
                    wanted[column, changes[stem + "rows"][entry]] += values[entry].double()
            self.assertTrue(torch.equal(after[weight], wanted), weight)
            changed.add(weight)
        self.assertGreater(len(changed), 5)
        for weight in set(after) - changed:
            self.assertTrue(torch.equal(after[weight], before[weight].double()), weight)

    def test_a_merged_folder_is_a_model_with_its_tokenizer_that_answers_as_the_adapter_does(self):
        adapter = self.trained()["lora"]
        text = self.merge(adapter, "--dtype", "float32").stdout
        self.assertRegex(text, r"merged: \d+ weights in one file, 14 of them changed by .*adapter; ")
        self.assertEqual((self.path / "merged/tokenizer.json").read_bytes(), (self.path / "model/tokenizer.json").read_bytes())
        options = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "--dtype", "float32")
        beside = json.loads(self.run_program("generate", "--adapter", adapter, *options).stdout)
        merged = json.loads(self.run_program("generate", "--model", self.path / "merged", *options).stdout)
        self.assertEqual(merged["text"], beside["text"])
        self.assertTrue(transformers.AutoTokenizer.from_pretrained(self.path / "merged").chat_template)

    def test_large_models_are_written_in_several_files_with_an_index(self):
        adapter = self.trained(hidden_size=144, intermediate_size=512)["lora"]
        self.merge(adapter, "--dtype", "float32", name="one")
        self.assertRegex(self.merge(adapter, "--dtype", "float32", "--max-file-size", "1MiB", name="several").stdout, r"weights in [2-5] files")
        one, several = self.path / "one", self.path / "several"
        self.assertFalse((several / "model.safetensors").exists())
        index = json.loads((several / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(load_file(one / "model.safetensors")))
        self.assertEqual(set(index["weight_map"].values()), {file.name for file in several.glob("*.safetensors")})
        torch.testing.assert_close(self.logits(self.load(several)), self.logits(self.load(one)), rtol=0, atol=0)

    def test_stored_types_are_kept_and_rounded_once(self):
        adapter = self.trained()["lora"]
        self.merge(adapter)
        before, after = load_file(self.path / "model/model.safetensors"), load_file(self.path / "merged/model.safetensors")
        for name, value in after.items():
            self.assertEqual(value.dtype, before[name].dtype, name)
        self.merge(adapter, "--dtype", "float64", name="exact")
        exact = load_file(self.path / "exact/model.safetensors")
        self.assertTrue(all(torch.equal(value, exact[name].to(value.dtype)) for name, value in after.items()))
        self.assertEqual(json.loads((self.path / "exact/config.json").read_text()).get("dtype",
                         json.loads((self.path / "exact/config.json").read_text()).get("torch_dtype")), "float64")

    def test_what_cannot_be_merged_is_refused_with_the_reason(self):
        adapters = self.trained(jobs=("lora", "bottleneck"))
        errors = self.merge(adapters["bottleneck"], expect=2).stderr
        self.assertIn("an adapter of method bottleneck cannot be merged: its non-linear layers stand behind the projections", errors)
        self.assertFalse((self.path / "merged").exists())
        (self.path / "full").mkdir()
        (self.path / "full/file").write_text("x")
        self.assertIn("full: holds files; choose another folder, or empty it", self.merge(adapters["lora"], name="full", expect=2).stderr)
        config = json.loads((adapters["lora"] / "adapter_config.json").read_text())
        shutil.copytree(adapters["lora"], self.path / "dora")
        (self.path / "dora/adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
        self.assertIn("use_dora: is not supported", self.merge(self.path / "dora", expect=2).stderr)
        self.assertIn("must be an amount such as 5GB", self.merge(adapters["lora"], "--max-file-size", "60%", expect=2).stderr)
        errors = self.run_program("export", "--adapter", adapters["bottleneck"], "--output", self.path / "x.gguf", expect=2).stderr
        self.assertIn("llama.cpp applies LoRA only", errors)
        errors = self.run_program("export", "--adapter", adapters["lora"], "--output", self.path / "x.bin", expect=2).stderr
        self.assertIn("must end in .gguf", errors)

    def test_gguf_holds_the_adapter_as_llama_cpp_reads_it(self):
        for family, architecture in (("smollm2", "llama"), ("qwen2", "qwen2"), ("mistral", "llama")):
            adapters = self.trained(family, ("lora", "rslora"))
            config = json.loads((self.path / "model/config.json").read_text())
            heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
            names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), config["num_hidden_layers"])
            for job, adapter in adapters.items():
                file = self.path / f"{job}.gguf"
                self.run_program("export", "--adapter", adapter, "--output", file)
                reader = gguf.GGUFReader(file)
                field = lambda key: reader.get_field(key).contents()
                self.assertEqual(field("general.architecture"), architecture)
                self.assertEqual((field("general.type"), field("adapter.type")), ("adapter", "lora"))
                spec = json.loads((adapter / "adapter_config.json").read_text())
                self.assertEqual(field("adapter.lora.alpha"), spec["lora_alpha"])
                written = {tensor.name: tensor for tensor in reader.tensors}
                values = load_file(adapter / "adapter_model.safetensors")
                self.assertEqual(len(written), len(values))
                for name, value in values.items():
                    module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
                    tensor = written[f"{names.get_name(module)}.weight.{part.lower()}"]
                    self.assertEqual(list(tensor.shape), list(value.shape)[::-1])  # innermost first: [in, r] and [r, out]
                    data, value = numpy.array(tensor.data), value.numpy()
                    if part == "lora_B":
                        rank = value.shape[1]
                        if job == "rslora":
                            alpha = 5 if "down_proj" in module else 3
                            value = value.astype(float) * (alpha / rank ** 0.5 / (spec["lora_alpha"] / rank))
                        kind = module[-len("q_proj")]
                        if architecture == "llama" and module.endswith(("q_proj", "k_proj")):  # LlamaModel.permute
                            count = heads[kind]
                            value = value.reshape(count, 2, value.shape[0] // count // 2, rank).swapaxes(1, 2).reshape(value.shape)
                    self.assertTrue(numpy.array_equal(data, value.astype(numpy.float32)), (family, job, name))
                self.run_program("export", "--adapter", adapter, "--output", file, "--type", "f16")
                halves = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
                for name, tensor in halves.items():
                    self.assertTrue(numpy.array_equal(tensor.data, numpy.array(written[name].data).astype(numpy.float16)), name)
            shutil.rmtree(self.path / "model")
            shutil.rmtree(self.path / "run")


if __name__ == "__main__":
    unittest.main()
