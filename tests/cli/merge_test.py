#!/usr/bin/env python3
"""cotune merge and cotune export. Where they are installed, transformers, PEFT and the package gguf judge what is written.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/merge_test.py [UNITTEST OPTIONS]
"""
import json
import shutil
import struct
import sys
import unittest

import needs
from program import ProgramTest
from tiny_models import MODELS, ROOT, copy_model

sys.path.append(str(ROOT / "tests"))
from document_blocks import blocks  # noqa: E402

if needs.is_here("transformers") and needs.is_here("gguf"):
    import gguf
    import numpy
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file

ADAPTERS = {
    "lora": "{r: 4, alpha: 9, target_modules: all-linear}",
    "rslora": "{r: 4, alpha: 3, use_rslora: true, target_modules: [q_proj, k_proj, down_proj], rank_pattern: {k_proj: 2}, "
              "alpha_pattern: {down_proj: 5}}",
    "pruned": "{method: diff_pruning, density: 0.05}",
    "bottleneck": "{method: bottleneck, bottleneck_size: 4}",
}
PROMPT = "abcdefgh"
TOKENIZERS = ROOT / "tests/data/tokenizers"
TEXTS = ["", "a", " leading and  double spaces ", "it's 12345.67, e.g. 1/2\r\n\n  x\t", "Grüße 你好 e\u0301 👨‍👩‍👧 \u00a0", "def f(x):\n    return x[0]"]
CHAT = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"


def fnv1a(ids):
    """The hash of ids in expected.txt."""
    value = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def read_reference(case):
    """(text, hash of its ids) of a committed case (scripts/reference/tokenizer_reference.py); valid UTF-8 alone."""
    data, texts, at = (case / "texts.bin" if (case / "texts.bin").exists() else TOKENIZERS / "texts.bin").read_bytes(), [], 0
    while at + 4 <= len(data):
        size = struct.unpack_from("<I", data, at)[0]
        texts.append(data[at + 4:at + 4 + size])
        at += 4 + size
    hashes = [line.split()[1] for line in (case / "expected.txt").read_text().splitlines() if line.startswith("text ")]
    pairs = []
    for text, hashed in zip(texts, hashes, strict=True):
        try:
            pairs.append((text.decode(), hashed))
        except UnicodeDecodeError:
            pass
    return pairs


def read_tensor_place(file, name):
    """Where a tensor's bytes begin and end in a safetensors file."""
    data = file.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    return tuple(8 + size + offset for offset in json.loads(data[8:8 + size])[name]["data_offsets"])


class MergeTest(ProgramTest):
    def setUp(self):
        super().setUp()
        (self.path / "text.jsonl").write_text('{"text": "abcdefgh hgfedcba"}\n{"text": "0123456789"}\n' * 4)

    def train(self, jobs=("lora",)):
        text = ("cotune: 1\nmodel: {path: model, dtype: float32}\n"
                "defaults: {data: {train: text.jsonl}, train: {steps: 6, batch_size: 4, lr: 3e-2}}\njobs:\n")
        path = self.path / "jobs.yaml"
        path.write_text(text + "".join(f"  - {{name: {job}, adapter: {ADAPTERS[job]}}}\n" for job in jobs))
        self.run_program("train", path, "--output-dir", self.path / "run")
        return {job: self.path / "run" / "jobs" / job / "adapter" for job in jobs}

    def trained_of_gguf(self, name="gguf_llama", jobs=("lora",)):
        shutil.copy(MODELS / name / "model.gguf", self.path / "model")
        return self.train(jobs)

    def trained(self, family="smollm2", jobs=("lora",)):
        copy_model(self.path / "model", family)
        return self.train(jobs)

    def merge(self, adapter, *options, name="merged", expect=0):
        return self.run_program("merge", "--adapter", adapter, "--output", self.path / name, *options, expect=expect)

    def export(self, adapter, *options, name="adapter.gguf", expect=0):
        return self.run_program("export", "--adapter", adapter, "--output", self.path / name, *options, expect=expect)

    def with_config(self, adapter, name, **changes):
        """A copy of the adapter whose adapter_config.json says otherwise."""
        shutil.copytree(adapter, self.path / name)
        config = json.loads((adapter / "adapter_config.json").read_text())
        (self.path / name / "adapter_config.json").write_text(json.dumps({**config, **changes}))
        return self.path / name


class Merge(MergeTest):
    def test_a_merged_folder_is_a_model_with_its_tokenizer_that_answers_as_the_adapter_does(self):
        adapter = self.trained()["lora"]
        text = self.merge(adapter, "--dtype", "float32").stdout
        self.assertRegex(text, r"merged: \d+ weights in 1 file, 14 of them changed by .*adapter; ")
        self.assertEqual((self.path / "merged/tokenizer.json").read_bytes(), (self.path / "model/tokenizer.json").read_bytes())
        options = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "--dtype", "float32")
        beside = json.loads(self.run_program("generate", "--adapter", adapter, *options).stdout)
        merged = json.loads(self.run_program("generate", "--model", self.path / "merged", *options).stdout)
        self.assertEqual(merged["text"], beside["text"])
        base = json.loads(self.run_program("generate", "--model", self.path / "model", *options).stdout)
        self.assertNotEqual(merged["text"], base["text"])

    def test_what_cannot_be_merged_is_refused_with_the_reason(self):
        adapters = self.trained(jobs=("lora", "bottleneck"))
        errors = self.merge(adapters["bottleneck"], expect=2).stderr
        self.assertIn("an adapter of method bottleneck cannot be merged: its non-linear layers stand behind the projections", errors)
        self.assertFalse((self.path / "merged").exists())
        (self.path / "full").mkdir()
        (self.path / "full/file").write_text("x")
        self.assertIn("full: holds files; choose another folder, or empty it", self.merge(adapters["lora"], name="full", expect=2).stderr)
        dora = self.with_config(adapters["lora"], "dora", use_dora=True)
        self.assertIn("use_dora: is not supported", self.merge(dora, expect=2).stderr)
        self.assertIn("must be an amount such as 5GB", self.merge(adapters["lora"], "--max-file-size", "60%", expect=2).stderr)
        self.assertIn("llama.cpp applies LoRA only", self.export(adapters["bottleneck"], expect=2).stderr)
        self.assertIn("must end in .gguf", self.export(adapters["lora"], name="x.bin", expect=2).stderr)

    def test_unchanged_weights_that_their_new_type_cannot_hold_are_refused_as_changed_ones_are(self):
        adapter = self.trained()["lora"]
        weights = self.path / "model/model.safetensors"
        begin, _ = read_tensor_place(weights, "model.norm.weight")
        data = bytearray(weights.read_bytes())
        data[begin:begin + 4] = struct.pack("<f", 1e6)
        weights.write_bytes(data)
        errors = self.merge(adapter, "--dtype", "float16", name="half", expect=2).stderr
        self.assertIn("model.norm.weight: holds values that F16 cannot hold, or that are not finite", errors)
        self.assertFalse((self.path / "half/config.json").exists())
        self.merge(adapter, "--dtype", "bfloat16", name="brain")
        begin, _ = read_tensor_place(self.path / "brain/model.safetensors", "model.norm.weight")
        written = (self.path / "brain/model.safetensors").read_bytes()[begin:begin + 2]
        self.assertEqual(struct.unpack("<f", b"\0\0" + written)[0], 999424)  # 1e6 in bfloat16

    def test_of_a_gguf_model_comes_a_gguf_file_that_answers_as_the_adapter_does(self):
        adapter = self.trained_of_gguf()["lora"]
        text = self.merge(adapter, "--dtype", "float32", name="merged.gguf").stdout
        self.assertRegex(text, r"merged\.gguf: \d+ weights in 1 file, 14 of them changed by .*adapter; ")
        options = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "--dtype", "float32")
        beside = json.loads(self.run_program("generate", "--adapter", adapter, *options).stdout)
        merged = json.loads(self.run_program("generate", "--model", self.path / "merged.gguf", *options).stdout)
        self.assertEqual(merged["text"], beside["text"])
        base = json.loads(self.run_program("generate", "--model", self.path / "model", *options).stdout)
        self.assertNotEqual(merged["text"], base["text"])

    def test_of_a_gguf_model_comes_a_folder_that_answers_as_the_adapter_does(self):
        adapter = self.trained_of_gguf()["lora"]
        text = self.merge(adapter, "--dtype", "float32").stdout
        self.assertRegex(text, r"merged: \d+ weights in 1 file, 14 of them changed by .*adapter; ")
        files = {str(file.relative_to(self.path / "merged")) for file in (self.path / "merged").rglob("*")}
        self.assertEqual(files, {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                 "chat_template.jinja"})
        options = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "--dtype", "float32")
        beside = json.loads(self.run_program("generate", "--adapter", adapter, *options).stdout)
        merged = json.loads(self.run_program("generate", "--model", self.path / "merged", *options).stdout)
        self.assertEqual(merged["text"], beside["text"])

    def test_of_a_gguf_model_a_folder_names_the_token_that_closes_answers_in_the_template(self):
        data = (MODELS / "gguf_llama/model.gguf").read_bytes()
        old, new = b"{{ messages[0].content }}", b"{% for m in messages %}{{ m.content }}<s>{% endfor %}"
        new = new.replace(b" in ", b" in " + b" " * (-(len(new) - len(old)) % 32))  # tensors lie at multiples of 32 as before
        self.assertEqual(data.count(struct.pack("<Q", len(old)) + old), 1)
        (self.path / "model.gguf").write_bytes(data.replace(struct.pack("<Q", len(old)) + old, struct.pack("<Q", len(new)) + new))
        self.run_program("merge", "--model", self.path / "model.gguf", "--output", self.path / "alone")
        self.assertEqual(json.loads((self.path / "alone/generation_config.json").read_text())["eos_token_id"], [1, 2])

    def test_without_an_adapter_a_folder_gets_the_model_alone(self):
        shutil.copy(MODELS / "gguf_llama/model.gguf", self.path / "model.gguf")
        text = self.run_program("merge", "--model", self.path / "model.gguf", "--output", self.path / "alone").stdout
        self.assertRegex(text, r"alone: \d+ weights in 1 file; ")
        options = ("--prompt", PROMPT, "--max-new-tokens", "12", "--json", "--dtype", "float32")
        answers = [json.loads(self.run_program("generate", "--model", self.path / name, *options).stdout)["text"] for name in ("model.gguf", "alone")]
        self.assertEqual(*answers)
        errors = self.run_program("merge", "--model", self.path / "model.gguf", "--output", self.path / "x.gguf", expect=2).stderr
        self.assertIn("--adapter: is needed where a GGUF file is written: without one it would be a copy of", errors)
        self.assertIn("--model: is needed", self.run_program("merge", "--output", self.path / "x", expect=2).stderr)

    def test_a_folder_becomes_no_gguf_file_and_no_file_is_replaced(self):
        adapter = self.trained_of_gguf()["lora"]
        self.assertIn("--dtype float64: in a GGUF file float32,", self.merge(adapter, "--dtype", "float64", name="x.gguf", expect=2).stderr)
        (self.path / "there.gguf").write_text("mine")
        self.assertIn("there.gguf: exists; choose another file", self.merge(adapter, name="there.gguf", expect=2).stderr)
        self.assertEqual((self.path / "there.gguf").read_text(), "mine")
        folder = copy_model(self.path / "folder")
        errors = self.merge(adapter, "--model", folder, name="x.gguf", expect=2).stderr
        self.assertIn("is a Hugging Face folder and is merged to one; name a folder", errors)
        self.assertFalse((self.path / "x.gguf").exists())

    def test_everything_of_the_model_but_its_weights_is_copied(self):
        adapter = self.trained()["lora"]
        model, merged = self.path / "model", self.path / "merged"
        kept = {"README.md", "modeling_own.py", "LICENSE", "USE_POLICY", "spiece.model", "vocab.json", "merges.txt", "chat_template.jinja",
                "additional_chat_templates/tool_use.jinja"}
        left_out = {"pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "model.gguf", "consolidated.00.pth", "model.onnx",
                    "second.safetensors", "tf_model.h5", "adapter_config.json", ".gitattributes", "original/params.json"}
        for name in kept | left_out:
            (model / name).parent.mkdir(exist_ok=True)
            (model / name).write_text(f"[{json.dumps(name)}]")
        self.merge(adapter)
        files = {str(file.relative_to(merged)) for file in merged.rglob("*") if file.is_file()}
        ours = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        self.assertEqual(files, kept | ours)
        for name in kept:
            self.assertEqual((merged / name).read_bytes(), (model / name).read_bytes(), name)

    def test_a_deep_config_is_copied_as_it_is_and_not_changed(self):
        copy_model(self.path / "model")
        config = self.path / "model/config.json"
        plain = config.read_text().rstrip().removesuffix("}")
        for levels, expect in ((63, 0), (64, 2), (200_000, 2)):
            config.write_text(plain + ', "own": ' + "[" * levels + "]" * levels + " }")
            self.run_program("merge", "--model", self.path / "model", "--output", self.path / f"same-{levels}")
            self.assertEqual((self.path / f"same-{levels}/config.json").read_bytes(), config.read_bytes())
            changed = self.path / f"changed-{levels}"
            errors = self.run_program("merge", "--model", self.path / "model", "--dtype", "float64", "--output", changed, expect=expect).stderr
            if expect == 0:
                self.assertIn("float64", (changed / "config.json").read_text())
            else:
                self.assertIn(f"{config}: JSON nested deeper than 64 levels", errors)
                self.assertFalse((changed / "config.json").exists())

    def test_export_replaces_a_file_only_when_told_and_never_the_model(self):
        adapter = self.trained()["lora"]
        file = self.path / "adapter.gguf"
        self.assertRegex(self.export(adapter).stdout, r"adapter\.gguf: LoRA for 14 modules of .*model, \d")
        written = file.read_bytes()
        self.assertEqual(written[:4], b"GGUF")
        file.write_text("mine")
        errors = self.export(adapter, expect=2).stderr
        self.assertIn("--output: " + str(file) + ": exists; choose another file, or replace it with --overwrite", errors)
        self.assertEqual(file.read_text(), "mine")
        errors = self.export(adapter, "--overwrite", expect=2).stderr
        self.assertIn("adapter.gguf: is there, and is no GGUF adapter: only such a file is replaced", errors)
        self.assertEqual(file.read_text(), "mine")
        file.write_bytes(written)
        self.export(adapter, "--overwrite")
        self.assertEqual(file.read_bytes(), written)
        other = self.path / "other.gguf"
        shutil.copy(MODELS / "gguf_llama/model.gguf", other)
        self.assertIn("is no GGUF adapter", self.export(adapter, "--overwrite", name="other.gguf", expect=2).stderr)
        self.assertEqual(other.read_bytes(), (MODELS / "gguf_llama/model.gguf").read_bytes())
        (self.path / "folder.gguf").mkdir()
        self.assertIn("folder.gguf: is a folder; choose a file", self.export(adapter, "--overwrite", name="folder.gguf", expect=2).stderr)

        model = self.path / "base.gguf"
        shutil.copy(MODELS / "gguf_llama/model.gguf", model)
        (self.path / "link.gguf").symlink_to(model)
        for name in ("base.gguf", "link.gguf"):
            for options in ((), ("--overwrite",)):
                errors = self.export(adapter, "--model", model, *options, name=name, expect=2).stderr
                self.assertIn(f"{name}: is the model itself; choose another file", errors)
        self.assertEqual(model.read_bytes(), (MODELS / "gguf_llama/model.gguf").read_bytes())

    def test_an_alpha_of_zero_is_not_written_as_none(self):
        adapter = self.with_config(self.trained()["lora"], "none", lora_alpha=0, alpha_pattern={"down_proj": 3})
        self.export(adapter)
        data = (self.path / "adapter.gguf").read_bytes()
        kind, alpha = struct.unpack_from("<If", data, data.index(b"adapter.lora.alpha") + len(b"adapter.lora.alpha"))
        self.assertEqual((kind, alpha), (6, 4))  # f32; r


@needs.required("transformers", "gguf")
class JudgedMerge(MergeTest):
    @staticmethod
    def logits(model):
        tokens = torch.tensor([list(PROMPT.encode())])
        with torch.no_grad():
            return model(tokens % model.config.vocab_size).logits

    def load(self, folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def test_transformers_gives_the_logits_of_peft_with_the_adapter_beside_the_model(self):
        for family in ("smollm2", "qwen2", "mistral"):
            adapters = self.trained(family, ("lora", "rslora"))
            for job, adapter in adapters.items():
                self.merge(adapter, "--dtype", "float32", name=job)
                beside = self.logits(peft.PeftModel.from_pretrained(self.load(self.path / "model"), adapter))
                merged = self.logits(self.load(self.path / job))
                torch.testing.assert_close(merged, beside, rtol=1e-4, atol=1e-4)
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

    def test_the_python_of_the_adapter_formats_page_reads_what_peft_does_not(self):
        bottleneck, pruned = (text for _, language, _, text in blocks(ROOT / "docs/adapter-format.md") if language == "python")
        adapters = self.trained(jobs=("bottleneck", "pruned"))
        (self.path / "questions.jsonl").write_text(json.dumps({"prompt": PROMPT, "completion": "hgfedcba"}) + "\n")
        models = {job: (self.load(self.path / "model").eval(), load_file(adapters[job] / "adapter_model.safetensors")) for job in adapters}

        page = {"torch": torch}
        exec(bottleneck, page)
        model, tensors = models["bottleneck"]
        config = json.loads((adapters["bottleneck"] / "adapter_config.json").read_text())
        for name in {key.partition(".adapter_")[0] for key in tensors}:
            place, _, attribute = name.removeprefix("base_model.model.").rpartition(".")
            parent = model.get_submodule(place)
            wrapped = page["Bottleneck"](getattr(parent, attribute), config["bottleneck_size"], getattr(torch.nn.functional, config["activation"]))
            own = {key.removeprefix(name + "."): value for key, value in tensors.items() if key.startswith(name + ".")}
            self.assertEqual(wrapped.load_state_dict(own, strict=False).unexpected_keys, [])
            setattr(parent, attribute, wrapped)
        model, tensors = models["pruned"]
        for name in {key.partition(".diff_pruning.")[0] for key in tensors}:
            weight = model.get_submodule(name.removeprefix("base_model.model.")).weight.data
            exec(pruned, {"torch": torch, "tensors": tensors, "name": name, "weight": weight})

        ids = [*PROMPT.encode(), *b"hgfedcba", 2]
        for job, (model, _) in models.items():
            lines = self.run_program("evaluate", "--adapter", adapters[job], "--data", self.path / "questions.jsonl", "--json", "--dtype", "float32").stdout
            base, own = (line["loss"] for line in map(json.loads, lines.splitlines()))
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            wanted = -sum(logits[at - 1, ids[at]].item() for at in range(len(PROMPT), len(ids))) / (len(ids) - len(PROMPT))
            self.assertAlmostEqual(own, wanted, delta=1e-4, msg=job)
            self.assertGreater(abs(own - base), 1e-2, job)

    def test_large_models_are_written_in_several_files_with_an_index(self):
        model = copy_model(self.path / "model")
        config = transformers.AutoConfig.from_pretrained(model, hidden_size=144, intermediate_size=512)
        config.head_dim = config.hidden_size // config.num_attention_heads
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)
        adapter = self.train()["lora"]
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

    def test_transformers_loads_the_tokenizer_of_a_merged_folder(self):
        self.merge(self.trained()["lora"])
        self.assertTrue(transformers.AutoTokenizer.from_pretrained(self.path / "merged").chat_template)

    @staticmethod
    def write_quantised(before, after):
        """The same file with its matrices in Q8_0."""
        reader = gguf.GGUFReader(before)
        writer = gguf.GGUFWriter(after, reader.get_field("general.architecture").contents())
        for name, field in reader.fields.items():
            if not name.startswith("GGUF.") and name != "general.architecture":
                writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
        kind = gguf.GGMLQuantizationType.Q8_0
        for tensor in reader.tensors:
            is_matrix = len(tensor.shape) == 2
            values = numpy.array(tensor.data)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind) if is_matrix else values, raw_dtype=kind if is_matrix else None)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def test_a_merged_gguf_file_holds_what_changes_in_a_dense_type_and_the_rest_as_it_was(self):
        self.write_quantised(MODELS / "gguf_llama/model.gguf", self.path / "model")
        adapter = self.train(("rslora",))["rslora"]
        before = gguf.GGUFReader(self.path / "model")
        values = load_file(adapter / "adapter_model.safetensors")
        spec = json.loads((adapter / "adapter_config.json").read_text())
        heads = {"q": before.get_field("llama.attention.head_count").contents(), "k": before.get_field("llama.attention.head_count_kv").contents()}
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, before.get_field("llama.block_count").contents())
        for dtype, kind, limit in (("auto", "F16", 1e-3), ("float32", "F32", 1e-6), ("bfloat16", "BF16", 1e-2)):
            self.merge(adapter, "--dtype", dtype, name=f"{dtype}.gguf")
            after = gguf.GGUFReader(self.path / f"{dtype}.gguf")
            kept = {"general.file_type", "GGUF.version"}
            self.assertEqual([name for name in after.fields], [name for name in before.fields])
            for name, field in before.fields.items():
                if name not in kept:
                    self.assertEqual(after.get_field(name).contents(), field.contents(), name)
            changes = {}
            for name in values:
                module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
                if part == "lora_A":
                    a, b = values[name].double().numpy(), values[name.replace("lora_A", "lora_B")].double().numpy()
                    change = b @ a * ((5 if "down_proj" in module else 3) / a.shape[0] ** 0.5)
                    if module.endswith(("q_proj", "k_proj")):  # LlamaModel.permute
                        count = heads[module[-len("q_proj")]]
                        change = change.reshape(count, 2, change.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(change.shape)
                    changes[names.get_name(module) + ".weight"] = change
            self.assertEqual(len(changes), 6)
            self.assertTrue(spec["use_rslora"])
            for old, new in zip(before.tensors, after.tensors):
                self.assertEqual(old.name, new.name)
                if old.name not in changes:
                    self.assertEqual(old.tensor_type, new.tensor_type)
                    self.assertTrue(numpy.array_equal(old.data, new.data), old.name)
                    continue
                self.assertEqual(new.tensor_type.name, kind)
                wanted = gguf.dequantize(old.data, old.tensor_type).astype(float) + changes[old.name]
                written = gguf.dequantize(new.data, new.tensor_type).astype(float)
                self.assertLess(abs(written - wanted).max(), limit * abs(wanted).max(), old.name)

    def test_a_folder_of_a_gguf_file_holds_quantised_weights_in_bfloat16_and_others_as_they_are(self):
        self.write_quantised(MODELS / "gguf_llama/model.gguf", self.path / "model")
        self.run_program("merge", "--model", self.path / "model", "--output", self.path / "auto")
        self.run_program("merge", "--model", self.path / "model", "--output", self.path / "exact", "--dtype", "float32")
        auto, exact = load_file(self.path / "auto/model.safetensors"), load_file(self.path / "exact/model.safetensors")
        for name, value in exact.items():
            kind = torch.bfloat16 if value.dim() == 2 else torch.float32
            self.assertEqual(auto[name].dtype, kind, name)
            self.assertTrue(torch.equal(auto[name], value.to(kind)), name)
        config = lambda name: transformers.AutoConfig.from_pretrained(self.path / name)
        self.assertEqual((config("auto").dtype, config("exact").dtype), (torch.bfloat16, torch.float32))
        reader = gguf.GGUFReader(self.path / "model")
        values = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
        self.assertTrue(numpy.array_equal(exact["model.layers.0.mlp.up_proj.weight"].numpy(), values["blk.0.ffn_up.weight"]))
        rows = values["blk.0.attn_q.weight"]  # LlamaModel.permute, undone
        heads = reader.get_field("llama.attention.head_count").contents()
        rows = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
        self.assertTrue(numpy.array_equal(exact["model.layers.0.self_attn.q_proj.weight"].numpy(), rows))

    def test_transformers_gives_the_logits_of_the_folder_that_a_gguf_file_was_made_of(self):
        for name in ("gguf_llama", "gguf_qwen2"):
            adapter = self.trained_of_gguf(name)["lora"]
            self.merge(adapter, "--max-file-size", "1MiB", name=name)
            base = self.load(MODELS / name)  # the file's twin: of a file itself transformers leaves rope_freqs.weight out
            merged = self.load(self.path / name)
            self.assertEqual(type(merged), type(base))
            self.assertEqual(merged.config.tie_word_embeddings, base.config.tie_word_embeddings)
            torch.testing.assert_close(self.logits(merged), self.logits(peft.PeftModel.from_pretrained(base, adapter)), rtol=1e-4, atol=1e-4)
            shutil.rmtree(self.path / "run")

    def write_vocabulary(self, before, after, vocabulary):
        """The same file with these tokenizer.ggml keys and as many rows of embedding and head as it has tokens."""
        reader = gguf.GGUFReader(before)
        writer = gguf.GGUFWriter(after, reader.get_field("general.architecture").contents())
        for name, field in reader.fields.items():
            if not name.startswith(("GGUF.", "tokenizer.")) and name not in ("general.architecture",) and not name.endswith("vocab_size"):
                writer.add_key_value(name, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
        vocabulary(writer)
        for tensor in reader.tensors:
            values = numpy.array(tensor.data)
            if tensor.name in ("token_embd.weight", "output.weight"):
                values = numpy.resize(values, (self.token_count, values.shape[1]))
            writer.add_tensor(tensor.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def byte_level_vocabulary(self, kind, pre, adds_bos):
        """Of the committed tokenizer of this kind, as convert_hf_to_gguf.py writes it."""
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / kind / "tokenizer.json"))
        added = tokenizer.added_tokens_decoder
        self.token_count = len(tokenizer)
        specials = [id for id, token in sorted(added.items()) if token.special]

        def write(writer):
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list([tokenizer.convert_ids_to_tokens(id) for id in range(self.token_count)])
            writer.add_token_types([1 if id not in added else 3 if added[id].special else 4 for id in range(self.token_count)])
            merges = json.loads((TOKENIZERS / kind / "tokenizer.json").read_text())["model"]["merges"]
            writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
            writer.add_bos_token_id(specials[0])
            writer.add_eos_token_id(specials[-1])
            writer.add_pad_token_id(specials[0])
            writer.add_add_bos_token(adds_bos)
            writer.add_chat_template(CHAT)
        return tokenizer, write

    def sentencepiece_vocabulary(self):
        stored = json.loads((TOKENIZERS / "gguf_llama/gguf_vocabulary.json").read_text())
        self.token_count = len(stored["tokens"])

        def write(writer):
            writer.add_tokenizer_model("llama")
            writer.add_token_list(stored["tokens"])
            writer.add_token_scores(stored["scores"])
            writer.add_token_types(stored["token_types"])
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)
            writer.add_unk_token_id(0)
            writer.add_chat_template(CHAT)
        return write

    def test_transformers_loads_the_tokenizer_of_a_folder_made_of_a_gguf_file(self):
        kinds = {("gpt2", "gpt-2", "gguf_llama"): False, ("llama3", "llama-bpe", "gguf_llama"): True,
                 ("smollm", "smollm", "gguf_llama"): False, ("qwen2", "qwen2", "gguf_qwen2"): False}
        for (kind, pre, model), adds_bos in kinds.items():
            original, vocabulary = self.byte_level_vocabulary(kind, pre, adds_bos)
            self.write_vocabulary(MODELS / model / "model.gguf", self.path / f"{kind}.gguf", vocabulary)
            self.run_program("merge", "--model", self.path / f"{kind}.gguf", "--output", self.path / kind)
            written = transformers.AutoTokenizer.from_pretrained(self.path / kind)
            bos = [written.bos_token_id] if adds_bos else []
            bare = [token.content for token in original.added_tokens_decoder.values() if not token.lstrip and not token.rstrip]  # others no file tells
            for text in TEXTS + [f"a {token} b" for token in bare]:
                plain = original(text, add_special_tokens=False)["input_ids"]
                self.assertEqual(written(text, add_special_tokens=False)["input_ids"], plain, (kind, text))
                self.assertEqual(written(text)["input_ids"], bos + plain, (kind, text))
                self.assertEqual(written.decode(plain), original.decode(plain), (kind, text))
            self.check_specials_and_chat(kind, written)

    def test_transformers_loads_the_tokenizer_of_a_folder_made_of_a_gguf_file_with_sentencepiece(self):
        self.write_vocabulary(MODELS / "gguf_llama/model.gguf", self.path / "model.gguf", self.sentencepiece_vocabulary())
        self.run_program("merge", "--model", self.path / "model.gguf", "--output", self.path / "spm")
        written = transformers.AutoTokenizer.from_pretrained(self.path / "spm")
        case = read_reference(TOKENIZERS / "gguf_llama")
        self.assertGreater(len(case), 50)
        for text, hashed in case:
            self.assertEqual(fnv1a(written(text)["input_ids"]), hashed, text)
        self.assertEqual(written.unk_token, written.convert_ids_to_tokens(0))
        self.check_specials_and_chat("spm", written)

    def check_specials_and_chat(self, name, written):
        """Against cotune's own view of the folder, and the chat as the template says."""
        self.assertEqual(written.model_max_length, transformers.AutoConfig.from_pretrained(self.path / name).max_position_embeddings)
        chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "there"}]
        self.assertEqual(written.apply_chat_template(chat, tokenize=False), f"{written.bos_token}<user>Hi{written.eos_token}<assistant>there{written.eos_token}")
        generation = transformers.GenerationConfig.from_pretrained(self.path / name)
        self.assertEqual((generation.bos_token_id, generation.eos_token_id), (written.bos_token_id, [written.eos_token_id]))

    def test_transformers_reads_a_merged_gguf_file(self):
        adapter = self.trained_of_gguf()["lora"]
        self.merge(adapter, "--dtype", "float32", name="merged.gguf")
        read = lambda name: transformers.AutoModelForCausalLM.from_pretrained(self.path, gguf_file=name, dtype=torch.float32)
        shutil.copy(self.path / "model", self.path / "base.gguf")
        beside = self.logits(peft.PeftModel.from_pretrained(read("base.gguf"), adapter))
        torch.testing.assert_close(self.logits(read("merged.gguf")), beside, rtol=1e-4, atol=1e-4)

    def test_gguf_of_an_alpha_of_zero_holds_the_scales_in_lora_b(self):
        adapter = self.with_config(self.trained()["lora"], "none", lora_alpha=0, alpha_pattern={"down_proj": 3})
        self.export(adapter)
        reader = gguf.GGUFReader(self.path / "adapter.gguf")
        self.assertEqual(reader.get_field("adapter.lora.alpha").contents(), 4)
        values = load_file(adapter / "adapter_model.safetensors")
        for tensor in reader.tensors:
            if not tensor.name.endswith("lora_b"):
                continue
            layer = tensor.name.split(".")[1]
            if "ffn_down" in tensor.name:
                b = values[f"base_model.model.model.layers.{layer}.mlp.down_proj.lora_B.weight"].double().numpy()
                self.assertTrue(numpy.array_equal(tensor.data, (b * 0.75).astype(numpy.float32)), tensor.name)
                self.assertGreater(abs(b).max(), 0)
            else:
                self.assertFalse(numpy.any(tensor.data), tensor.name)

    def test_gguf_holds_the_adapter_as_llama_cpp_lays_it_out(self):
        for family, architecture in (("smollm2", "llama"), ("qwen2", "qwen2"), ("mistral", "llama")):
            adapters = self.trained(family, ("lora", "rslora"))
            config = json.loads((self.path / "model/config.json").read_text())
            heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
            names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), config["num_hidden_layers"])
            for job, adapter in adapters.items():
                file = self.path / f"{family}-{job}.gguf"
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
                self.run_program("export", "--adapter", adapter, "--output", file, "--type", "f16", "--overwrite")
                halves = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
                for name, tensor in halves.items():
                    self.assertTrue(numpy.array_equal(tensor.data, numpy.array(written[name].data).astype(numpy.float16)), name)
            shutil.rmtree(self.path / "model")
            shutil.rmtree(self.path / "run")


if __name__ == "__main__":
    unittest.main()
