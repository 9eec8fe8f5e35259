#!/usr/bin/env python3
"""Models and adapters by their Hugging Face name, from a cache as huggingface_hub lays it out, which judges where it is installed.

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/hub_test.py [UNITTEST OPTIONS]
"""
import json
import os
import pathlib
import re
import shutil
import unittest

import needs
from program import ProgramTest
from tiny_models import MODELS, copy_model

if needs.is_here("huggingface_hub"):
    import huggingface_hub

COMMITS = {"main": "1" * 40, "v2": "2" * 40}


class Hub(ProgramTest):
    def setUp(self):
        super().setUp()
        self.cache = self.path / "hub"
        self.environment = {**os.environ, "HF_HUB_CACHE": str(self.cache)}
        (self.path / "text.jsonl").write_text('{"text": "abcdef"}\n' * 4)

    def publish(self, name, folder, revision="main"):
        """Files under blobs/, linked to from the snapshot, as the hub's client leaves them."""
        repository = self.cache / ("models--" + name.replace("/", "--"))
        snapshot = repository / "snapshots" / COMMITS[revision]
        for part in (repository / "blobs", repository / "refs", snapshot):
            part.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(sorted(file for file in folder.rglob("*") if file.is_file())):
            blob = repository / "blobs" / f"{revision}{number}"
            shutil.copy(file, blob)
            link = snapshot / file.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        (repository / "refs" / revision).write_text(COMMITS[revision])
        if needs.is_here("huggingface_hub"):
            found = huggingface_hub.snapshot_download(name, revision=revision, cache_dir=self.cache, local_files_only=True)
            self.assertEqual(pathlib.Path(found), snapshot)
        return snapshot

    def publish_gguf(self, *files, revision="main"):
        """The files in a repository of their own, each of which the hub's client finds."""
        folder = self.path / f"gguf-{revision}"
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(MODELS / "gguf_llama/model.gguf", folder / file)
        snapshot = self.publish("org/tiny-GGUF", folder, revision)
        for file in files if needs.is_here("huggingface_hub") else ():
            found = huggingface_hub.hf_hub_download("org/tiny-GGUF", file, revision=revision, cache_dir=self.cache, local_files_only=True)
            self.assertEqual(pathlib.Path(found), snapshot / file)
        (self.path / "text.jsonl").write_text('{"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}\n' * 4)

    def jobs(self, model, adapter="r: 4"):
        path = self.path / "hub.yaml"
        path.write_text(f"cotune: 1\nmodel: {{path: {model}, dtype: float32}}\njobs:\n  - {{name: one, data: {{train: text.jsonl}}, "
                        f"adapter: {{{adapter}}}, train: {{steps: 2}}}}\n")
        return path

    def cotune(self, *arguments, **options):
        return self.run_program(*arguments, env=self.environment, **options)

    def trained(self, model, *options):
        run = self.path / "run"
        shutil.rmtree(run, ignore_errors=True)
        self.cotune("train", self.jobs(model), "--output-dir", run, *options)
        return run / "jobs" / "one" / "adapter"

    def test_trains_a_model_by_its_name_and_records_name_and_commit(self):
        copy_model(self.path / "files")
        self.publish("org/tiny", self.path / "files")
        config = json.loads((self.trained("org/tiny") / "adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], "org/tiny")
        self.assertEqual(config["revision"], COMMITS["main"])

    def test_a_revision_chooses_and_a_folder_of_that_name_wins(self):
        copy_model(self.path / "files")
        self.publish("org/tiny", self.path / "files", "v2")
        self.assertEqual(json.loads((self.trained("org/tiny@v2") / "adapter_config.json").read_text())["revision"], COMMITS["v2"])
        (self.path / "org").mkdir()
        copy_model(self.path / "org/tiny@v2")
        config = json.loads((self.trained("org/tiny@v2") / "adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], str(self.path / "org/tiny@v2"))

    def test_an_absent_model_is_named_with_the_folder_and_the_command(self):
        errors = self.cotune("train", self.jobs("org/tiny@v2"), "--check", expect=2).stderr
        self.assertIn(f"hub.yaml:2: model.path: no such file or folder: {self.path}/org/tiny@v2; it is not in the Hugging Face cache "
                      f"either ({self.cache}/models--org--tiny does not exist); `hf download org/tiny --revision v2` fetches it", errors)
        errors = self.cotune("generate", "--model", "org/tiny", "--prompt", "x", expect=2).stderr
        self.assertIn("`hf download org/tiny` fetches it", errors)
        errors = self.cotune("generate", "--model", "org/tiny", "--adapter", "org/adapter", "--prompt", "x", expect=2).stderr
        self.assertIn(f"org/adapter: does not exist; it is not in the Hugging Face cache either ({self.cache}/models--org--adapter does not "
                      "exist); `hf download org/adapter` fetches it", errors)

    def test_the_one_gguf_file_of_a_repository_is_its_model(self):
        self.publish_gguf("q4/tiny.gguf")
        adapter = self.trained("org/tiny-GGUF")
        config = json.loads((adapter / "adapter_config.json").read_text())
        self.assertEqual((config["base_model_name_or_path"], config["revision"]), ("org/tiny-GGUF/q4/tiny.gguf", COMMITS["main"]))
        self.cotune("merge", "--adapter", adapter, "--output", self.path / "by-record.gguf")
        self.cotune("merge", "--adapter", adapter, "--model", "org/tiny-GGUF", "--output", self.path / "by-name.gguf")
        self.assertEqual((self.path / "by-record.gguf").read_bytes(), (self.path / "by-name.gguf").read_bytes())
        self.cotune("train", self.jobs("org/tiny-GGUF"), "--output-dir", self.path / "run", "--resume")

    def test_a_gguf_file_is_named_in_its_repository(self):
        self.publish_gguf("q4/tiny.gguf", "tiny q8.gguf", revision="v2")
        by_file = {}
        for file in ("q4/tiny.gguf", "tiny q8.gguf"):
            config = json.loads((self.trained(f"org/tiny-GGUF/{file}@v2") / "adapter_config.json").read_text())
            by_file[file] = (config["base_model_name_or_path"], config["revision"])
        self.assertEqual(by_file, {file: (f"org/tiny-GGUF/{file}", COMMITS["v2"]) for file in by_file})
        several = "org/tiny-GGUF@v2: holds 2 GGUF files: q4/tiny.gguf, tiny q8.gguf; name one of them, such as org/tiny-GGUF/q4/tiny.gguf@v2"
        self.assertIn(f"hub.yaml:2: model.path: {several}", self.cotune("train", self.jobs("org/tiny-GGUF@v2"), "--check", expect=2).stderr)
        self.assertIn(several, self.cotune("generate", "--model", "org/tiny-GGUF@v2", "--prompt", "x", expect=2).stderr)
        self.assertIn(several, self.cotune("profile", "org/tiny-GGUF@v2", "--output", self.path / "p.json", expect=2).stderr)

    def test_an_absent_gguf_file_is_named_with_the_command_that_fetches_it(self):
        errors = self.cotune("train", self.jobs("org/tiny-GGUF"), "--check", expect=2).stderr
        self.assertIn("`hf download org/tiny-GGUF FILE.gguf` fetches it", errors)
        self.publish_gguf("q4/tiny.gguf")
        errors = self.cotune("train", self.jobs("org/tiny-GGUF/q8/tiny.gguf"), "--check", expect=2).stderr
        self.assertIn(f"({self.cache}/models--org--tiny-GGUF holds no q8/tiny.gguf of revision main); `hf download org/tiny-GGUF q8/tiny.gguf` fetches it", errors)
        errors = self.cotune("generate", "--model", "org/tiny-GGUF/q8/tiny.gguf@v2", "--prompt", "x", expect=2).stderr
        self.assertIn("holds no revision v2); `hf download org/tiny-GGUF q8/tiny.gguf --revision v2` fetches it", errors)

    def test_a_model_that_was_fetched_in_part_is_told_how_to_get_the_rest(self):
        copy_model(self.path / "files")
        (self.path / "files/model.safetensors").unlink()
        self.publish("org/tiny", self.path / "files")
        wanted = f"is of the Hugging Face cache, which may hold a part only: `hf download org/tiny --revision {COMMITS['main']}` fetches the rest"
        self.assertIn(wanted, self.cotune("train", self.jobs("org/tiny"), "--check", expect=2).stderr)
        for command in (["generate", "--prompt", "x"], ["evaluate", "--data", self.path / "text.jsonl"]):
            self.assertIn(wanted, self.cotune(*command, "--model", "org/tiny", expect=2).stderr)
        copy_model(self.path / "whole")
        adapter = self.trained(self.path / "whole", "--set", f"jobs.one.data.eval={self.path}/text.jsonl")
        merge = ["merge", "--adapter", adapter, "--output", self.path / "merged"]
        self.assertIn(wanted, self.cotune(*merge, "--model", "org/tiny", expect=2).stderr)
        self.assertIn(wanted, self.cotune("evaluate", "--run", self.path / "run", "--model", "org/tiny", expect=2).stderr)

    def test_a_model_that_was_fetched_without_its_tokenizer_is_told_how_to_get_it(self):
        copy_model(self.path / "files")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (self.path / "files" / file).unlink()
        self.publish("org/tiny", self.path / "files")
        wanted = f"it is of the Hugging Face cache, which may hold a part only: `hf download org/tiny --revision {COMMITS['main']}` fetches the rest"
        self.assertIn(wanted, self.cotune("train", self.jobs("org/tiny"), "--check", expect=2).stderr)
        for command in (["generate", "--prompt", "x"], ["evaluate", "--exact-match", "--data", self.path / "text.jsonl"]):
            self.assertIn(wanted, self.cotune(*command, "--model", "org/tiny", expect=2).stderr)

    def test_a_model_that_was_fetched_without_its_chat_template_is_told_how_to_get_it(self):
        copy_model(self.path / "files", template=None)
        self.publish("org/tiny", self.path / "files")
        self.assertIn("has no chat template, which --chat needs; it is of the Hugging Face cache, which may hold a part only: `hf download org/tiny",
                      self.cotune("generate", "--model", "org/tiny", "--chat", stdin_text="Hi\n", expect=2).stderr)

    def test_an_adapter_that_was_fetched_in_part_is_told_how_to_get_the_rest(self):
        copy_model(self.path / "files")
        adapter = self.trained(self.path / "files")
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            part = self.path / file.split(".")[0]
            part.mkdir()
            shutil.copy(adapter / file, part)
            self.publish("me/" + part.name, part)
            name = "me/" + part.name
            wanted = f"it is of the Hugging Face cache, which may hold a part only: `hf download {name} --revision {COMMITS['main']}` fetches the rest"
            for command in (["generate", "--prompt", "x"], ["evaluate", "--data", self.path / "text.jsonl"],
                            ["merge", "--output", self.path / "merged"]):
                errors = self.cotune(*command, "--adapter", name, "--model", self.path / "files", expect=2).stderr
                self.assertIn(wanted, errors)
                self.assertIn("adapter_config.json" if file == "adapter_model.safetensors" else "adapter_model.safetensors", errors)
            errors = self.cotune("train", self.jobs(self.path / "files", f"r: 4, init_from: {name}"), "--check", expect=2).stderr
            self.assertIn(wanted, errors)

    def test_adapters_are_found_by_name_wherever_they_are_named(self):
        copy_model(self.path / "files")
        self.publish("org/tiny", self.path / "files")
        adapter = self.trained("org/tiny")
        self.publish("me/adapter", adapter)
        options = ("--prompt", "abc", "--max-new-tokens", "8", "--json")
        by_path = json.loads(self.cotune("generate", "--adapter", adapter, *options).stdout)
        by_name = json.loads(self.cotune("generate", "--adapter", "me/adapter", *options).stdout)  # its model by name, too
        self.assertEqual(by_path["tokens"], by_name["tokens"])
        started = self.jobs("org/tiny", "r: 4, init_from: me/adapter")
        self.cotune("train", started, "--check", "--output-dir", self.path / "second")

    def test_a_shape_is_taken_from_a_model_by_its_name(self):
        folder = copy_model(self.path / "files")
        self.publish("org/tiny", folder)
        self.publish("tiny", folder)

        def plan(config, **options):
            path = self.path / "shape.yaml"
            path.write_text(f"cotune: 1\nmodel: {{config: {config}, weights: none}}\njobs:\n"
                            "  - {name: one, data: {lengths: [4, 8]}, train: {steps: 2}}\n")
            return self.cotune("plan", path, **options)

        def planned(config):
            return re.sub(r"[\d.]+ [GM]iB", "", plan(config).stdout)  # which depend on this machine's free memory
        of_file = planned(folder / "config.json")
        for name in ("org/tiny", "tiny", f"org/tiny@{COMMITS['main']}"):
            self.assertEqual(planned(name), of_file, name)
        self.assertIn("`hf download org/none` fetches it", plan("org/none", expect=2).stderr)
        self.assertIn("model preset 'none' is not known", plan("none", expect=2).stderr)
        (folder / "config.json").unlink()
        snapshot = self.publish("org/part", folder)
        self.assertIn(f"{snapshot}: has no config.json; it is of the Hugging Face cache, which may hold a part only: `hf download org/part --revision "
                      f"{COMMITS['main']}` fetches the rest", plan("org/part", expect=2).stderr)

    def test_profiles_take_names(self):
        copy_model(self.path / "files")
        self.publish("org/tiny", self.path / "files")
        self.cotune("profile", "org/tiny", "--seconds", "0.1", "--output", self.path / "p.json")
        self.assertTrue((self.path / "p.json").exists())
        errors = self.cotune("profile", "org/none", "--output", self.path / "p.json", expect=2).stderr
        self.assertIn("`hf download org/none` fetches it", errors)


if __name__ == "__main__":
    unittest.main()
