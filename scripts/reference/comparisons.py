"""The comparisons of scripts/compare-references, each a function of the folder that it works in; their texts stand there."""
import json
import math
import os
import random
import shutil
import subprocess
import sys

import bf16_roundings
import gradient_cosines
import peft_reference
import torch
import vocabularies
from comparing import COTUNE, GGUF, ROOT, cotune_train, load, need, report, report_run, smollm2, write_rows
from peft import PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

TEST_ENGINE, TEST_DATA = ROOT / "build/test_engine", ROOT / "build/test_data"
TINY = ROOT / "tests/model_weights/data"
LINEAR = peft_reference.LINEAR
STEPS = 20
PROSE = [
    "The old lighthouse at the end of the pier had been dark for years. One winter evening a fisherman saw its lamp "
    "burning again, and he rowed across the bay to find out who had lit it.",
    "Water boils at a lower temperature on a high mountain because the air pressure there is lower.",
    "def mean(values):\n    if not values:\n        raise ValueError('mean of an empty list')\n"
    "    return sum(values) / len(values)\n",
    "What is the capital of France? The capital of France is Paris, and the river Seine flows through it.",
    "Le vieux phare au bout de la jetée était éteint depuis des années.",
    "A compiler translates a program from one language to another; an interpreter runs it.",
]

# In the words of jobs.yaml. Rows are those of PROSE in turn, cut to `longest` tokens, or random on the tiny models.
LORA_JOBS = {
    "all-linear": dict(adapter=dict(r=8, alpha=16, target_modules=LINEAR), b_zero=True, longest=24,
                       train=dict(batch_size=2, learning_rate=2e-4, weight_decay=0.01)),
    "attention-rslora": dict(adapter=dict(r=4, alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj"]),
                             b_zero=True, longest=16,
                             train=dict(batch_size=3, learning_rate=4e-4, lr_scheduler="cosine", warmup_steps=3,
                                        max_grad_norm=1.0)),
    "mlp-lora-plus": dict(adapter=dict(r=6, alpha=6, target_modules=["gate_proj", "up_proj", "down_proj"],
                                       lora_plus_ratio=2.0), b_zero=True, longest=20,
                          train=dict(batch_size=2, learning_rate=1e-4, lr_scheduler="linear", warmup_steps=2)),
}


def random_ids(model, shape, seed):
    return torch.randint(3, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


def write_logits_case(work, name, model_path, adapter, logits, ids, limit=1e-4):
    """A case of tests/engine/live_logits_test.cc: the logits that ids should have; ours are of model_path and adapter."""
    folder = work / "logits"
    folder.mkdir(parents=True, exist_ok=True)
    expected = folder / (name.replace(" ", "-").replace("/", "-") + ".safetensors")
    save_file({"input_ids": ids, "logits": logits.float().contiguous()}, expected)
    return {"name": name, "model": str(model_path), "adapter": adapter and str(adapter), "expected": str(expected),
            "limit": limit}


def write_wide_case(work, name, adapter, with_adapter, ids):
    """A case of SmolLM2 against f64. with_adapter(model): the model that transformers computes with."""
    folder = smollm2(work)
    wide = logits_of(with_adapter(peft_reference.wide_model(folder)).double(), ids)
    off = (logits_of(with_adapter(load(folder)), ids).double() - wide).abs().max().item()
    print(f"{name}: in f32 off by {off:.2e} in transformers")
    return write_logits_case(work, name, GGUF, adapter, wide, ids, max(1e-4, off))


def compare_logits(work, cases):
    """Ours by the engine's test program, in one run; one line per case."""
    need(TEST_ENGINE, "scripts/build --tests test_engine builds it")
    path = work / "logits/cases.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run([str(TEST_ENGINE), "--gtest_filter=LiveLogits.*"], capture_output=True, text=True,
                          check=False, env=dict(os.environ, COTUNE_LOGITS_CASES=str(path)))
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("LOGITS "):
            _, difference, name = line.split(" ", 2)
            found[name] = float(difference)
    for case in cases:
        if case["name"] not in found:
            print((done.stdout + done.stderr)[-2000:], file=sys.stderr)
        report(case["name"], found.get(case["name"], math.inf), case["limit"])


def logits(work):
    cases = []
    for family in sorted(path.parent.name for path in TINY.glob("*/config.json")):
        for dtype in (torch.float64, torch.float32):
            model = load(TINY / family, dtype)
            ids = random_ids(model, (3, 41), len(family))
            bits = "f64" if dtype == torch.float64 else "f32"
            name = f"logits {family}, transformers {bits}"
            cases.append(write_logits_case(work, name, TINY / family, None, logits_of(model, ids), ids))
    tokenizer = AutoTokenizer.from_pretrained(smollm2(work))
    ids = torch.tensor([tokenizer(text)["input_ids"][:17] for text in PROSE[:3]])
    cases.append(write_wide_case(work, "logits SmolLM2, transformers f64", None, lambda model: model, ids))
    compare_logits(work, cases)


def rows_of_job(folder, job, seed):
    """Prose; for tiny models, which have no tokenizer, random tokens. Of every other row a third is not learned."""
    if (folder / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        all_ids = [tokenizer(text)["input_ids"][:job["longest"]] for text in PROSE]
    else:
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        draw = random.Random(seed)
        all_ids = [[draw.randrange(3, vocabulary) for _ in range(draw.randint(2, job["longest"]))] for _ in PROSE]
    unlearned = [len(ids) // 3 if index % 2 else 0 for index, ids in enumerate(all_ids)]
    return [{"input_ids": ids, "labels": [-100] * count + ids[count:]} for ids, count in zip(all_ids, unlearned)]


def weight_changes(tensors):
    """{module: B A} of an adapter's tensors; the scale is the same on both sides, and B is zero at the start."""
    return {key.replace(".lora_A.weight", ""): tensors[key.replace("lora_A", "lora_B")].double() @ value.double()
            for key, value in tensors.items() if "lora_A" in key}


def largest_relative(made, wanted):
    """The largest difference of two lists of losses over the loss; infinity where one is longer."""
    if len(made) != len(wanted):
        return math.inf
    return max(abs(a - b) / b for a, b in zip(made, wanted))


def relative_norm(made, wanted):
    """|made - wanted| / |wanted| over all modules."""
    return math.sqrt(sum((made[key] - wanted[key]).square().sum().item() for key in wanted) /
                     sum(wanted[key].square().sum().item() for key in wanted))


def paths_of(work, model_name):
    """What transformers and what cotune open."""
    return (smollm2(work), GGUF) if model_name == "SmolLM2" else (TINY / model_name, TINY / model_name)


def peft_run(base, job, rows, index, dtype, initial=None):
    """Losses and final tensors of a job trained with PEFT; `initial` gets the adapter that it starts from."""
    torch.manual_seed(index)
    model = get_peft_model(base, peft_reference.lora_config(job["adapter"])).to(dtype)
    model.train()
    peft_reference.set_initial_values(model, job["b_zero"], index + 1)  # leaves f64 parameters
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if initial:
        peft_reference.save_initial_adapter(model, *initial)
    steps, _ = peft_reference.train(model, job, rows, STEPS)
    return [step["loss"] for step in steps], peft_reference.adapter_tensors(model, lambda p: p.data)


def trained_jobs(work, model_name):
    """Trains LORA_JOBS with PEFT, one by one, and with cotune, together. Kept for `adapters` and `generation`. SmolLM2 with
    PEFT in f64, too: what is expected then, with how far PEFT's f32 losses and weight changes are off."""
    model_folder, model_path = paths_of(work, model_name)
    folder = work / "training" / model_name
    jobs, expected = {}, {}
    for index, (name, job) in enumerate(LORA_JOBS.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = rows_of_job(model_folder, job, index)
        write_rows(folder / name / "rows.jsonl", rows)
        initial = (folder / name / "initial", model_name)
        losses, tensors = peft_run(load(model_folder), job, rows, index, torch.float32, initial)
        expected[name] = (losses, tensors, 0.0, 0.0)
        if model_name == "SmolLM2":
            wide = peft_run(peft_reference.wide_model(model_folder), job, rows, index, torch.float64)
            expected[name] = (*wide, largest_relative(losses, wide[0]),
                              relative_norm(weight_changes(tensors), weight_changes(wide[1])))
        jobs[name] = (dict(job["adapter"], init_from=str(folder / name / "initial")), job["train"],
                      {"train": str(folder / name / "rows.jsonl"), "format": "tokens"})
    summary = cotune_train(folder, model_path, jobs, "float32", STEPS)
    return folder, model_folder, model_path, summary, expected


def training(work):
    for model_name in ("smollm2", "qwen2", "SmolLM2"):
        folder, _, _, summary, expected = trained_jobs(work, model_name)
        label = "SmolLM2-135M" if model_name == "SmolLM2" else "tiny " + model_name
        for name, (losses, tensors, losses_off, changes_off) in expected.items():
            if losses_off:
                print(f"training {label} {name}: PEFT in f32 is off by {losses_off:.2e}, weight changes {changes_off:.2e}")
            report(f"training {label} {name}: {STEPS} losses", largest_relative(summary["losses"][name], losses),
                   max(1e-5, 2 * losses_off))
            made = weight_changes(load_file(folder / "run/jobs" / name / "adapter/adapter_model.safetensors"))
            wanted = weight_changes(tensors)
            worst = relative_norm(made, wanted) if made.keys() == wanted.keys() else math.inf
            report(f"training {label} {name}: weight changes", worst, max(1e-3, 2 * changes_off))


def finished_run(work, model_name):
    folder = work / "training" / model_name
    if not (folder / "run/summary.json").exists():
        trained_jobs(work, model_name)
    return folder / "run/jobs"


def adapters(work):
    cases = []
    for model_name in ("smollm2", "SmolLM2"):
        run = finished_run(work, model_name)
        model_folder, path = paths_of(work, model_name)
        for name in LORA_JOBS:
            adapter = run / name / "adapter"
            with_adapter = lambda base, adapter=adapter: PeftModel.from_pretrained(base, adapter).eval()
            model = with_adapter(load(model_folder))
            saved = load_file(adapter / "adapter_model.safetensors")
            taken = get_peft_model_state_dict(model, save_embedding_layers=False)
            whole = saved.keys() == taken.keys() and all(torch.equal(taken[key].float(), saved[key]) for key in saved)
            label = "SmolLM2-135M" if model_name == "SmolLM2" else "tiny " + model_name
            report(f"adapter {label} {name}: tensors PEFT did not take whole", 0 if whole else 1, 0)
            ids = random_ids(model, (2, 23), 5)
            case = f"adapter {label} {name}: logits"
            cases.append(write_wide_case(work, case, adapter, with_adapter, ids) if model_name == "SmolLM2" else
                         write_logits_case(work, case, path, adapter, logits_of(model, ids), ids))
    compare_logits(work, cases)


def generation(work):
    model_folder, run = smollm2(work), finished_run(work, "SmolLM2")
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    for adapter in (None, "all-linear"):
        model = load(model_folder)
        if adapter:
            model = PeftModel.from_pretrained(model, run / adapter / "adapter").eval()
        for index, prompt in enumerate(("The old lighthouse", "def add(a, b):\n")):
            ids = torch.tensor([tokenizer(prompt)["input_ids"]])
            with torch.no_grad():
                whole = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                       max_new_tokens=24, use_cache=True, pad_token_id=0)
            wanted = whole[0, ids.shape[1]:].tolist()
            command = [COTUNE, "generate", "--model", str(GGUF), "--raw", "--prompt", prompt, "--max-new-tokens", "24",
                       "--temperature", "0", "--dtype", "float32", "--json"]
            if adapter:
                command += ["--adapter", str(run / adapter / "adapter")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            ours = json.loads(done.stdout)["tokens"] if done.returncode == 0 else []
            wanted = wanted[:-1] if wanted and wanted[-1] == tokenizer.eos_token_id else wanted
            different = sum(a != b for a, b in zip(ours, wanted)) + abs(len(ours) - len(wanted))
            report(f"generation {adapter or 'base'}, prompt {index + 1}: different tokens", different, 0)


def committed(work):
    here = ROOT / "scripts/reference"
    report_run("committed PEFT runs, f64", [sys.executable, here / "peft_reference.py", "--check"])
    report_run("committed adapters in PEFT", [sys.executable, here / "adapter_reference.py", "--check"])
    report_run("committed greedy generation", [sys.executable, here / "generation_reference.py", "--check"])
    shutil.rmtree(work / "models", ignore_errors=True)
    subprocess.run([sys.executable, here / "model_reference.py", "--tests", work / "models"], check=True,
                   capture_output=True)
    for made in sorted((work / "models/model_weights/data").glob("*/logits.safetensors")):
        new, old = load_file(made), load_file(TINY / made.parent.name / made.name)
        same_rows = torch.equal(new["input_ids"], old["input_ids"])
        difference = (new["logits"] - old["logits"]).abs().max().item() if same_rows else math.inf
        report(f"committed logits of {made.parent.name}", difference, 1e-5)


def tokenizers(work):
    need(TEST_DATA, "scripts/build --tests test_data builds it")
    vocabularies.fetch(work / "vocabularies")
    command = [sys.executable, ROOT / "scripts/reference/tokenizer_reference.py", "--live", "--test", TEST_DATA,
               "--work", work / "tokenizers", "--vocabularies", work / "vocabularies"]
    report_run("tokenizers, megabytes of text", command + (["--smollm", GGUF] if GGUF.exists() else []))


def templates(work):
    report_run("chat templates, transformers' rendering",
               [sys.executable, ROOT / "scripts/reference/template_reference.py", "--live"])


def gradients(work):
    """Ours by the engine's test program, which holds them to its limits and records them."""
    theirs, f32_stream = gradient_cosines.peft_cosines(smollm2(work))
    need(TEST_ENGINE, "scripts/build --tests test_engine builds it")
    found = work / "gradients.json"
    found.unlink(missing_ok=True)
    report_run("gradients SmolLM2, bf16 within the test's limits of f32",
               [TEST_ENGINE, "--gtest_filter=Bf16Gradients.OfSmolLm2PointWhereThoseOfF32Do", f"--gtest_output=json:{found}"], cwd=ROOT)
    ours = json.loads(found.read_text())["testsuites"][0]["testsuite"][0]
    if "lowest_cosine" not in ours:
        sys.exit(f"scripts/compare-references: {TEST_ENGINE} did not run on SmolLM2")
    print(f"  {len(theirs)} modules, cosine of bf16 with f32: ours lowest {float(ours['lowest_cosine']):.4f}, median "
          f"{float(ours['median_cosine']):.4f}; PEFT lowest {theirs[0]:.4f}, median {theirs[len(theirs) // 2]:.4f}; "
          f"PEFT with a residual stream in f32 lowest {f32_stream[0]:.4f}, below 0.999 {sum(each < 0.999 for each in f32_stream)}")
    bf16_roundings.show(smollm2(work))
