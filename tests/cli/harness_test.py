#!/usr/bin/env python3
"""cotune evaluate judged by lm-evaluation-harness itself, where that is installed (scripts/install-dependencies --comparisons).

    COTUNE=build/cotune .deps/venv/bin/python tests/cli/harness_test.py [UNITTEST OPTIONS]
"""
import json
import os
import random
import unittest

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import needs
from generations import trained_adapter
from program import ProgramTest
from tiny_models import ROOT, byte_level, copy_model

if needs.is_here("lm_eval"):
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

ADAPTER = ROOT / "tests/engine/data/peft/smollm2/all_linear"
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@needs.required("lm_eval")
class Harness(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = copy_model(self.path / "model", template=None)
        self.adapter = trained_adapter(ADAPTER, self.path / "adapter", 1)
        self.questions = self.path / "questions.jsonl"
        os.environ["HF_HOME"] = str(self.path / "cache")
        self.tokenizer = copy_model(self.path / "tokenizer", template=None)  # the harness wants one with an end of text
        (self.tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": byte_level(2)}))

    def write_questions(self):
        draw = random.Random(5)
        text = lambda length: "".join(draw.choice("abcdefghij KLM.?") for _ in range(length)).strip() or "a"
        records = [{"question": text(30) + ":" + " " * (i % 2), "choices": [text(draw.randrange(1, 12)) for _ in range(4)], "answer": i % 4}
                   for i in range(24)]
        self.questions.write_text("".join(json.dumps(record) + "\n" for record in records))

    def judged(self, **model):
        task = self.path / "task"
        task.mkdir(exist_ok=True)
        (task / "own.yaml").write_text(TASK.format(name="own", file=self.questions))
        done = lm_eval.simple_evaluate(
            model=HFLM(pretrained=str(self.model), tokenizer=str(self.tokenizer), device="cpu", dtype="float32", batch_size=4, **model),
            tasks=["own"], task_manager=TaskManager(include_path=str(task), include_defaults=False), log_samples=True, bootstrap_iters=0)
        samples = sorted(done["samples"]["own"], key=lambda sample: sample["doc_id"])
        return done["results"]["own"], [[answer[0] for answer in sample["filtered_resps"]] for sample in samples]

    def test_multiple_choice_has_its_likelihoods_and_shares_for_the_base_and_a_peft_adapter(self):
        self.write_questions()
        answers = self.path / "answers.jsonl"
        done = self.run_program("evaluate", "--model", self.model, "--dtype", "f32", "--adapter", "base", "--adapter", f"own={self.adapter}",
                                "--data", self.questions, "--raw", "--json", "--answers", answers)
        ours = {line["adapter"]: line for line in map(json.loads, done.stdout.splitlines())}
        details = [json.loads(line) for line in answers.read_text().splitlines()]
        for name, model in (("base", {}), ("own", {"peft": str(self.adapter)})):
            shares, likelihoods = self.judged(**model)
            found = [detail["log_probabilities"] for detail in details if detail["adapter"] == name]
            self.assertEqual(len(found), len(likelihoods))
            for own, theirs in zip(found, likelihoods):
                for value, wanted in zip(own, theirs):
                    self.assertAlmostEqual(value, float(wanted), delta=1e-3)
            self.assertAlmostEqual(ours[name]["acc"], shares["acc,none"])
            self.assertAlmostEqual(ours[name]["acc_norm"], shares["acc_norm,none"])
        self.assertNotEqual(ours["base"]["acc"], ours["own"]["acc"])


if __name__ == "__main__":
    unittest.main()
