#!/usr/bin/env python3
"""Trains a workload's jobs one after another with Hugging Face PEFT and prints what came of it as one JSON object.

    .deps/venv/bin/python bench/peft_baseline.py WORKLOAD_FOLDER --model HF_FOLDER [--mode shipped|tuned] [--threads N]
    .deps/venv/bin/python bench/peft_baseline.py WORKLOAD_FOLDER --model HF_FOLDER --prepare
    .deps/venv/bin/python bench/peft_baseline.py WORKLOAD_FOLDER --config CONFIG_JSON --seed N --device cuda

The rows and jobs are those of bench/workloads.py, the model that of scripts/gguf-to-hf, or with --config one of random
weights, which are those that cotune makes of the same seed, as are the jobs' initial adapters. All jobs share one process and
one copy of the model, as a careful user's script would: loading is paid once and is not timed. --prepare writes the
initial adapters (initial/JOB, PEFT's own initialisation) that both programs start from, and trains nothing.

  shipped   PEFT's and transformers' defaults: adapters f32 (autocast_adapter_dtype), each batch padded to its longest
            row, torch.optim.AdamW
  tuned     what their options give without changing the jobs: adapters in the model's dtype, AdamW fused, and
            --batching: by-length (rows sorted by length into batches, as group_by_length; each job sees the same rows
            in other company) or flattened (a batch's rows end to end in one row with positions that restart, no padding)

--checkpointing auto trains without gradient checkpointing and begins again with it where the device's memory does not
suffice; gradient_checkpointing says which it was.

Printed keys: real_tokens, labelled_tokens, padded_tokens (computed, pads included), seconds_training, peak_rss_bytes
(of the process, model included), with --device cuda also peak_device_bytes (in tensors there), losses {job: [one per step]}, steps_timed, versions, and the settings. The first step of every
job is trained but not counted in real_tokens, labelled_tokens, padded_tokens and seconds_training: oneDNN makes its primitives there. A
step's time covers forward, backward, optimizer and the host's reading of the loss; its loss is the mean over the
batch's labelled tokens.
"""
import argparse
import gc
import json
import os
import pathlib
import resource
import sys
import time

try:
    import peft
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    import random_values
except ImportError as error:
    sys.exit(f"bench/peft_baseline.py: {error}; run it with .deps/venv/bin/python after scripts/install-dependencies --comparisons")


def read_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def batches_of(rows, batch_size, batching):
    order = list(range(len(rows)))
    if batching == "by-length":
        order.sort(key=lambda index: len(rows[index]["input_ids"]))
    return [[rows[index] for index in order[start:start + batch_size]] for start in range(0, len(rows), batch_size)]


def tensors_of(batch, batching, device):
    """What the model is called with: one padded batch, or all rows flattened into one."""
    return {name: tensor.to(device) for name, tensor in host_tensors_of(batch, batching).items()}


def host_tensors_of(batch, batching):
    if batching == "flattened":
        # The first label of a row would be predicted by the row before it.
        return {"input_ids": torch.tensor([[token for row in batch for token in row["input_ids"]]]),
                "labels": torch.tensor([[label for row in batch for label in [-100] + row["labels"][1:]]]),
                "position_ids": torch.tensor([[position for row in batch for position in range(len(row["input_ids"]))]])}
    longest = max(len(row["input_ids"]) for row in batch)
    pad = lambda values, value: values + [value] * (longest - len(values))
    return {"input_ids": torch.tensor([pad(row["input_ids"], 0) for row in batch]),
            "labels": torch.tensor([pad(row["labels"], -100) for row in batch]),
            "attention_mask": torch.tensor([pad([1] * len(row["input_ids"]), 0) for row in batch])}


def lora_config(adapter):
    if adapter["method"] != "lora":
        raise SystemExit(f"bench/peft_baseline.py: PEFT has no adapter method {adapter['method']}")
    return LoraConfig(r=adapter["r"], lora_alpha=adapter["alpha"], target_modules=adapter["target_modules"],
                      lora_dropout=0.0, task_type="CAUSAL_LM")


def base_model(options, dtype):
    if options.model:
        return transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype,
                                                                 attn_implementation=options.attention).to(options.device)
    config = transformers.AutoConfig.from_pretrained(options.config)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=options.attention)
    random_values.fill_model(model, options.seed)
    return model


def train_job(base, job, workload, folder, options):
    """Trains one job and returns its figures and the base model without the adapter."""
    tuned = options.mode == "tuned"
    model = get_peft_model(base, lora_config(job["adapter"]), autocast_adapter_dtype=not tuned)
    if options.model:
        set_peft_model_state_dict(model, load_file(folder / "initial" / job["name"] / "adapter_model.safetensors"))
    else:
        random_values.fill_adapter(model, job["seed"])
    model.train()
    settings = workload["train"]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=settings["learning_rate"],
                                  weight_decay=settings["weight_decay"], fused=True if tuned else None)
    batching = options.batching if tuned else "padded"
    batches = batches_of(read_rows(folder / job["rows"]), job["batch_size"], batching)[:options.steps or None]
    figures = {"losses": [], "real_tokens": 0, "labelled_tokens": 0, "padded_tokens": 0, "seconds": 0.0}
    for step, batch in enumerate(batches):
        start = time.perf_counter()
        tensors = tensors_of(batch, batching, options.device)
        loss = model(**tensors, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        figures["losses"].append(loss.item())
        if step > 0:
            figures["seconds"] += time.perf_counter() - start
            figures["real_tokens"] += sum(len(row["input_ids"]) for row in batch)
            figures["labelled_tokens"] += sum(label != -100 for row in batch for label in row["labels"][1:])
            figures["padded_tokens"] += tensors["input_ids"].numel()
    return figures, model.unload()


def train_jobs(base, workload, options):
    """The figures of all jobs, one after another, and the base model."""
    figures = {}
    for job in workload["jobs"]:
        figures[job["name"]], base = train_job(base, job, workload, options.workload, options)
    return figures, base


def train_as_memory_allows(make_base, workload, options):
    """The figures of all jobs, and whether the forward pass was computed again in the backward pass."""
    with_checkpointing = {"auto": [False, True], "on": [True], "off": [False]}[options.checkpointing]
    for checkpointing in with_checkpointing:
        base = make_base()
        if checkpointing:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        try:
            return train_jobs(base, workload, options)[0], checkpointing
        except torch.OutOfMemoryError:
            if checkpointing == with_checkpointing[-1]:
                raise
        del base  # with the exception gone, nothing holds what was computed
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def prepare(base, workload, folder):
    for job in workload["jobs"]:
        target = folder / "initial" / job["name"]
        if job["adapter"]["method"] == "lora" and not (target / "adapter_model.safetensors").exists():
            torch.manual_seed(sum(job["name"].encode()))
            model = get_peft_model(base, lora_config(job["adapter"]))
            model.save_pretrained(target)
            base = model.unload()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=pathlib.Path)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="a Hugging Face folder")
    model.add_argument("--config", help="a config.json: random weights of --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    parser.add_argument("--checkpointing", choices=["auto", "on", "off"], default="off")
    parser.add_argument("--mode", choices=["shipped", "tuned"], default="shipped")
    parser.add_argument("--batching", choices=["by-length", "flattened"], default="by-length")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=0, help="stop every job after so many steps (0: all its rows)")
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    workload = json.loads((options.workload / "workload.json").read_text())
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[workload["dtype"]]
    if options.prepare:
        prepare(base_model(options, dtype), workload, options.workload)
        return
    by_job, checkpointing = train_as_memory_allows(lambda: base_model(options, dtype), workload, options)
    result = {"program": "peft", "mode": options.mode, "batching": options.batching if options.mode == "tuned" else "padded",
              "workload": workload["name"], "dtype": workload["dtype"], "threads": options.threads, "device": options.device,
              "attention": options.attention, "gradient_checkpointing": checkpointing,
              "versions": {"torch": torch.__version__, "peft": peft.__version__, "transformers": transformers.__version__},
              "real_tokens": 0, "labelled_tokens": 0, "padded_tokens": 0, "seconds_training": 0.0, "losses": {}, "steps_timed": 0}
    for job, figures in by_job.items():
        result["losses"][job] = figures["losses"]
        result["steps_timed"] += len(figures["losses"]) - 1
        result["seconds_training"] += figures["seconds"]
        for key in ("real_tokens", "labelled_tokens", "padded_tokens"):
            result[key] += figures[key]
    if result["steps_timed"] == 0:
        sys.exit("bench/peft_baseline.py: a workload needs at least two steps; the first is not timed")
    result["real_tokens_per_s"] = round(result["real_tokens"] / result["seconds_training"], 2)
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.device == "cuda":
        result["peak_device_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
