#!/usr/bin/env python3
"""What cotune generate takes as --adapter, and what it refuses. Standard library only.

    COTUNE=build/cotune python3 tests/cli/adapter_folder_test.py [UNITTEST OPTIONS]
"""
import json
import shutil
import struct
import unittest

from generations import Generates
from tiny_models import copy_model


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
        self.assertEqual([line["adapter"] for line in map(json.loads, self.generate(
            "--adapter", self.run, "--prompt", "3?", "--max-new-tokens", "8", "--json").stdout.splitlines())], ["a", "b"])
        errors = self.run_program("merge", "--adapter", self.run, "--output", self.path / "merged", expect=2).stderr
        self.assertRegex(errors, r"run: holds the adapters of 2 jobs: choose one:\n.*/jobs/a\n.*/jobs/b")
        shutil.rmtree(self.run / "jobs" / "b")
        self.assertEqual(tokens(self.run), wanted)
        shutil.rmtree(self.run / "jobs" / "a" / "adapter")  # as of a run that goes on: its latest checkpoint
        self.assertEqual(tokens(self.run / "jobs" / "a"), wanted)

    def test_the_jobs_of_a_run_come_in_its_order(self):
        self.jobs.write_text(self.jobs.read_text().partition("jobs:")[0] +
                             "jobs:\n  - {name: z, adapter: {r: 4}}\n  - {name: c, adapter: {r: 2}}\n  - {name: m, adapter: {r: 2}}\n")
        run = self.path / "unsorted"
        self.run_program("train", self.jobs, "--output-dir", run)

        def names(*options):
            lines = self.generate("--adapter", run, "--prompt", "3?", "--max-new-tokens", "2", "--json", *options).stdout.splitlines()
            return [json.loads(line)["adapter"] for line in lines]

        self.assertEqual(names(), ["z", "c", "m"])
        self.assertEqual(names("--adapter", "base"), ["z", "c", "m", "base"])
        evaluated = self.run_program("evaluate", "--adapter", run, "--data", self.path / "chats.jsonl", "--json").stdout
        self.assertEqual([json.loads(line)["adapter"] for line in evaluated.splitlines()], ["base", "z", "c", "m"])
        shutil.copytree(run / "jobs/m", run / "jobs/b")  # the run knows nothing of it
        self.assertEqual(names(), ["z", "c", "m", "b"])
        record = (run / "run.json").read_text()
        (run / "run.json").write_text("{")
        self.assertRegex(self.refused("--adapter", run, "--prompt", "x"), r"run\.json: is not the record of a run")
        (run / "run.json").unlink()
        self.assertEqual(names(), ["b", "c", "m", "z"])
        (run / "run.json").write_text(record.replace("name: c", "name: gone"))
        self.assertEqual(names(), ["z", "m", "b", "c"])

    def test_of_jobs_that_are_still_choosing_their_entries_are_left_out(self):
        self.jobs.write_text(self.jobs.read_text() + "  - {name: c, adapter: {method: diff_pruning, density: 0.05}}\n")
        run = self.path / "choosing"
        self.run_program("train", self.jobs, "--output-dir", run)
        no_tensors = b"{}".ljust(8)
        (run / "jobs/c/adapter/adapter_model.safetensors").write_bytes(struct.pack("<Q", len(no_tensors)) + no_tensors)
        done = self.generate("--adapter", run, "--prompt", "3?", "--max-new-tokens", "2", "--json")
        self.assertEqual([json.loads(line)["adapter"] for line in done.stdout.splitlines()], ["a", "b"])
        self.assertEqual(done.stderr, "c: has no adapter yet: it is still choosing its entries\n")
        self.assertRegex(self.refused("--adapter", run / "jobs/c", "--prompt", "x"), r"c/adapter: is of a job that was still choosing its entries: resume that run first")

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
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x", expect=1), "the output of `a` is not finite")
        weights.write_bytes(good)
        text = config.read_text()
        config.write_text(text.replace('"r": 4', '"r": 8'))
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_model\.safetensors: .*lora_A.*shape \[4, 72\], \[8, 72\]")
        config.write_text(text.replace('"use_dora": false', '"use_dora": true'))
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_config\.json: use_dora: is not supported")
        config.write_text("{")
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_config\.json: is not an adapter")
        config.write_text(text)
        pickled = weights.rename(adapter / "adapter_model.bin")
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"a/adapter: holds adapter_model\.bin but no .*save_pretrained\('")
        pickled.unlink()
        self.assertRegex(self.refused("--adapter", adapter, "--prompt", "x"), r"adapter_model\.safetensors: cannot open")

    def test_that_are_damaged_checkpoints_are_refused_by_everyone_who_reads_them(self):
        checkpoint = self.run / "jobs/a/step-2"
        commands = (("generate", "--prompt", "x"), ("evaluate", "--data", self.path / "chats.jsonl"),
                    ("merge", "--output", self.path / "merged"), ("export", "--output", self.path / "a.gguf"))
        for name, damage in (("adapter_model.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
                             ("adapter_config.json", lambda data: data.replace(b'"r": 4', b'"r": 8'))):
            file = checkpoint / name
            good = file.read_bytes()
            self.assertNotEqual(damage(good), good)
            file.write_bytes(damage(good))
            for command in commands:
                with self.subTest(name=name, command=command[0]):
                    errors = self.run_program(*command, "--adapter", checkpoint, expect=2).stderr
                    self.assertIn(f"step-2/{name}: is damaged (its checksum is not the one in {checkpoint}/checksums.json)", errors)
            file.write_bytes(good)
        self.generate("--adapter", checkpoint, "--prompt", "x", "--max-new-tokens", "1")

    def test_of_another_model_are_told(self):
        adapter = self.run / "jobs/a/adapter"

        def warning(command, *options, **more):
            return self.run_program(*command, "--adapter", adapter, *options, **more).stderr

        generate = ("generate", "--prompt", "x", "--max-new-tokens", "1", "--json")
        shutil.copytree(self.model, self.path / "copy")
        shutil.copytree(self.model, self.path / "elsewhere/model")
        for same in (self.path / "copy", self.path / "elsewhere/model", f"{self.path}/copy/../model/"):
            self.assertEqual(warning(generate, "--model", same), "")
        other = self.path / "other/model"
        other.parent.mkdir()
        shutil.copytree(self.model, other)
        weights = other / "model.safetensors"
        data = weights.read_bytes()
        weights.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
        told = f"warning: {adapter} is an adapter of {self.model}, the opened model is {other}\n"
        self.assertEqual(warning(generate, "--model", other), told)
        self.assertEqual(warning(("merge",), "--model", other, "--output", self.path / "merged"), told)
        self.assertEqual(warning(("evaluate", "--data", self.path / "chats.jsonl"), "--model", other), told)
        start = self.path / "start.yaml"
        start.write_text(f"cotune: 1\nmodel: {{path: {other}, dtype: float64}}\njobs:\n  - {{name: next, data: {{train: chats.jsonl}}, "
                         f"train: {{steps: 1}}, adapter: {{r: 4, init_from: {adapter}}}}}\n")
        self.assertIn(told, self.run_program("train", start, "--check", "--output-dir", self.path / "next").stderr)
        (self.run / "run.json").unlink()  # names alone are left, which say nothing where every layer has its part
        self.assertEqual(warning(generate, "--model", other), "")
        self.assertEqual(warning(generate, "--model", self.path / "copy"), "")

    def test_of_a_model_with_fewer_layers_are_told(self):
        adapter = self.run / "jobs/a/adapter"
        config = json.loads((self.model / "config.json").read_text())
        layers = config["num_hidden_layers"]
        deeper = self.path / "deeper"
        deeper.mkdir()
        (deeper / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers + 2}))
        errors = self.run_program("export", "--model", deeper, "--adapter", adapter, "--output", self.path / "a.gguf").stderr
        self.assertEqual(errors, f"warning: {adapter} is an adapter of {self.model}, the opened model is {deeper}, "
                                 f"whose layers {layers} to {layers + 1} have none of it\n")

    def test_of_another_model_are_refused(self):
        other = copy_model(self.path / "other", "mistral")
        errors = self.run_program("generate", "--model", other, "--adapter", self.run / "jobs" / "a", "--prompt", "x", expect=2).stderr
        self.assertRegex(errors, r"adapter: is an adapter of `\S+/model` \(base_model_name_or_path in adapter_config\.json\), and the model that is "
                                 r"opened is \S+/other: .*lora_A.*shape \[4, 72\], \[4, 48\] is expected")
        errors = self.run_program("merge", "--model", other, "--adapter", self.run / "jobs" / "a", "--output", self.path / "merged", expect=2).stderr
        self.assertRegex(errors, r"adapter: is an adapter of `\S+/model` .* opened is \S+/other: ")
        shutil.rmtree(self.model)
        errors = self.refused("--adapter", self.run / "jobs" / "a", "--prompt", "x", model=False)
        self.assertRegex(errors, r"--model: is needed: the adapter in .* is for `.*model`, which is no file or folder here")


if __name__ == "__main__":
    unittest.main(verbosity=2)
