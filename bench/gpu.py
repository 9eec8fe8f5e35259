#!/usr/bin/env python3
"""Measures cotune on a GPU against Hugging Face PEFT and against itself, and writes the GPU table of docs/benchmarks.md.

    python3 bench/gpu.py [--only NAME...] [--steps 4] [--repetitions 1] [--append] [--results FILE] [--no-docs]
    python3 bench/gpu.py --table-only [--results FILE]
    python3 bench/gpu.py --device cpu --tiny --no-docs      # everything here, with a tiny model and no GPU

Needs build/cotune, a GPU that it can use (docs/gpu.md), and a Python with torch, transformers, peft and safetensors; no
network, and no model: weights are random (Llama-3-8B's shape), the same in both programs (bench/random_values.py), and
are never written to disk. Everything else is made under build/bench/gpu (--work). Rows:

  8b         four LoRA jobs of rank 16 on all projections, eight rows of 64 to 2,048 tokens a job and step, every token
             labelled: cotune, and PEFT one job after another as shipped and tuned (bench/peft_baseline.py; with flash
             attention too where flash_attn is installed). PEFT recomputes activations where its memory does not suffice otherwise
  small-32   32 LoRA jobs of rank 8 on q and v, one row of 16 to 64 tokens a step: together, and with --sharing separate
  memory-32  what 31 further jobs of that kind add to the device's memory, in microbatches of one job each
  methods    a LoRA, a bottleneck and a diff pruning job, over three LoRA jobs with the same rows

The share of the matrix rate is (4·P_linear·tokens + 4·P_head·labelled + 6·P_adapter·tokens) / seconds over the rate of torch.mm
on the model's frozen products at 8,192 tokens, forward and transposed, measured just before. Rates leave out the first round
(cotune) and every job's first step (PEFT). Every run is a line of the results file, with the device, its driver and the
versions of the libraries. A run that fails or takes too long is told of and the others go on; the exit status is 1 then.
"""
import argparse
import datetime
import importlib.util
import json
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys

import compare
import page_part
import workloads
from compare import BenchmarkError

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEED = 7
LOSS_LIMIT = 5e-3  # of a step's loss, in bf16
COTUNE_LIMIT_S, PEFT_LIMIT_S = 240, 420

RATE_GOAL, RATE_AIM, OVER_PEFT_GOAL, OVER_SEPARATE_GOAL, MEMORY_GOAL, SHARE_GOAL = 12500, 18000, 2.0, 5.0, 1.10, 0.45
ROWS = ("8b", "small-32", "memory-32", "methods")

LLAMA_3_8B = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
              "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
              "vocab_size": 128256, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "tie_word_embeddings": False}
TINY = {**LLAMA_3_8B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}
SMALL_ADAPTER = {"method": "lora", "r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]}


def largest_loss_difference(ours, theirs):
    """Largest relative difference of a step's loss, over the steps of all jobs. A loss below PEFT's counts a quarter: PEFT rounds a
    product before it adds the adapter's part, cotune rounds the sum once, so that its losses lie nearer to those of f32. (No run in
    f32, by which bench/compare.py judges both: 8B does not fit.)"""
    worst = 0.0
    for job, losses in theirs["losses"].items():
        if len(ours["losses"].get(job, [])) != len(losses):
            return float("inf")
        worst = max([worst] + [max((a - b) / abs(b), (b - a) / abs(b) / 4) for a, b in zip(ours["losses"][job], losses)])
    return worst


def jobs_of(count, shortest, longest, batch_size, adapters, more_steps=0):
    """more_steps: steps that every job but the last makes beyond those asked for."""
    return [{"name": f"job{index:02d}", "seed": index + 1, "shortest": shortest, "longest": longest, "any_lengths": True,
             "full": shortest == longest, "labelled": 1.0, "batch_size": batch_size, "adapter": adapters[index % len(adapters)],
             "more_steps": more_steps if index + 1 < count else 0} for index in range(count)]


class Runner:
    def __init__(self, options):
        self.options = options
        self.config = dict(TINY if options.tiny else LLAMA_3_8B)
        if options.layers:
            self.config["num_hidden_layers"] = options.layers
        self.model = {"hidden": self.config["hidden_size"], "intermediate": self.config["intermediate_size"],
                      "key_value": self.config["head_dim"] * self.config["num_key_value_heads"],
                      "layers": self.config["num_hidden_layers"], "vocabulary": self.config["vocab_size"]}
        self.about = {"date": datetime.date.today().isoformat(), **device_facts(options.device), "layers": self.model["layers"],
                      "tiny": options.tiny}
        self.failures = []

    def scaled(self, length):
        """Rows of the tiny model are an eighth as long, so that a CPU is through in seconds."""
        return max(4, length // 8) if self.options.tiny else length

    def workload(self, name, jobs, steps):
        """Writes the rows and jobs files anew and returns their folder."""
        folder = self.options.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = folder / "config.json"
        config.write_text(json.dumps(self.config))
        model = {"config": str(config), "weights": "random", "seed": SEED}
        workloads.write_workload(str(self.options.work), name, model, steps, "bfloat16", jobs, self.model["vocabulary"])
        return folder

    def keep(self, row, program, result):
        record = {**result, "row": row, "program": program, **self.about}
        with open(self.options.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if "real_tokens" in result:
            print(f"  {row:10} {program:18} {compare.rate(record):10.1f} real tokens/s  {memory_of(record) / 2**30:7.2f} GiB", flush=True)
        return record

    def attempt(self, what, measurement):
        """What the measurement returns; None, told of, where it fails."""
        try:
            return measurement()
        except BenchmarkError as error:
            self.failures.append(what)
            print(f"  {what} FAILED: {error}", file=sys.stderr, flush=True)
            return None

    def cotune(self, row, program, folder, *arguments, rounds_of_all=False):
        def measure():
            output = folder / f"run-{program.replace(' ', '-')}"
            command = [self.options.cotune, "train", folder / "jobs.yaml", "--output-dir", output, "--overwrite", "--device",
                       self.options.device, "--token-budget", self.options.token_budget, *arguments,
                       *shlex.split(self.options.cotune_arguments)]
            compare.run([str(part) for part in command], program, COTUNE_LIMIT_S)
            summary = json.loads((output / "summary.json").read_text())
            lost = [job["name"] for job in summary["jobs"] if job["status"] != "finished"]
            if lost:
                raise BenchmarkError(f"{program}: {', '.join(lost)} did not finish")
            if rounds_of_all:
                summary.update(compare.rounds_of_all_jobs(output / "metrics.jsonl"))
            shutil.rmtree(output / "jobs", ignore_errors=True)  # hundreds of megabytes of adapters
            return self.keep(row, program, summary)
        return self.attempt(f"{row}: {program}", measure)

    def peft(self, row, folder, mode, batching=None, attention="sdpa"):
        program = f"peft {batching or mode}" + ("" if attention == "sdpa" else " flash")
        def measure():
            command = [sys.executable, ROOT / "bench/peft_baseline.py", folder, "--config", folder / "config.json", "--seed", SEED,
                       "--mode", mode, "--device", self.options.device, "--attention", attention, "--checkpointing",
                       "auto" if self.options.device == "cuda" else "off", *(["--batching", batching] if batching else [])]
            return self.keep(row, program, compare.parse_summary(compare.run([str(part) for part in command], program, PEFT_LIMIT_S), program))
        return self.attempt(f"{row}: {program}", measure)

    def matrix_rate(self):
        tokens = 64 if self.options.tiny else 8192
        def measure():
            flops = compare.matrix_rate("bfloat16", self.model, tokens, self.options.device)
            print(f"  torch.mm: {flops / 1e12:.1f} TFLOP/s", flush=True)
            return self.keep("matrix-rate", "torch.mm", {"flops": flops, "tokens": tokens})
        return self.attempt("matrix rate", measure)

    def eight_billion(self):
        jobs = jobs_of(4, self.scaled(64), self.scaled(2048), 8, [workloads.LORA])
        folder = self.workload("8b", jobs, self.options.steps)
        rate = self.matrix_rate()
        result = self.cotune("8b", "cotune", folder)
        if rate and result:
            reached = compare.arithmetic(result, 16, self.model) / result["seconds_training"]
            self.keep("share", "cotune", {"flops": reached, "of": rate["flops"]})
            print(f"  {reached / 1e12:.1f} TFLOP/s, {reached / rate['flops']:.0%} of torch.mm's", flush=True)
        if self.options.no_peft:
            return
        self.peft("8b", folder, "shipped")
        self.peft("8b", folder, "tuned", "by-length")
        self.peft("8b", folder, "tuned", "flattened")
        if self.options.device == "cuda" and importlib.util.find_spec("flash_attn"):
            self.peft("8b", folder, "tuned", "flattened", "flash_attention_2")

    def small(self):
        folder = self.workload("small-32", jobs_of(32, self.scaled(16), self.scaled(64), 1, [SMALL_ADAPTER]), 2 * self.options.steps)
        self.cotune("small-32", "cotune", folder)
        self.cotune("small-32", "cotune separate", folder, "--sharing", "separate")

    def memory(self):
        """Each job's rows fill a microbatch that they have for themselves: activations are those of one job."""
        length = self.scaled(64)
        for count in (1, 32):
            folder = self.workload(f"memory-{count}", jobs_of(count, length, length, 8, [SMALL_ADAPTER]), 2)
            result = self.cotune("memory-32", f"cotune {count}", folder, "--sharing", "temporal")
            if result is None:
                return

    def methods(self):
        adapters = [workloads.LORA, workloads.BOTTLENECK, workloads.DIFF_PRUNING]
        length = self.scaled(256)
        # Diff pruning chooses the entries of a layer or more in a round, and the others train on.
        selecting = jobs_of(3, length // 4, length, 8, adapters, more_steps=self.model["layers"] + 4)
        for program, jobs in (("cotune", selecting), ("cotune all-lora", jobs_of(3, length // 4, length, 8, [workloads.LORA]))):
            folder = self.workload("methods", jobs, self.options.steps)
            self.cotune("methods", program, folder, rounds_of_all=True)

    def measure(self):
        self.options.work.mkdir(parents=True, exist_ok=True)
        self.options.results.parent.mkdir(parents=True, exist_ok=True)
        if not self.options.append:
            self.options.results.write_text("")
        measurements = {"8b": self.eight_billion, "small-32": self.small, "memory-32": self.memory, "methods": self.methods}
        for repetition in range(self.options.repetitions):
            for name in self.options.only or ROWS:
                print(f"{name}, run {repetition + 1}", flush=True)
                measurements[name]()


def device_facts(device):
    """What a reader needs to place the figures."""
    facts = {"device": "cpu", "driver": ""}
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        name, memory, driver = (part.strip() for part in compare.run(query, "nvidia-smi", 60).splitlines()[0].split(","))
        facts = {"device": f"{name}, {memory}", "driver": driver}
    versions = {}
    for name in ("torch", "transformers", "peft"):
        code = f"import importlib.metadata as m; print(m.version('{name}'))"
        versions[name] = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {**facts, "versions": versions, "commit": commit}


def memory_of(record):
    """Peak bytes in tensors on the device; on the CPU, alive at once (cotune) or of the process (PEFT)."""
    if "device_memory" in record:
        return record["device_memory"]["peak_allocated_bytes"]
    return record.get("peak_device_bytes", record.get("peak_live_bytes", record["peak_rss_bytes"]))


def held_by_a_job(model):
    """Bytes of value, gradient and two moments in f32 of one job of small-32 and memory-32."""
    _, values = compare.parameters(model, SMALL_ADAPTER["r"], SMALL_ADAPTER["target_modules"])
    return 16 * values


class Table:
    """The Markdown between the markers, from the records of a results file."""

    def __init__(self, records):
        self.records = records

    def of(self, row, program):
        return [r for r in self.records if r["row"] == row and r["program"] == program]

    def median(self, row, program, value=compare.rate):
        found = [value(record) for record in self.of(row, program)]
        return statistics.median(found) if found else None

    def model(self):
        config = {**(TINY if self.records[0]["tiny"] else LLAMA_3_8B), "num_hidden_layers": self.records[0]["layers"]}
        return {"hidden": config["hidden_size"], "intermediate": config["intermediate_size"],
                "key_value": config["head_dim"] * config["num_key_value_heads"], "layers": config["num_hidden_layers"]}

    def programs(self):
        """Rates and memory on 8b, each program a line."""
        lines = ["| four jobs, 8B, rows of 64 to 2,048 tokens | tokens/s | cotune over it | peak device memory, GiB | activations recomputed | "
                 "largest loss difference to PEFT shipped | runs |", "|---|---|---|---|---|---|---|"]
        if not any(record["row"] == "8b" for record in self.records):
            return ["Not measured: 8b."]
        ours, shipped = self.of("8b", "cotune"), self.of("8b", "peft shipped")
        for program in ("cotune", "peft shipped", "peft by-length", "peft flattened", "peft flattened flash"):
            runs = self.of("8b", program)
            if not runs:
                continue
            ratio = ""
            if program != "cotune" and ours:
                ratio = compare.verdict(self.median("8b", "cotune") / self.median("8b", program), OVER_PEFT_GOAL)
            rates = sorted(map(compare.rate, runs))
            loss = ""
            if program == "cotune" and shipped:
                worst = largest_loss_difference(runs[-1], shipped[-1])
                too_large = worst > LOSS_LIMIT
                loss = f"{worst:.1e}" + (" (**too large: the speed does not count**)" if too_large else "")
            recomputed = {None: "", True: "yes", False: "no"}[runs[-1].get("gradient_checkpointing")]
            lines.append(f"| {program} | {self.median('8b', program):.0f} ({rates[0]:.0f}–{rates[-1]:.0f}) | {ratio} | "
                         f"{self.median('8b', program, memory_of) / 2**30:.1f} | {recomputed} | {loss} | {len(runs)} |")
        return lines

    def figures(self):
        """(title, value) of every goal."""
        rate = self.median("8b", "cotune")
        if rate:
            goal = "" if rate >= RATE_GOAL else ", **missed**"
            yield f"four jobs: tokens/s (goal {RATE_GOAL:,}, aim {RATE_AIM:,})", f"{rate:,.0f}{goal}"
        share = self.median("share", "cotune", lambda record: record["flops"] / record["of"])
        if share:
            flops, of = (self.median("share", "cotune", lambda record: record[key]) / 1e12 for key in ("flops", "of"))
            yield ("share of torch.mm's bf16 rate that a step reaches",
                   f"{share:.0%} (≥ {SHARE_GOAL:.0%}{'' if share >= SHARE_GOAL else ', **missed**'}): {flops:.0f} of {of:.0f} TFLOP/s; "
                   f"at the whole rate {rate / share:,.0f} tokens/s")
        together, separate = (self.median("small-32", program) for program in ("cotune", "cotune separate"))
        if together and separate:
            yield ("32 small jobs (batch 1, rows of 16 to 64 tokens) together over one after another",
                   f"{compare.verdict(together / separate, OVER_SEPARATE_GOAL)}: {together:,.0f} and {separate:,.0f} tokens/s")
        one, all_jobs = (self.median("memory-32", f"cotune {count}", memory_of) for count in (1, 32))
        if one and all_jobs:
            own, grown = held_by_a_job(self.model()), (all_jobs - one) / 31
            yield ("memory that a further job adds, over its adapter, gradient and moments",
                   f"{compare.verdict(grown / own, MEMORY_GOAL, at_least=False)}: {grown / 2**20:.2f} and {own / 2**20:.2f} MiB")
        mixed, plain = (self.median("methods", program) for program in ("cotune", "cotune all-lora"))
        if mixed and plain:
            yield "one job of each method together, over all-LoRA at equal rows", f"{mixed / plain:.2f}×: {mixed:,.0f} and {plain:,.0f} tokens/s"

    def is_of_the_benchmark(self):
        return not any(record["tiny"] or record["layers"] != LLAMA_3_8B["num_hidden_layers"] or record["device"] == "cpu"
                       for record in self.records)

    def markdown(self):
        about = self.records[-1]
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        lines = [f"Device: {about['device']}" + (f", driver {about['driver']}" if about["driver"] else "") +
                 f". {versions}. {about['date']}. Llama-3-8B's shape with {about['layers']} layers, random weights, bfloat16."]
        if not self.is_of_the_benchmark():
            lines.append("**Not the benchmark: a smaller model, or no GPU.**")
        return "\n".join([*lines, "", *self.programs(), "", "| | reached |", "|---|---|",
                          *[f"| {title} | {value} |" for title, value in self.figures()]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="NAME", help="of " + ", ".join(ROWS))
    parser.add_argument("--steps", type=int, default=4, help="of every job, the first of which is not counted")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--layers", type=int, default=0, help="a shallower model, for trying")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short rows, for trying")
    parser.add_argument("--no-peft", action="store_true", help="cotune alone")
    parser.add_argument("--cotune", default=str(ROOT / "build/cotune"))
    parser.add_argument("--token-budget", type=int, default=8192, help="of cotune's microbatches")
    parser.add_argument("--cotune-arguments", default="", help="more for `cotune train`, as one text")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench/gpu", help="where workloads and runs lie")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "build/bench/results-gpu.jsonl")
    parser.add_argument("--append", action="store_true", help="keep the runs that are in the results file")
    parser.add_argument("--table-only", action="store_true", help="measure nothing, write the table of the results file")
    page_part.add_options(parser, "docs/benchmarks.md")  # written for the whole model on a GPU alone
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2; the first is not counted")
    runner = None
    try:
        if not options.table_only:
            runner = Runner(options)
            runner.measure()
        records = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
        if not records:
            raise BenchmarkError(f"{options.results}: no run to make a table of")
    except BenchmarkError as error:
        sys.exit(f"bench/gpu.py: {error}")
    table = Table(records)
    print(f"\n{table.markdown()}")
    if not options.no_docs and table.is_of_the_benchmark():
        page_part.change(options.docs, "gpu benchmarks", lambda _: table.markdown() + "\n")
    if runner and runner.failures:
        sys.exit(f"bench/gpu.py: failed: {'; '.join(runner.failures)}")


if __name__ == "__main__":
    main()
