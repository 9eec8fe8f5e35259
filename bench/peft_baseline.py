#!/usr/bin/env python3
"""Trains a workload's jobs one after another with Hugging Face PEFT and prints what came of it as one JSON object.

    .deps/venv/bin/python bench/peft_baseline.py WORKLOAD_FOLDER --model HF_FOLDER [--mode shipped|tuned] [--threads N]
    .deps/venv/bin/python bench/peft_baseline.py WORKLOAD_FOLDER --model HF_FOLDER --prepare

The rows and jobs are those of bench/workloads.py, the model that of scripts/gguf-to-hf. All jobs share one process and
one copy of the model, as a careful user's script would: loading is paid once and is not timed. --prepare writes the
initial adapters (initial/JOB, PEFT's own initialisation) that both programs start from, and trains nothing.

  shipped   PEFT's and transformers' defaults: adapters f32 (autocast_adapter_dtype), each batch padded to its longest
            row, torch.optim.AdamW
  tuned     what their options give without changing the jobs: adapters in the model's dtype, AdamW fused, and
            --batching: by-length (rows sorted by length into batches, as group_by_length; each job sees the same rows
            in other company) or flattened (a batch's rows end to end in one row with positions that restart, no padding)

Printed keys: real_tokens, labelled_tokens, padded_tokens (computed, pads included), seconds_training, peak_rss_bytes
(of the process, model included), with --device cuda also peak_device_bytes (in tensors there), losses {job: [one per step]}, steps_timed, versions, and the settings. The first step of every
job is trained but not counted in real_tokens, labelled_tokens, padded_tokens and seconds_training: oneDNN makes its primitives there. A
step's time covers forward, backward, optimizer and the host's reading of the loss; its loss is the mean over the
batch's labelled tokens.
"""
import argparse
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


def train_job(base, job, workload, folder, options):
    """Trains one job and returns its figures and the base model without the adapter."""
    tuned = options.mode == "tuned"
    model = get_peft_model(base, lora_config(job["adapter"]), autocast_adapter_dtype=not tuned)
    set_peft_model_state_dict(model, load_file(folder / "initial" / job["name"] / "adapter_model.safetensors"))
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
    parser.add_argument("--model", required=True)
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
    base = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype).to(options.device)
    if options.prepare:
        prepare(base, workload, options.workload)
        return
    result = {"program": "peft", "mode": options.mode, "batching": options.batching if options.mode == "tuned" else "padded",
              "workload": workload["name"], "dtype": workload["dtype"], "threads": options.threads, "device": options.device,
              "versions": {"torch": torch.__version__, "peft": peft.__version__, "transformers": transformers.__version__},
              "real_tokens": 0, "labelled_tokens": 0, "padded_tokens": 0, "seconds_training": 0.0, "losses": {}, "steps_timed": 0}
    for job in workload["jobs"]:
        figures, base = train_job(base, job, workload, options.workload, options)
        result["losses"][job["name"]] = figures["losses"]
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
