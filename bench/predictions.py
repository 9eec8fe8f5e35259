#!/usr/bin/env python3
"""Predictions of time and memory next to measurements, on job mixes that no prediction was fitted to.

    python3 bench/predictions.py --model MODEL [--no-docs]                        everything: about 8 minutes on two cores
    python3 bench/predictions.py --model MODEL --only profile | runs | table      one part; results stay in --folder

profile   `cotune profile`
runs      trains every mix with `cotune train --profile`, in --passes turns over all mixes, --rounds rounds each
table     compares, and writes the table into docs/planning.md

The mixes come from a seed that is written here: one to eight jobs, any method, ranks and widths from 2 to 96, lengths from
8 to 1,500 tokens, one to twelve rows a batch, a tenth to all tokens labelled, dropout or none: much of it outside the shapes
that are profiled. Goals: step time within 10% (mean over mixes), counted bytes within 0.25% per job and per kind, process
peak within 5%. Bytes do not depend on how busy the machine is; times do, and the output says how busy it was.
Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys

import compare
import page_part

SEED = 20270311
MIXES = 12
ROOT = pathlib.Path(__file__).resolve().parent.parent
GOALS = {"time": 0.10, "bytes": 0.0025, "process": 0.05}
EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BUSY = 0.1  # cores that others kept busy before a run, from which on its times are not to be trusted


def draw_adapter(generator, allow_diff):
    kind = generator.choices(["lora", "bottleneck", "diff_pruning"], [7, 2, 1.5 if allow_diff else 0])[0]
    if kind == "bottleneck":
        return {"method": "bottleneck", "bottleneck_size": generator.randint(4, 96), "activation": "relu"}
    if kind == "diff_pruning":
        return {"method": "diff_pruning", "density": generator.choice([0.002, 0.007, 0.015]), "selection_batches": 1,
                "target_modules": generator.choice([EVERYWHERE, ["q_proj", "v_proj", "down_proj"]])}
    rank = generator.choice([2, 6, 8, 12, 16, 24, 40, 64, 96])
    targets = generator.choice([EVERYWHERE, EVERYWHERE, ["q_proj", "v_proj"], ["q_proj", "o_proj", "up_proj"]])
    return {"method": "lora", "r": rank, "alpha": rank, "dropout": generator.choice([0, 0, 0.05]), "target_modules": targets}


def draw_mixes():
    """Mixes of about 300 to 2,500 tokens a round."""
    generator = random.Random(SEED)
    mixes = []
    while len(mixes) < MIXES:
        jobs, has_diff = [], False
        for index in range(generator.choice([1, 1, 2, 3, 4, 6, 8])):
            adapter = draw_adapter(generator, not has_diff)
            has_diff = has_diff or adapter["method"] == "diff_pruning"
            longest = round(8 * (1500 / 8) ** (generator.random() ** 1.3))
            jobs.append({"name": f"job{index}", "adapter": adapter, "longest": longest, "rows": generator.randint(1, 12),
                         "labelled": generator.choice([0.1, 0.4, 1.0, 1.0])})
        tokens = sum(job["rows"] * job["longest"] * 0.7 for job in jobs)
        if 300 <= tokens <= 2500:
            mixes.append(jobs)
    return mixes


def write_mix(folder, jobs, model, rounds, dtype):
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    has_diff = any(job["adapter"]["method"] == "diff_pruning" for job in jobs)
    for job in jobs:
        # While diff pruning selects (SmolLM2: at most 8 rounds), the others go on.
        selecting = has_diff and job["adapter"]["method"] != "diff_pruning"
        steps = rounds + (9 if selecting else 0)
        generator = random.Random(f"{SEED} {job['name']} {job['longest']}")
        lines = []
        for _ in range(steps * job["rows"]):
            length = generator.randint(max(2, job["longest"] * 2 // 5), max(2, job["longest"]))
            ids = [3 + int(49000 ** generator.random()) for _ in range(length)]
            first = min(length - 1, length - max(1, round(length * job["labelled"])))
            lines.append(json.dumps({"input_ids": ids, "labels": [-100] * first + ids[first:]}))
        (folder / f"{job['name']}.jsonl").write_text("\n".join(lines) + "\n")
        entries.append({"name": job["name"], "data": {"train": f"{job['name']}.jsonl", "format": "tokens"}, "adapter": job["adapter"],
                        "train": {"batch_size": job["rows"], "steps": steps, "shuffle": "none", "lr": 1e-4}})
    text = {"cotune": 1, "model": {"path": os.path.abspath(model), "dtype": dtype}, "jobs": entries,
            "run": {"output_dir": str((folder / "run").resolve())}}
    (folder / "jobs.yaml").write_text(json.dumps(text, indent=1))  # JSON is YAML


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-2000:]}")
    return done.stdout


def make_profile(arguments):
    busy = compare.busy_cores()
    command = [arguments.cotune, "profile", arguments.model, "--dtype", arguments.dtype, "--output", arguments.folder / "profile.json",
               "--seconds", str(arguments.profile_seconds)]
    print(run(command), end="")
    (arguments.folder / "profile-busy.json").write_text(json.dumps(busy))
    print(f"cores busy with other work before: {busy:.2f}")


def run_mixes(arguments):
    results = arguments.folder / "results.jsonl"
    results.write_text("")
    mixes = draw_mixes()
    for turn in range(arguments.passes):
        for index, jobs in enumerate(mixes):
            folder = arguments.folder / f"mix{index:02d}"
            if turn == 0:
                write_mix(folder, jobs, arguments.model, arguments.rounds, arguments.dtype)
            busy = compare.busy_cores()
            output = run([arguments.cotune, "train", folder / "jobs.yaml", "--profile", arguments.folder / "profile.json", "--json",
                          "--overwrite"])
            summary = json.loads(output.strip().splitlines()[-1])
            with results.open("a") as file:
                file.write(json.dumps({"mix": index, "busy": busy, "prediction": summary["prediction"],
                                       "operator_seconds": summary["operator_seconds"]}) + "\n")
            rounds = summary["prediction"]["rounds"][1:]
            predicted, measured = (statistics.mean(r[key] for r in rounds) for key in ("predicted_s", "measured_s"))
            print(f"turn {turn} mix {index:2}: {measured:.3f} s a round, predicted {predicted:.3f} s; {busy:.2f} cores busy before",
                  flush=True)


def error(predicted, measured):
    return predicted / measured - 1 if measured else 0.0


def mark(errors, goal):
    """The largest."""
    if not errors:
        return "not predicted"
    return f"{100 * max(errors):.2f}%" + ("" if max(errors) <= goal else ", **missed**")


def describe(jobs):
    parts = []
    for job in jobs:
        adapter = job["adapter"]
        size = {"lora": f"LoRA {adapter.get('r')}", "bottleneck": f"bottleneck {adapter.get('bottleneck_size')}",
                "diff_pruning": f"diff {adapter.get('density')}"}[adapter["method"]]
        parts.append(f"{size} {job['rows']}×{job['longest']}")
    return ", ".join(parts)


def table(arguments):
    by_mix = {}
    for line in (arguments.folder / "results.jsonl").read_text().splitlines():
        result = json.loads(line)
        by_mix.setdefault(result["mix"], []).append(result)
    mixes = draw_mixes()
    profile = json.loads((arguments.folder / "profile.json").read_text())
    busy = [result["busy"] for results in by_mix.values() for result in results]
    profile_busy = json.loads((arguments.folder / "profile-busy.json").read_text())
    quiet = max(busy + [profile_busy]) < BUSY
    lines, time_errors, median_errors, byte_errors, job_errors, process_errors = [], [], [], [], [], []
    for index in sorted(by_mix):
        results = by_mix[index]
        # Every round of every turn. A median beside the sum, because single rounds are hit by what else the host does.
        rounds = [r for result in results for r in result["prediction"]["rounds"][1:]]
        measured, predicted = (statistics.mean(r[key] for r in rounds) for key in ("measured_s", "predicted_s"))
        median = statistics.median(error(r["predicted_s"], r["measured_s"]) for r in rounds)
        prediction = results[0]["prediction"]
        time_errors.append(abs(error(predicted, measured)))
        median_errors.append(abs(median))
        lines.append(f"| {describe(mixes[index])} | {measured:.3f} / {predicted:.3f} | {100 * error(predicted, measured):+.1f}% "
                     f"| {100 * median:+.1f}% | ")
        if "bytes" not in prediction:  # our kernels do not run here, and ATen's buffers are not known
            lines[-1] += "not predicted | | | |"
            continue
        kinds = {kind: error(b["predicted"], b["measured"]) for kind, b in prediction["bytes"].items() if b["predicted"] or b["measured"]}
        jobs = [abs(error(b["predicted"], b["measured"])) for b in prediction["job_bytes"].values() if b["measured"]]
        process = prediction["process_bytes"]
        process_error = error(process["predicted"], process["measured"])
        worst = max(kinds, key=lambda kind: abs(kinds[kind]))
        byte_errors.append(abs(kinds[worst]))
        job_errors += jobs
        process_errors.append(abs(process_error))
        mib = 1024 * 1024
        lines[-1] += (f"{100 * kinds[worst]:+.3f}% ({worst}) | {100 * max(jobs, default=0):.3f}% | "
                      f"{process['measured'] / mib:.0f} / {process['predicted'] / mib:.0f} | {100 * process_error:+.1f}% |")
    head = [f"Seed {SEED}, {len(by_mix)} mixes, {profile['fingerprint']['dtype']} on {profile['fingerprint']['device']} "
            f"({profile['fingerprint']['kernels']}, {profile['fingerprint']['threads']} threads), {platform.system()}; "
            f"{len(busy) // max(1, len(by_mix))} turns. Cores busy with other work before the profile {profile_busy:.2f}, before runs at most "
            f"{max(busy):.2f}: {'a quiet machine' if quiet else '**not a quiet machine: the times below mean little**'}.", "",
            "| goal | reached |", "|---|---|",
            f"| step time within 10% (mean over mixes) | {mark([statistics.mean(time_errors)], GOALS['time'])} (worst {100 * max(time_errors):.1f}%); of the median round {100 * statistics.mean(median_errors):.2f}% |",
            f"| counted bytes within 0.25%, worst kind of a mix | {mark(byte_errors, GOALS['bytes'])} |",
            f"| counted bytes within 0.25%, worst job | {mark(job_errors, GOALS['bytes'])} |",
            f"| process peak within 5% (worst mix) | {mark(process_errors, GOALS['process'])}"
            + (f" (mean {100 * statistics.mean(process_errors):.1f}%)" if process_errors else "") + " |",
            "", "| mix (rows × longest) | mean round, s, measured / predicted | error | of the median round | bytes: worst kind | worst job "
            "| process peak, MiB | error |",
            "|---|---|---|---|---|---|---|---|"]
    page_part.put(arguments, "predictions", "\n".join(head + lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cotune", default=os.environ.get("COTUNE", str(ROOT / "build/cotune")))
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/predictions")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16", "float32"])
    parser.add_argument("--only", choices=["profile", "runs", "table"])
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--profile-seconds", type=float, default=100)
    page_part.add_options(parser, "docs/planning.md")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for part, function in (("profile", make_profile), ("runs", run_mixes), ("table", table)):
        if arguments.only in (None, part):
            function(arguments)


if __name__ == "__main__":
    main()
