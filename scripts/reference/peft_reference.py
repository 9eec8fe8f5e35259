#!/usr/bin/env python3
"""Writes tests/engine/data/peft: LoRA training runs of Hugging Face PEFT in f64, to hold the engine against.

    python scripts/reference/peft_reference.py [--check]

Needs the packages of `scripts/install-dependencies --comparisons`. --check repeats every run, compares it with the
committed files (1e-9 relative) and writes nothing. Equal package versions give equal files.

One folder per job, MODEL/JOB, over the tiny model tests/model_weights/data/MODEL (f32 weights, widened to f64):

  adapter_config.json, adapter_model.safetensors   the initial adapter as PEFT saves it, f32; B is not zero in half of
                                the jobs
  job.json                      settings in the words of jobs.yaml, the rows, and per optimizer step: the rows of the
                                batch, loss, learning rate, gradient norm, number of labelled tokens
  reference.safetensors         first_gradient.NAME and final.NAME, f64; NAME as in adapter_model.safetensors

What is computed, exactly:

* A row is input_ids and labels of the same length. Position i's logits predict labels[i + 1]; -100 is "not learned".
  labels[0] is therefore never used and does not count. Attention is causal over the row; positions count from 0.
* The loss of a step is the sum over its batch's rows of the cross-entropy at labelled positions, divided by the number
  of labelled positions of that batch: one mean over the batch, not a mean of row means. Rows go through the model one
  at a time, so there is no padding anywhere.
* Everything is f64. transformers computes norms, rotary tables, softmax and its loss in f32 even for an f64 model; here
  the norm and the rotary table are replaced by f64 versions (inverse frequencies by the formula, in f64, Llama 3
  scaling included), attention is torch's scaled_dot_product_attention in f64, the loss is computed from f64 logits.
* LoRA: W x + scaling · B (A x), scaling alpha / r, or alpha / sqrt(r) with use_rslora; dropout 0. Patterns of ranks and
  alphas as PEFT resolves them.
* Batches: rows in file order, batch_size rows a step, the list starting again at its end (a batch never spans it: an
  epoch's last batch may be smaller).
* Gradient norm: L2 over all trainable gradients of the job, before clipping. Clipping multiplies every gradient by
  min(1, max_grad_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. first_gradient is before clipping.
* AdamW as torch.optim.AdamW: decoupled weight decay on A and B alike, bias corrections, eps outside the root.
  SGD as torch.optim.SGD with momentum (no dampening, no Nesterov). LoRA+: B's rate is lora_plus_ratio times A's
  (peft.optimizers.create_loraplus_optimizer); the learning rate recorded is A's.
* Schedules as transformers': step t counts from 0; with warm-up w the factor is t / w for t < w (so the first step of
  a warm-up has rate 0), then 1 (constant), (steps - t) / (steps - w) (linear), or
  (1 + cos(pi (t - w) / (steps - w))) / 2 (cosine).
"""
import argparse
import json
import math
import pathlib
import random
import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, get_constant_schedule_with_warmup
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 50
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# `adapter` and `train` are in the words of jobs.yaml; `rows` are (count, shortest, longest, share of labelled tokens).
JOBS = {
    "smollm2/all_linear": dict(
        adapter=dict(r=4, alpha=8, target_modules=LINEAR), b_zero=True, rows=(12, 3, 24, 1.0),
        train=dict(batch_size=4, learning_rate=4e-3, weight_decay=0.01)),
    "smollm2/rslora_cosine_clipped": dict(
        adapter=dict(r=3, alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj"]), b_zero=False,
        rows=(7, 2, 97, 0.5),
        train=dict(batch_size=3, learning_rate=8e-3, lr_scheduler="cosine", warmup_steps=5, max_grad_norm=0.5)),
    "smollm2/lora_plus_mlp": dict(
        adapter=dict(r=8, alpha=4, target_modules=["gate_proj", "up_proj", "down_proj"], lora_plus_ratio=4.0),
        b_zero=True, rows=(9, 5, 33, 0.75),
        train=dict(batch_size=3, learning_rate=2e-3, weight_decay=0.1, lr_scheduler="linear", warmup_steps=3)),
    "smollm2/upper_layer_patterns_sgd": dict(
        adapter=dict(r=2, alpha=4, target_modules=["o_proj", "down_proj"], layers_to_transform=[1],
                     rank_pattern={"down_proj": 5}, alpha_pattern={"down_proj": 15}),
        b_zero=False, rows=(5, 8, 20, 1.0),
        train=dict(batch_size=5, optimizer="sgd", momentum=0.9, learning_rate=5e-3)),
    "qwen2/all_linear_cosine": dict(
        adapter=dict(r=3, alpha=6, target_modules=LINEAR), b_zero=False, rows=(10, 4, 40, 0.25),
        train=dict(batch_size=5, learning_rate=5e-3, lr_scheduler="cosine", warmup_steps=4, max_grad_norm=1.0)),
    "qwen2/attention_lora_plus": dict(
        adapter=dict(r=5, alpha=5, use_rslora=True, target_modules=["q_proj", "k_proj", "v_proj"],
                     lora_plus_ratio=2.0),
        b_zero=True, rows=(8, 2, 30, 1.0),
        train=dict(batch_size=8, learning_rate=6e-3, weight_decay=0.02, beta1=0.85, beta2=0.99, epsilon=1e-7)),
    "llama3/all_linear_linear": dict(
        adapter=dict(r=2, alpha=8, target_modules=LINEAR), b_zero=False, rows=(6, 10, 80, 0.5),
        train=dict(batch_size=2, learning_rate=3e-3, lr_scheduler="linear", warmup_steps=5, weight_decay=0.01)),
    "llama2/all_linear_linear": dict(
        adapter=dict(r=3, alpha=6, target_modules=LINEAR), b_zero=True, rows=(9, 3, 60, 0.5),
        train=dict(batch_size=3, learning_rate=5e-3, lr_scheduler="linear", warmup_steps=2, max_grad_norm=1.0)),
    "mistral/all_linear_rslora": dict(
        adapter=dict(r=4, alpha=4, use_rslora=True, target_modules=LINEAR), b_zero=False, rows=(8, 6, 50, 1.0),
        train=dict(batch_size=4, learning_rate=4e-3, weight_decay=0.02, lr_scheduler="cosine")),
}


def inverse_frequencies(config):
    """Rotary frequencies in f64: the default rule and Llama 3's scaling (transformers.modeling_rope_utils)."""
    rope = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    frequencies = rope["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope["rope_type"] == "default":
        return frequencies
    if rope["rope_type"] != "llama3":
        raise ValueError("no f64 rule for rope type " + rope["rope_type"])
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    old_length = rope["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequencies
    smooth = (old_length / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelength > old_length / low, frequencies / factor, blended)
    return torch.where(wavelength < old_length / high, frequencies, scaled)


class WideNorm(torch.nn.Module):
    """Root-mean-square normalisation without transformers' detour through f32."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class WideRotary(torch.nn.Module):
    """Tables of cosines and sines in f64, in the layout of transformers' rotary embedding."""

    def __init__(self, config):
        super().__init__()
        self.frequencies = inverse_frequencies(config)

    def forward(self, x, position_ids):
        angles = position_ids[..., None].double() * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def wide_model(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, WideNorm(module))
    model.model.rotary_emb = WideRotary(model.config)
    model.config.use_cache = False
    return model


def make_rows(spec, vocabulary, generator):
    """Rows of random tokens. The first label is learned or not like the others and never counts; one row in a job with
    partly labelled rows has no label at all."""
    count, shortest, longest, share = spec
    lengths = [longest, shortest] + [generator.randint(shortest, longest) for _ in range(count - 2)]
    rows = []
    for index, length in enumerate(lengths):
        ids = [generator.randrange(3, vocabulary) for _ in range(length)]
        learned = share if share == 1.0 or index != 2 else 0.0
        labels = [token if generator.random() < learned else -100 for token in ids]
        if index != 2 or share == 1.0:
            labels[-1] = ids[-1]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def lora_config(adapter):
    words = {"alpha": "lora_alpha"}
    fields = {words.get(key, key): value for key, value in adapter.items() if key != "lora_plus_ratio"}
    return LoraConfig(lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", **fields)


def set_initial_values(model, b_zero, seed):
    """A as uniform as PEFT draws it, B zero or small; every value exact in f32."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            value = (torch.rand(parameter.shape, generator=generator) * 2 - 1) / math.sqrt(parameter.shape[1])
        elif "lora_B" in name:
            value = torch.randn(parameter.shape, generator=generator) * (0.0 if b_zero else 0.05)
        else:
            continue
        parameter.data = value.float().double()


def make_optimizer(model, job):
    train, trainable = job["train"], [p for p in model.parameters() if p.requires_grad]
    rate, decay = train["learning_rate"], train.get("weight_decay", 0.0)
    if train.get("optimizer") == "sgd":
        return torch.optim.SGD(trainable, lr=rate, momentum=train.get("momentum", 0.0), weight_decay=decay)
    settings = dict(betas=(train.get("beta1", 0.9), train.get("beta2", 0.999)), eps=train.get("epsilon", 1e-8))
    ratio = job["adapter"].get("lora_plus_ratio", 1.0)
    if ratio != 1.0:
        return create_loraplus_optimizer(model, torch.optim.AdamW, lr=rate, loraplus_lr_ratio=ratio,
                                         loraplus_weight_decay=decay, **settings, weight_decay=decay)
    return torch.optim.AdamW(trainable, lr=rate, weight_decay=decay, **settings)


def make_schedule(optimizer, train, step_count):
    kind, warmup = train.get("lr_scheduler", "constant"), train.get("warmup_steps", 0)
    if kind == "constant":
        return get_constant_schedule_with_warmup(optimizer, warmup)
    return {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[kind](
        optimizer, warmup, step_count)


def adapter_tensors(model, pick):
    """PEFT's names of the adapter's tensors → pick(parameter)."""
    return {name.replace(".default.", "."): pick(parameter).detach().clone().contiguous()
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_initial_adapter(model, folder, base_name):
    """The adapter as PEFT saves it, f32, with equal bytes for equal values."""
    folder.mkdir(parents=True, exist_ok=True)
    initial = {key: value.float() for key, value in adapter_tensors(model, lambda p: p.data).items()}
    assert set(initial) == set(get_peft_model_state_dict(model)), "the names are PEFT's"
    save_file(initial, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config["base_model_name_or_path"], config["target_modules"] = base_name, sorted(config["target_modules"])
    config["inference_mode"] = True
    (folder / "adapter_config.json").write_text(json.dumps(
        {key: value for key, value in sorted(config.items())}, indent=2, default=str) + "\n")


def train(model, job, rows, step_count=STEPS):
    optimizer = make_optimizer(model, job)
    schedule = make_schedule(optimizer, job["train"], step_count)
    trainable = [p for p in model.parameters() if p.requires_grad]
    batch_size = job["train"]["batch_size"]
    batches = [list(range(start, min(start + batch_size, len(rows)))) for start in range(0, len(rows), batch_size)]
    steps, first_gradient = [], None
    for step in range(step_count):
        batch = batches[step % len(batches)]
        labelled = sum(label != -100 for index in batch for label in rows[index]["labels"][1:])
        optimizer.zero_grad()
        total = 0.0
        for index in batch:
            logits = model(input_ids=torch.tensor([rows[index]["input_ids"]])).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, torch.tensor(rows[index]["labels"][1:]), ignore_index=-100,
                                                     reduction="sum") / labelled
            loss.backward()
            total += loss.item()
        if first_gradient is None:
            first_gradient = adapter_tensors(model, lambda p: p.grad)
        limit = job["train"].get("max_grad_norm", 0.0)
        norm = torch.nn.utils.clip_grad_norm_(trainable, limit if limit > 0 else math.inf).item()
        steps.append({"batch": batch, "loss": total, "learning_rate": optimizer.param_groups[0]["lr"],
                      "gradient_norm": norm, "labelled_tokens": labelled})
        optimizer.step()
        schedule.step()
    return steps, first_gradient


def run_job(name, job, folder):
    """Trains one job and writes its folder."""
    family = name.split("/")[0]
    seed = sum(ord(character) * (index + 1) for index, character in enumerate(name))
    torch.manual_seed(seed)
    model = wide_model(ROOT / "tests/model_weights/data" / family)
    rows = make_rows(job["rows"], model.config.vocab_size, random.Random(seed))
    model = get_peft_model(model, lora_config(job["adapter"])).double()
    model.train()
    set_initial_values(model, job["b_zero"], seed)
    save_initial_adapter(model, folder, family)
    steps, first_gradient = train(model, job, rows)
    tensors = {"first_gradient." + key: value for key, value in first_gradient.items()}
    tensors.update({"final." + key: value for key, value in adapter_tensors(model, lambda p: p.data).items()})
    save_file(tensors, folder / "reference.safetensors")
    about = {"model": family, "adapter": job["adapter"], "train": dict(job["train"], steps=STEPS)}
    text = json.dumps(about, indent=1)[:-2] + ',\n "rows": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + \
        '\n ],\n "steps": [\n  ' + ",\n  ".join(map(json.dumps, steps)) + "\n ]\n}\n"
    (folder / "job.json").write_text(text)
    epoch = math.ceil(len(rows) / job["train"]["batch_size"])
    before, after = (sum(s["loss"] for s in part) / epoch for part in (steps[:epoch], steps[-epoch:]))
    print(f"{name}: loss over an epoch {before:.4f} -> {after:.4f}")
    if after > 0.8 * before:
        sys.exit(f"{name}: the loss falls by less than 20%: choose another learning rate")


def differences(made, committed):
    """Largest relative difference of losses, gradients and final values between two folders of one job."""
    worst = 0.0
    ours, theirs = (json.loads((folder / "job.json").read_text()) for folder in (made, committed))
    if ours["rows"] != theirs["rows"] or ours["train"] != theirs["train"] or ours["adapter"] != theirs["adapter"]:
        return math.inf
    for a, b in zip(ours["steps"], theirs["steps"]):
        worst = max(worst, abs(a["loss"] - b["loss"]) / abs(b["loss"]))
    a, b = (load_file(folder / "reference.safetensors") for folder in (made, committed))
    for key in b:
        worst = max(worst, ((a[key] - b[key]).norm() / b[key].norm().clamp_min(1e-300)).item())
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    options = parser.parse_args()
    committed = ROOT / "tests/engine/data/peft"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        target = pathlib.Path(scratch) if options.check else committed
        for name, job in JOBS.items():
            run_job(name, job, target / name)
            if options.check:
                worst = differences(target / name, committed / name)
                print(f"  largest relative difference from the committed run: {worst:.2e}")
                if not worst <= 1e-9:
                    sys.exit(f"{name}: differs from the committed run")


if __name__ == "__main__":
    main()
