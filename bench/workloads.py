#!/usr/bin/env python3
"""The benchmark's workloads: rows of token ids that cotune and HF PEFT both read, with a jobs file for each program.

    python3 bench/workloads.py FOLDER --model MODEL [--steps N] [--dtype bfloat16|float32] [NAME...]

Python's standard library only. Per workload NAME writes FOLDER/NAME/
  JOB.jsonl       one row a line, {"input_ids": [...], "labels": [...]}: labels[i] is input_ids[i] or -100 (not
                  learned), and position i's logits predict labels[i + 1]. Rows in training order: step t of a job
                  trains rows [t · batch_size, (t + 1) · batch_size)
  workload.json   the jobs and settings, as bench/peft_baseline.py reads them
  jobs.yaml       the same for `cotune train`; the jobs start from FOLDER/NAME/initial/JOB once
                  bench/peft_baseline.py --prepare has written those adapters
Lengths are uniform in [longest / 4, longest] (a job's `shortest`, where it has one), and one row of every batch has exactly
the longest length (unless `any_lengths`), so padding to the batch's longest is the same in every step. Tokens are drawn from a Zipf-like distribution, so that there is
something to learn. Everything follows from the seed in the job's name: equal arguments give equal files.
"""
import argparse
import json
import os
import random

VOCABULARY = 49152
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"method": "lora", "r": 16, "alpha": 32, "target_modules": LINEAR}
BOTTLENECK = {"method": "bottleneck", "bottleneck_size": 64}
DIFF_PRUNING = {"method": "diff_pruning", "density": 0.005, "target_modules": LINEAR, "selection_batches": 1}
SELECTION_ROUNDS = 16  # diff pruning chooses its entries in at most so many rounds before it trains (SmolLM2: 8)
FOUR = (32, 64, 128, 256)


def jobs_of(lengths, batch_size=8, full=False, labelled=1.0, adapters=None, more_steps=0):
    """more_steps: steps that every job but the last makes beyond those asked for."""
    return [{"name": f"job{index:02d}-{longest}", "longest": longest, "batch_size": batch_size, "full": full,
             "labelled": labelled, "adapter": (adapters or [LORA] * len(lengths))[index],
             "more_steps": more_steps if index + 1 < len(lengths) else 0}
            for index, longest in enumerate(lengths)]


WORKLOADS = {
    "four-jobs": jobs_of(FOUR),
    "four-jobs-full": jobs_of(FOUR, full=True),
    "four-jobs-quarter": jobs_of(FOUR, labelled=0.25),
    "sixteen-jobs": jobs_of((64,) * 16, batch_size=1),
    "one-job": jobs_of((256,)),
    # Three jobs of equal rows: one method each, and all of them LoRA. PEFT trains the second kind only. While the last job
    # chooses its entries the others train on; bench/compare.py counts the rounds in which all three make a step.
    "methods": jobs_of((64, 128, 256), adapters=[LORA, BOTTLENECK, DIFF_PRUNING], more_steps=SELECTION_ROUNDS),
    "methods-all-lora": jobs_of((64, 128, 256)),
}
TRAIN = {"optimizer": "adamw", "learning_rate": 2e-4, "weight_decay": 0.01, "lr_scheduler": "constant"}


def rows_of(job, steps, vocabulary=VOCABULARY):
    generator = random.Random(f"cotune benchmark {job['longest']} {job['name']}")
    rows = []
    for _ in range(steps):
        lengths = [job["longest"]] * job["batch_size"]
        if not job["full"]:
            # A batch of one row has no longest row to keep: its length is drawn.
            first = 1 if job["batch_size"] > 1 and not job.get("any_lengths") else 0
            shortest = job.get("shortest", job["longest"] // 4)
            lengths[first:] = [generator.randint(shortest, job["longest"]) for _ in lengths[first:]]
            generator.shuffle(lengths)
        for length in lengths:
            ids = [3 + int((vocabulary - 3) ** generator.random()) - 1 for _ in range(length)]
            first_label = length - max(1, round(length * job["labelled"]))
            rows.append({"input_ids": ids, "labels": [-100] * first_label + ids[first_label:]})
    return rows


def counts_of(rows):
    """Tokens of the rows, and positions with a label to predict (the first position predicts nothing)."""
    return {"real_tokens": sum(len(row["input_ids"]) for row in rows),
            "labelled_tokens": sum(label != -100 for row in rows for label in row["labels"][1:])}


def jobs_yaml(folder, model, dtype, jobs, steps, prepared=True):
    """YAML written by hand: JSON values are YAML values. model: a path, or the `model` section of a random one, whose jobs
    start from their seeds, as all do where no adapters are prepared."""
    about_model = {"path": model} if isinstance(model, str) else model
    lines = ["cotune: 1", f"model: {json.dumps({**about_model, 'dtype': dtype})}", "defaults:", "  train:"]
    lines += [f"    {key}: {json.dumps(value)}" for key, value in {**TRAIN, "steps": steps, "shuffle": "none"}.items()]
    lines.append("jobs:")
    for job in jobs:
        adapter = dict(job["adapter"])
        train = {"batch_size": job["batch_size"], "steps": steps + job["more_steps"]}
        if not isinstance(model, str):
            train["seed"] = job["seed"]
        elif prepared and adapter["method"] == "lora":
            adapter["init_from"] = os.path.join(folder, "initial", job["name"])
        data = {"train": os.path.join(folder, job["name"] + ".jsonl"), "format": "tokens"}
        lines += [f"  - name: {job['name']}", f"    data: {json.dumps(data)}", f"    adapter: {json.dumps(adapter)}",
                  f"    train: {json.dumps(train)}"]
    return "\n".join(lines) + "\n"


def write_workload(folder, name, model, steps, dtype, jobs_wanted=None, vocabulary=VOCABULARY, prepared=True):
    """Writes one workload's folder and returns the folder. Needs absolute paths in `folder` and `model` (jobs_yaml).
    jobs_wanted: those of WORKLOADS[name] where it is left out."""
    folder = os.path.join(folder, name)
    os.makedirs(folder, exist_ok=True)
    jobs = []
    for job in jobs_wanted or WORKLOADS[name]:
        rows = rows_of(job, steps + job["more_steps"], vocabulary)
        with open(os.path.join(folder, job["name"] + ".jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        jobs.append({**job, **counts_of(rows), "rows": job["name"] + ".jsonl"})
    about = {"name": name, "dtype": dtype, "steps": steps, "train": TRAIN, "jobs": jobs}
    with open(os.path.join(folder, "workload.json"), "w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
    with open(os.path.join(folder, "jobs.yaml"), "w", encoding="utf-8") as file:
        file.write(jobs_yaml(folder, model, dtype, jobs, steps, prepared))
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of " + ", ".join(WORKLOADS))
    parser.add_argument("--model", required=True, help="the model cotune opens: a GGUF file or a Hugging Face folder")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}; there are: {', '.join(WORKLOADS)}")
    for name in options.names or WORKLOADS:
        folder = write_workload(os.path.abspath(options.folder), name, os.path.abspath(options.model), options.steps,
                                options.dtype)
        with open(os.path.join(folder, "workload.json"), encoding="utf-8") as file:
            jobs = json.load(file)["jobs"]
        print(f"{folder}: {len(jobs)} jobs, {sum(job['real_tokens'] for job in jobs)} tokens in {options.steps} steps")


if __name__ == "__main__":
    main()
